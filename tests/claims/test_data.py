"""Who reads which sample: samplers, streams, worker seeds, evaluation and a position in the middle of an epoch."""

import math
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler, get_worker_info

from ddplab import device
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.torch_private import flight_records
from tools import PATIENCE_S


def orders(ranks, samples, epoch=0, seed=None, **options):
    """The sample numbers that the sampler deals each rank; ``seed`` is a function of the rank."""

    def worker():
        torch.manual_seed(dist.get_rank())  # must not matter
        number = 0 if seed is None else seed(dist.get_rank())
        sampler = DistributedSampler(range(samples), seed=number, **options)
        sampler.set_epoch(epoch)
        return list(sampler)

    return launch(worker, ranks)


def dealt(of_ranks):
    """The order from which the ranks took turns."""
    return [i for turn in zip(*of_ranks, strict=True) for i in turn]


def load(data, batch_size, workers=2, context="fork", **options):
    """A loader, where there are workers with all that they need below ``launch``, whose ranks are daemons."""
    if workers:
        multiprocessing.current_process().daemon = False
        options |= {"num_workers": workers, "multiprocessing_context": context}
    return DataLoader(data, batch_size, **options)


@proves("setup-shards-disjoint-complete")
def test_every_sample_goes_to_exactly_one_rank():
    """Where the number of ranks divides that of the samples: two to four ranks, shuffled and not."""
    for ranks in (2, 3, 4):
        for shuffle in (False, True):
            assert sorted(dealt(orders(ranks, 12, shuffle=shuffle))) == list(range(12))


@proves("setup-padding-repeats")
def test_padding_repeats_the_first_of_the_order():
    """All ranks get as many, rounded up; the surplus is the beginning of the order once more."""
    for ranks, samples in ((2, 7), (3, 10), (4, 10)):
        shares = orders(ranks, samples)
        order, share = dealt(shares), math.ceil(samples / ranks)
        assert [len(mine) for mine in shares] == [share] * ranks
        assert sorted(order[:samples]) == list(range(samples))
        assert order[samples:] == order[: share * ranks - samples] != []


@proves("setup-drop-last-drops-tail")
def test_drop_last_leaves_out_the_end_of_the_order():
    """All ranks get as many, rounded down, of the same order as without the option; nothing is read twice."""
    for ranks, samples in ((2, 7), (3, 10), (4, 10)):
        order = dealt(orders(ranks, samples))[:samples]
        kept = samples // ranks * ranks
        assert dealt(orders(ranks, samples, drop_last=True)) == order[:kept] != order


@proves("setup-two-drop-lasts")
def test_the_loaders_drop_last_leaves_the_padding_in():
    """Five samples on two ranks, in batches of one: only the sampler's option keeps sample 0 from being read twice."""

    def worker(of_loader, of_sampler):
        sampler = DistributedSampler(range(5), shuffle=False, drop_last=of_sampler)
        return [int(i) for i in DataLoader(range(5), 1, sampler=sampler, drop_last=of_loader)]

    assert launch(worker, 2, False, False) == [[0, 2, 4], [1, 3, 0]]
    assert launch(worker, 2, True, False) == [[0, 2, 4], [1, 3, 0]]
    assert launch(worker, 2, False, True) == [[0, 2], [1, 3]]


@proves("setup-order-from-seed-and-epoch")
def test_the_order_depends_on_the_sum_of_seed_and_epoch_only():
    """Ranks with different global seeds deal from one order; seed 3 in epoch 0 is seed 0 in epoch 3."""
    first = orders(3, 30)
    assert sorted(dealt(first)) == list(range(30))
    assert orders(3, 30) == first
    assert orders(3, 30, epoch=3) == orders(3, 30, seed=lambda rank: 3) != first
    for ranks in (2, 5):
        assert dealt(orders(ranks, 30)) == dealt(first)


