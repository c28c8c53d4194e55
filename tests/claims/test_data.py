"""Who reads which sample: samplers, streams, worker seeds, evaluation and a position in the middle of an epoch."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler

from ddplab import device
from ddplab.runtime.needs import ON_CPU
from tools import PATIENCE_S


def load(data, batch_size, workers=2, context="fork", **options):
    """A loader, where there are workers with all that they need below ``launch``, whose ranks are daemons."""
    if workers:
        multiprocessing.current_process().daemon = False
        options |= {"num_workers": workers, "multiprocessing_context": context}
    return DataLoader(data, batch_size, **options)


@proves("setup-two-drop-lasts")
def test_the_loaders_drop_last_leaves_the_padding_in():
    """Five samples on two ranks, in batches of one: only the sampler's option keeps sample 0 from being read twice."""

    def worker(of_loader, of_sampler):
        sampler = DistributedSampler(range(5), shuffle=False, drop_last=of_sampler)
        return [int(i) for i in DataLoader(range(5), 1, sampler=sampler, drop_last=of_loader)]

    assert launch(worker, 2, False, False) == [[0, 2, 4], [1, 3, 0]]
    assert launch(worker, 2, True, False) == [[0, 2, 4], [1, 3, 0]]
    assert launch(worker, 2, False, True) == [[0, 2], [1, 3]]


