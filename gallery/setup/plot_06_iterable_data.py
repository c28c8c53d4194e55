"""
Streams, ranks and workers
==========================

An ``IterableDataset`` has no sampler, so nothing divides it: every worker process of every rank gets a copy, and a copy yields everything.
Two ranks with two workers each read the same shards, until each sample is read once and no rank waits for another.
It serves :ref:`setup-iterable-data`.

A stream has no index to deal, so each copy of it has to know which share is its own, by rank and by worker.
Keep in mind: ranks need equally many batches, or a vote before each step.

:Level: deep, 15 minutes
:Proves: setup-iterable-repeats setup-iterable-split
"""

# %%
# A shard stands for a file with two samples.
# All ranks shuffle the list of shards in the same way, by the epoch; ``split`` determines which share of it a copy takes.

import multiprocessing

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ddplab import LaunchError, device, launch
from ddplab.apparatus.plotting import FAINT, RANK_COLORS, describe, subplots
from ddplab.runtime.needs import ON_CPU

RANKS, WORKERS, SIZE = 2, 2, 2


class Shards(IterableDataset):
    def __init__(self, shards, split, epoch=0):
        self.shards, self.split, self.epoch = shards, split, epoch
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        info = get_worker_info()  # None in the main process
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first, every = 0, 1
        if self.split == "by rank":
            first, every = self.rank, self.ranks
        if self.split == "by rank and worker":
            first, every = worker * self.ranks + self.rank, workers * self.ranks
        if self.split == "rank after rank":
            first, every = self.rank * workers + worker, workers * self.ranks
        generator = torch.Generator().manual_seed(self.epoch)
        for shard in torch.randperm(self.shards, generator=generator).tolist()[first::every]:
            yield from ((shard * SIZE + i, worker) for i in range(SIZE))


def load(shards, split):
    # A rank of launch may not have children unless it says so.
    multiprocessing.current_process().daemon = False
    options = {"num_workers": WORKERS, "multiprocessing_context": "fork"}
    return DataLoader(Shards(shards, split), SIZE, **options)


def readings(split):
    return [pair for batch in load(6, split) for pair in torch.stack(batch, dim=1).tolist()]


# %%
# Each square is one reading, with rank and worker in it.

fig, axes = subplots(3, 1, height_in=4.6, sharex=True, height_ratios=(4, 2.4, 1.6))
describe(fig, "Who reads each of twelve samples, on two ranks with two workers, by split")
SPLITS = {"no split": RANKS * WORKERS, "by rank": WORKERS, "by rank and worker": 1}
for ax, (split, expected) in zip(axes, SPLITS.items(), strict=True):
    times = [0] * 6 * SIZE
    for rank, pairs in enumerate(launch(readings, RANKS, split)):
        for sample, worker in sorted(pairs):
            ax.bar(sample, 0.86, 0.9, times[sample], color=RANK_COLORS[rank])
            where = {"fontsize": 8, "ha": "center", "va": "center"}
            ax.text(sample, times[sample] + 0.43, f"{rank}·{worker}", color=FAINT, **where)
            times[sample] += 1
    assert set(times) == {expected}
    ax.set_title(f"{split}: each sample {times[0]}×")
    ax.set(yticks=[])
    ax.spines["left"].set_visible(False)
axes[-1].set(xlabel="sample", xticks=range(6 * SIZE))

# %%
# Six shards do not divide by four copies.
# Numbered ``worker * ranks + rank`` each rank gets three of them; numbered ``rank * workers + worker``, rank after rank, rank 0 gets four.

for split, shards in {"by rank and worker": [3, 3], "rank after rank": [4, 2]}.items():
    read = [[sample for sample, _ in pairs] for pairs in launch(readings, RANKS, split)]
    assert sorted(read[0] + read[1]) == list(range(6 * SIZE))
    assert [len(samples) // SIZE for samples in read] == shards

# %%
# Seven shards do not divide by two ranks: one rank has one more batch, and waits in its backward for a rank that is done.
# ``together`` asks before each step whether every rank has a batch.


def together(loader):
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        everyone = torch.tensor(int(batch is not None), device=device())
        dist.all_reduce(everyone, dist.ReduceOp.MIN)
        if not everyone:
            return
        yield batch


def train(vote):
    loader, model, steps = load(7, "by rank and worker"), DDP(nn.Linear(1, 1).to(device())), 0
    for x, _ in together(loader) if vote else loader:
        model(x[:, None].float().to(device())).sum().backward()
        steps += 1
    print(f"done after {steps} steps", flush=True)
    return steps


try:
    launch(train, RANKS, False, timeout_s=6, env=ON_CPU)  # NCCL would hold back the GPU only
    raise AssertionError("it did not hang")
except LaunchError as error:
    print(str(error).splitlines()[0])
print("\nwith the vote:")
steps = launch(train, RANKS, True, env=ON_CPU)
assert steps == [3, 3]

# %%
# What to notice
# --------------
#
# - The shares are numbered ``worker * ranks + rank``, so that ranks differ by at most one shard; ``rank * workers + worker`` gives all extra shards to the low ranks.
# - The vote costs one small all-reduce per step and, at the end, the batches that some ranks have but do not use.
#
# Change it: predict, then run
# ----------------------------
# Let ``train`` load ``(6, "rank after rank")`` in place of ``(7, "by rank and worker")``.
# How many steps does each rank have without the vote?
#
# Expect: rank 1 has two and rank 0 more, because the first two shares get the additional shards and both are rank 0's, so it hangs; with the vote both make two, and the assertion that expects three fails.
#
# Say it aloud
# ------------
# "Every worker of every rank gets a copy of the stream, so I split the shards by rank and worker.
# If the shards do not divide, one rank has more batches and would wait for ever.
# A vote per step ends all ranks together; it costs a small all-reduce per step and the batches that some ranks still had."