@proves("setup-seed-per-rank-overlaps")
def test_a_seed_per_rank_makes_shards_overlap():
    """Each rank takes its turns at an order of its own: about (1 - 1/p)^p of the samples are read by nobody."""
    for ranks in (2, 4):
        shares = orders(ranks, 4000, seed=lambda rank: rank)
        unread = 1 - len(set(dealt(shares))) / 4000
        assert unread == pytest.approx((1 - 1 / ranks) ** ranks, abs=0.03)
        assert len(set(dealt(orders(ranks, 4000)))) == 4000


@proves("setup-fewer-samples-than-ranks")
def test_fewer_samples_than_ranks_raise_nothing():
    """Two samples on five ranks: one each, read again and again; with drop_last none, so a loop without a step."""
    assert orders(5, 2, shuffle=False) == [[0], [1], [0], [1], [0]]
    assert [len(mine) for mine in orders(5, 2)] == [1] * 5
    assert orders(5, 2, drop_last=True) == [[]] * 5

    def steps():
        sampler = DistributedSampler(range(2), drop_last=True)
        return sum(1 for _ in DataLoader(range(2), 1, sampler=sampler))

    assert launch(steps, 5) == [0] * 5


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
        assert dealt(launch(worker, ranks, True)) == alone


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


@proves("setup-eval-padding-counts-twice")
def test_padded_evaluation_is_off_and_strided_evaluation_is_not():
    """The mean of 21 numbers: from padded shares, from every p-th number, and from that by a mean of means."""
    numbers = [i * i for i in range(21)]

    def worker():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        means = []
        for mine in (list(DistributedSampler(numbers, shuffle=False)), range(rank, 21, ranks)):
            part = torch.tensor([float(numbers[i]) for i in mine], dtype=torch.float64, device=device())
            sums = torch.stack([part.sum(), part.new_tensor(len(part)), part.mean()])
            dist.all_reduce(sums)
            total, count, of_means = sums.tolist()
            means += [total / count, of_means / ranks]
        return means

    for ranks in (2, 4):
        for padded, _, strided, mean_of_means in launch(worker, ranks):
            assert strided == sum(numbers) / 21
            assert abs(padded - strided) > 0.1
            assert abs(mean_of_means - strided) > 0.1