@proves("setup-drawn-once-and-dealt")
def test_weighted_samples_are_drawn_once_and_dealt():
    """Twelve weighted samples: a sampler per rank repeats itself on all ranks, one order is dealt in turns."""
    weights = torch.arange(1.0, 13.0)

    def worker(dealt_in_turns):
        generator = torch.Generator().manual_seed(5)
        if not dealt_in_turns:
            return list(WeightedRandomSampler(weights, 12, generator=generator))
        drawn = torch.multinomial(weights, 12, True, generator=generator)
        return drawn[dist.get_rank() :: dist.get_world_size()][: 12 // dist.get_world_size()].tolist()

    (alone,) = launch(worker, 1, True)
    assert len(set(alone)) > 1
    for ranks in (2, 3):
        assert launch(worker, ranks, False) == [alone] * ranks
        turns = zip(*launch(worker, ranks, True), strict=True)
        assert [i for turn in turns for i in turn] == alone


@proves("setup-batch-per-rank")
def test_the_loaders_batch_size_counts_per_rank():
    """48 samples in batches of 4: the global batch grows with the ranks, and an epoch has fewer steps."""

    def worker():
        loader = DataLoader(range(48), 4, sampler=DistributedSampler(range(48)))
        batches = list(loader)
        together = torch.tensor(len(batches[0]), device=device())
        dist.all_reduce(together)
        return len(batches), int(together)

    for ranks in (1, 2, 4):
        assert launch(worker, ranks) == [(12 // ranks, 4 * ranks)] * ranks


@proves("setup-set-epoch-before-iterator")
def test_with_workers_set_epoch_counts_before_the_iterator_is_made():
    """Workers are asked for batches as soon as the iterator exists; without workers the first batch asks."""

    def worker(workers):
        sampler = DistributedSampler(range(16))
        batches = iter(load(range(16), 1, workers, sampler=sampler))
        epochs = [list(sampler)]
        sampler.set_epoch(1)
        epochs.append(list(sampler))
        return epochs.index([int(i) for i in batches])

    assert launch(worker, 2, 0) == [1, 1]
    assert launch(worker, 2, 2) == [0, 0]


@proves("setup-uneven-streams")
def test_uneven_streams_hang_and_a_vote_ends_them_together(tmp_path):
    """Rank 0 has four batches and rank 1 three: without the vote rank 0's fourth step lasts until rank 1 leaves."""
    in_fourth = tmp_path / "rank 0 is in its fourth step"

    def train(vote):
        model = DDP(nn.Linear(1, 1).to(device()))
        batches, steps = iter(torch.ones(4 - dist.get_rank(), 2, 1, device=device())), 0
        while True:
            batch = next(batches, None)
            going_on = torch.tensor(int(batch is not None), device=device())
            if vote:
                dist.all_reduce(going_on, dist.ReduceOp.MIN)
            if not going_on:
                return steps
            if steps == 3:
                in_fourth.touch()
            model(batch).sum().backward()
            steps += 1

    def train_and_leave():
        try:
            steps = train(vote=False)
        except RuntimeError as error:
            return str(error), time.monotonic()
        while not in_fourth.exists():
            time.sleep(0.01)
        time.sleep(1)
        return steps, time.monotonic()

    assert launch(train, 2, True) == [3, 3]
    # NCCL would hold back the GPU, not the host.
    (error, failed_s), (steps, left_s) = [
        ending.value for ending in postmortem(train_and_leave, 2, leave=True, env=ON_CPU)
    ]
    assert steps == 3
    assert "by peer" in error
    assert failed_s > left_s


class Kept:
    """What a data set may keep, and what reading it once costs the process that reads."""

    def __init__(self, path):
        self.names = [f"{i:080d}" for i in range(100_000)]
        self.array, self.tensor, self.small = np.array(self.names, dtype="S"), torch.zeros(2), np.zeros(2)
        self.map = np.load(path, mmap_mode="r+")

    def __len__(self):
        return 1

    def __getitem__(self, _):
        before = own_bytes()
        names = sum(map(len, self.names))
        after_names = own_bytes()
        assert names == 80 * int((self.array != b"").sum())
        for kept in (self.tensor, self.small, self.map):
            kept[0] = 1  # whoever sees it shares the memory
        return after_names - before, own_bytes() - after_names


def own_bytes():
    """What this process has written to and shares with no other, as Linux counts it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


@proves("data-what-a-worker-copies")
def test_what_a_worker_copies_of_the_data_set(tmp_path):
    """A forked one a list that it reads, not an array; a spawned one gets copies, but for tensors."""
    for context in ("fork", "forkserver", "spawn"):
        np.save(tmp_path / "map.npy", np.zeros(2))
        data = Kept(tmp_path / "map.npy")
        (list_read, array_read), *_ = load(data, None, 1, context)
        seen = data.tensor[0].item(), data.small[0], np.load(tmp_path / "map.npy")[0]
        assert array_read < data.array.nbytes / 10
        if context == "fork":
            assert list_read > data.array.nbytes
            assert seen == (0, 0, 1)
        else:
            assert seen == (1, 0, 0)


class Stream(IterableDataset):
    """Yields its epoch number."""

    epoch = 0

    def __iter__(self):
        yield self.epoch


@proves("setup-persistent-workers-keep-epoch")
def test_persistent_workers_do_not_see_a_new_epoch():
    """``data.epoch = 1`` in the main process reaches workers that are forked anew, not those that stay."""

    def worker(persistent):
        data, seen = Stream(), []
        loader = load(data, None, 1, persistent_workers=persistent)
        for data.epoch in range(2):
            seen += list(loader)
        return seen

    assert launch(worker, 2, True) == [[0, 0]] * 2
    assert launch(worker, 2, False) == [[0, 1]] * 2


class ByValue:
    """A function that may be sent to a worker process which cannot import it."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __reduce__(self):
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


@proves("setup-workers-know-the-rank")
def test_only_forked_workers_inherit_the_process_group():
    """Inside the worker process: is there a process group, and what does the environment say?"""

    def worker(*context_of_rank):
        look = ByValue(lambda _: (dist.is_initialized(), os.environ["RANK"]))
        return list(load(range(1), 1, 1, context_of_rank[dist.get_rank()], collate_fn=look))

    assert launch(worker, 2, "fork", "fork") == [[(True, "0")], [(True, "1")]]
    assert launch(worker, 2, "forkserver", "spawn") == [[(False, "0")], [(False, "1")]]


def f1(counts):
    """F1 of true positives, false positives and false negatives."""
    right, wrong, missed = counts.tolist()
    return 2 * right / (2 * right + wrong + missed)


@proves("setup-f1-from-summed-counts")
def test_f1_comes_from_the_counts_of_all_ranks():
    """Thirty samples whose positives lie mostly at the end: the counts add up, the ranks' F1 do not average to it."""
    where = torch.arange(30)
    labels = ((where >= 24) | (where % 15 == 0)).long()
    guesses = ((where < 10) | (where >= 20)).long()

    def counts(label, guess):
        return torch.stack([(label * guess).sum(), ((1 - label) * guess).sum(), (label * (1 - guess)).sum()])

    def worker():
        mine = slice(*(30 * (dist.get_rank() + i) // dist.get_world_size() for i in (0, 1)))
        own = counts(labels[mine], guesses[mine]).to(device())
        alone = f1(own)
        dist.all_reduce(own)
        return alone, f1(own)

    whole = f1(counts(labels, guesses))
    for ranks in (2, 3):
        alone, together = zip(*launch(worker, ranks), strict=True)
        assert set(together) == {whole}
        assert abs(sum(alone) / ranks - whole) > 0.04


def reduced(metrics, hasty=()):
    """Sum each metric over ranks, as a logger does; for those that are named ``hasty`` it waits two seconds."""
    quick, totals = patient_group(), {}
    shorten(quick, 2)
    for name, number in metrics.items():
        total = torch.tensor(number)
        try:
            dist.all_reduce(total, group=quick if name in hasty else None)
        except RuntimeError as error:
            return name, "Timed out" in str(error)
        totals[name] = total.item()
    return totals


@proves("gathered-objects-are-padded")
def test_gathered_objects_travel_as_bytes_of_the_longest():
    """Two ranks, the longer object on rank 1: the sizes of the tensors in which the objects arrive."""

    def worker(whole):
        rank, arrived, objects = dist.get_rank(), [], [None, None]
        all_gather, gather = c10d.all_gather, c10d.gather

        def spy_all_gather(outputs, mine, **options):
            arrived.append([one.numel() for one in outputs])
            return all_gather(outputs, mine, **options)

        def spy_gather(mine, gather_list=None, **options):
            arrived.append([one.numel() for one in gather_list or []])
            return gather(mine, gather_list, **options)

        c10d.all_gather, c10d.gather = spy_all_gather, spy_gather
        text = "x" * 10_000 * rank
        if whole:
            dist.all_gather_object(objects, text)
        else:
            dist.gather_object(text, objects if rank == 0 else None)
        lengths, texts = arrived
        assert lengths == [1, 1]
        return texts, [len(one or "") for one in objects]

    first, second = launch(worker, 2, False, env=ON_CPU)
    assert second == ([], [0, 0])
    for texts, objects in (first, *launch(worker, 2, True, env=ON_CPU)):
        assert texts[0] == texts[1] > 10_000
        assert objects == [0, 10_000]


@proves("setup-metric-names-must-agree")
def test_other_metric_names_on_a_rank_add_up_or_wait():
    """Another name in the same place adds up, also at DETAIL; one name more on rank 0 waits until the timeout."""

    def other_name():
        return reduced({"loss": 1.0, ("accuracy", "f1")[dist.get_rank()]: 10.0 + dist.get_rank()})

    def one_more():
        return reduced({"loss": 1.0, **({"f1": 1.0} if dist.get_rank() == 0 else {})}, hasty=["f1"])

    *other, more = side_by_side(
        lambda: launch(other_name, 2, env={**ON_CPU, "TORCH_DISTRIBUTED_DEBUG": "OFF"}),
        lambda: launch(other_name, 2, env={**ON_CPU, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
        lambda: launch(one_more, 2, env=ON_CPU),
    )
    assert other == [[{"loss": 2.0, "accuracy": 21.0}, {"loss": 2.0, "f1": 21.0}]] * 2
    assert more == [("f1", True), {"loss": 2.0}]


@proves("setup-predictions-in-order")
def test_predictions_that_carry_their_index_are_put_in_order():
    """Shuffled shards, padded on 2 and 3 ranks: rank after rank they are out of order, by index they are not."""

    def worker():
        ranks = dist.get_world_size()
        pairs = [(i, 10 * i) for i in DistributedSampler(range(7), shuffle=True)]
        parts = [None] * ranks
        dist.all_gather_object(parts, pairs)  # pairs: (index, prediction) of this rank
        ordered = [p for _, p in sorted(dict(x for part in parts for x in part).items())]
        return [p for part in parts for _, p in part], ordered

    for ranks in (2, 3):
        for gathered, ordered in launch(worker, ranks):
            assert len(gathered) > 7
            assert gathered[:7] != ordered
            assert ordered == [10 * i for i in range(7)]


def drawn_under_accelerate(seedable):
    """What each rank's weighted sampler draws, and the samples that the prepared loader gives the rank."""

    class Remembered(WeightedRandomSampler):
        def __iter__(self):
            for i in super().__iter__():
                drawn.append(i)
                yield i

    def worker():
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        torch.manual_seed(dist.get_rank())
        configuration = DataLoaderConfiguration(use_seedable_sampler=seedable)
        loader = DataLoader(range(1000), batch_size=2, sampler=Remembered([1.0] * 1000, 16))
        own = [
            i for some in Accelerator(cpu=True, dataloader_config=configuration).prepare(loader) for i in some.tolist()
        ]
        return drawn, own

    drawn = []
    return launch(worker, 2, env=ON_CPU)


@proves("accelerate-keeps-weighted-sampler")
def test_accelerate_deals_the_draws_of_a_weighted_sampler():
    """Ranks that were seeded apart draw alike and share the draws; with use_seedable_sampler=True they draw apart."""
    kept, seedable = side_by_side(lambda: drawn_under_accelerate(False), lambda: drawn_under_accelerate(True))
    (first, mine), (second, others) = kept
    assert first == second
    assert mine == [i for number, i in enumerate(first) if number % 4 < 2]
    assert others == [i for number, i in enumerate(first) if number % 4 >= 2]
    (first, _), (second, _) = seedable
    assert first != second


SHARED_EPOCH = """
import sys, torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __init__(self):
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __iter__(self):
        yield self.epoch.item()

if __name__ == "__main__":
    data = Stream()
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": sys.argv[1]}
    loader, seen = DataLoader(data, None, **options), []
    for epoch in (3, 5):
        data.epoch.fill_(epoch)
        seen += list(loader)
    print(seen)
"""


@proves("setup-shared-epoch-reaches-workers")
def test_an_epoch_in_shared_memory_reaches_persistent_workers(tmp_path):
    """Two workers, forked and spawned, that stay for a second pass."""
    script = tmp_path / "stream.py"
    script.write_text(SHARED_EPOCH)
    contexts = ("fork", "spawn")
    command = [sys.executable, str(script)]
    started = [subprocess.Popen([*command, context], stdout=subprocess.PIPE, text=True) for context in contexts]
    assert [process.communicate(timeout=PATIENCE_S)[0].strip() for process in started] == ["[3, 3, 5, 5]"] * 2