def with_batchnorm(steps=2):
    """A DDP model with BatchNorm, trained on data that differ between ranks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
    model = DDP(net.to(device()))
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        model(torch.randn(8, 4, dtype=torch.float64, device=device())).square().mean().backward()
    return model.eval()


@proves("setup-eval-without-no-grad")
def test_in_eval_mode_with_gradients_on_every_forward_communicates():
    """Three forwards in eval mode of a model with float and integer buffers, and of one without buffers."""

    def issued(way, no_grad, buffers):
        model = with_batchnorm() if buffers else DDP(nn.Linear(4, 1).double().to(device())).eval()
        called = model if way == "wrapper" else model.module
        counts = []
        with torch.set_grad_enabled(not no_grad):
            for _ in range(3):
                before = len(flight_records())
                called(torch.ones(2, 4, dtype=torch.float64, device=device()))
                counts.append(len(flight_records()) - before)
        return counts

    assert launch(issued, 2, "wrapper", False, True) == [[2, 2, 2]] * 2
    assert launch(issued, 2, "wrapper", True, True) == [[2, 0, 0]] * 2
    assert launch(issued, 2, "wrapper", False, False) == [[0, 0, 0]] * 2
    assert launch(issued, 2, "module", False, True) == [[0, 0, 0]] * 2


@proves("setup-eval-local-buffers")
def test_the_inner_module_evaluates_with_each_ranks_own_statistics():
    """The same samples on all ranks: different losses through ddp.module, equal ones once buffers are broadcast."""

    def worker(broadcast):
        model = with_batchnorm().module
        if broadcast:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
        with torch.no_grad():
            x = torch.ones(2, 4, dtype=torch.float64, device=device())
            return mse_loss(model(x), torch.zeros_like(x[:, :1])).item()

    for ranks in (2, 3):
        own, common = launch(worker, ranks, False), launch(worker, ranks, True)
        assert len(set(own)) == ranks
        assert common == [own[0]] * ranks


class Shards(IterableDataset):
    """``shards`` shards of two samples, divided over the parts that ``split`` names."""

    def __init__(self, shards, split, epoch=0):
        self.shards, self.split, self.epoch = shards, split, epoch
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        info, rank, ranks = get_worker_info(), self.rank, self.ranks
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part, parts = {
            "none": (0, 1),
            "rank": (rank, ranks),
            "worker · ranks + rank": (worker * ranks + rank, workers * ranks),
            "rank · workers + worker": (rank * workers + worker, workers * ranks),
        }[self.split]
        order = torch.randperm(self.shards, generator=torch.Generator().manual_seed(self.epoch))
        for shard in order.tolist()[part::parts]:
            yield from (2 * shard, 2 * shard + 1)


def read_stream(shards, split, workers, epoch=0):
    data = Shards(shards, split, epoch)
    return torch.cat(list(load(data, 2, workers))).tolist()


@proves("setup-iterable-repeats")
def test_an_undivided_stream_is_read_by_every_worker_of_every_rank():
    """Each of twelve samples comes ranks × workers times; divided by rank only, once per worker."""
    for ranks, workers in ((2, 0), (2, 2), (3, 1)):
        for split, times in (("none", ranks * max(1, workers)), ("rank", max(1, workers))):
            read = [i for mine in launch(read_stream, ranks, 6, split, workers) for i in mine]
            assert sorted(read) == sorted([*range(12)] * times)


@proves("setup-iterable-split")
def test_divided_by_rank_and_worker_a_stream_is_read_once():
    """Complete and disjoint, in another order in the next epoch; the numbering decides how far ranks are apart."""
    for ranks, workers, shards in ((2, 2, 6), (2, 0, 5), (3, 2, 8)):
        for split in ("worker · ranks + rank", "rank · workers + worker"):
            read = [i for mine in launch(read_stream, ranks, shards, split, workers) for i in mine]
            assert sorted(read) == list(range(2 * shards))
    even = launch(read_stream, 2, 6, "worker · ranks + rank", 2)
    uneven = launch(read_stream, 2, 6, "rank · workers + worker", 2)
    assert [len(mine) // 2 for mine in even] == [3, 3]
    assert [len(mine) // 2 for mine in uneven] == [4, 2]
    later = launch(read_stream, 2, 6, "worker · ranks + rank", 2, 1)
    assert sorted(later[0] + later[1]) == list(range(12))
    assert later[0] != even[0]


@proves("setup-uneven-streams")
def test_uneven_streams_hang_and_a_vote_ends_them_together(tmp_path):
    """Rank 0 has four batches and rank 1 three: without the vote rank 0's fourth step lasts until rank 1 leaves."""
    in_fourth = tmp_path / "rank 0 is in its fourth step"

    def train(vote):
        model = DDP(nn.Linear(1, 1).to(device()))
        batches, steps = iter(DataLoader(Shards(7, "worker · ranks + rank"), 2)), 0
        while True:
            batch = next(batches, None)
            going_on = torch.tensor(int(batch is not None), device=device())
            if vote:
                dist.all_reduce(going_on, dist.ReduceOp.MIN)
            if not going_on:
                return steps
            if steps == 3:
                in_fourth.touch()
            model(batch[:, None].float().to(device())).sum().backward()
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


class Draws:
    """Each sample is what the generators give for it."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.rand(()).item(), np.random.rand(), random.random(), self.own.random()


def draws(seed_per_rank):
    """Two epochs of two samples, each sample from another worker; [source][sample]."""
    torch.manual_seed(dist.get_rank() if seed_per_rank else 0)
    data = Draws()
    loader = load(data, 1, sampler=DistributedSampler(data))
    return list(zip(*[[x.item() for x in sample] for _ in range(2) for sample in loader], strict=True))


@proves("setup-workers-draw-alike")
def test_workers_of_equally_seeded_ranks_draw_the_same():
    """torch, numpy and Python: workers and epochs differ, ranks only if their generators were seeded differently."""
    for seed_per_rank in (False, True):
        for first, second in list(zip(*launch(draws, 2, seed_per_rank), strict=True))[:3]:
            assert len(set(first)) == len(set(second)) == 4
            assert len({*first, *second}) == (8 if seed_per_rank else 4)


@proves("setup-own-generator-repeats")
def test_a_generator_kept_by_the_data_set_repeats_itself():
    """Copied as it stands to each worker: one number for two ranks, two workers and two epochs."""
    results = launch(draws, 2, True)
    assert len({number for result in results for number in result[3]}) == 1


@proves("setup-draw-by-sample")
def test_a_generator_made_for_the_sample_does_not_depend_on_who_reads_it():
    """Seeded with seed, epoch and sample number: the same draws on 1, 2 and 3 ranks, with and without workers."""

    class BySample:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return i, np.random.default_rng([0, 1, i]).random()

    def worker(workers):
        torch.manual_seed(dist.get_rank())
        data = BySample()
        loader = load(data, 1, workers, sampler=DistributedSampler(data))
        return {int(i): x.item() for i, x in loader}

    seen = [{k: v for share in launch(worker, *how) for k, v in share.items()} for how in ((1, 0), (2, 2), (3, 1))]
    assert len(set(seen[0].values())) == 6
    assert seen[0] == seen[1] == seen[2]


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


@proves("setup-persistent-workers-keep-epoch")
def test_persistent_workers_do_not_see_a_new_epoch():
    """``data.epoch = 1`` in the main process reaches workers that are forked anew, not those that stay."""

    def worker(persistent):
        data = Shards(8, "worker · ranks + rank")
        loader = load(data, 2, 1, persistent_workers=persistent)
        epochs = []
        for epoch in range(2):
            data.epoch = epoch
            epochs.append(torch.cat(list(loader)).tolist())
        return epochs[0] == epochs[1]

    assert launch(worker, 2, True) == [True, True]
    assert launch(worker, 2, False) == [False, False]


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


class Noted:
    """Sample numbers; counts those that are read."""

    read = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.read += 1
        return i


@proves("setup-resume-reads-nothing")
def test_skipping_sample_numbers_reads_no_sample():
    """After five batches of four: both ways go on with the sixth, and only one reads the first five again."""

    def worker(skip_numbers):
        data, sampler = Noted(), DistributedSampler(range(64))
        batches = iter(DataLoader(data, 4, sampler=list(sampler)[20:] if skip_numbers else sampler))
        for _ in range(0 if skip_numbers else 5):
            next(batches)
        read = data.read
        return read, torch.cat(list(batches)).tolist() == list(sampler)[20:]

    assert launch(worker, 2, False) == [(20, True)] * 2
    assert launch(worker, 2, True) == [(0, True)] * 2


@proves("setup-sampler-runs-ahead")
def test_the_sampler_is_ahead_of_training_by_what_is_prefetched():
    """Numbers drawn from the sampler after three batches, less those trained on, in batches."""

    class Counting(DistributedSampler):
        drawn = 0

        def __iter__(self):
            for i in super().__iter__():
                self.drawn += 1
                yield i

    def worker(workers, prefetch):
        sampler = Counting(range(96))
        batches = iter(load(range(96), 4, workers, sampler=sampler, prefetch_factor=prefetch))
        for _ in range(3):
            next(batches)
        return sampler.drawn / 4 - 3

    for workers, prefetch in ((0, None), (1, 2), (2, 2), (2, 3)):
        assert launch(worker, 2, workers, prefetch) == [workers * (prefetch or 0)] * 2


@proves("setup-resume-other-world-size")
def test_steps_use_up_the_same_samples_on_any_number_of_ranks():
    """k steps with a global batch of 12 take the first 12 · k of the order, on one, two, three or four ranks."""

    def worker(steps):
        sampler = DistributedSampler(range(50))
        sampler.set_epoch(2)
        loader = DataLoader(range(50), 12 // dist.get_world_size(), sampler=sampler)
        return [batch.tolist() for _, batch in zip(range(steps), loader, strict=False)]

    order = orders(1, 50, epoch=2)[0]
    for ranks in (1, 2, 3, 4):
        for step, batches in enumerate(zip(*launch(worker, ranks, 3), strict=True)):
            together = sorted(i for batch in batches for i in batch)
            assert together == sorted(order[12 * step :][:12])


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
