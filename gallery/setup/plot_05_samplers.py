"""
Who reads which sample
======================

Four ranks share ten samples, so ``DistributedSampler`` has to deal two of them twice or leave two out: which ones?
This lab also shows what shuffling, epochs and seeds change; it serves :ref:`setup-samplers`.

All ranks compute the same order from a seed and an epoch, and each takes every p-th place of it.
Keep in mind: equal length on all ranks, so what does not divide is repeated or left out.

:Level: core, 10 minutes
:Proves: setup-shards-disjoint-complete setup-padding-repeats setup-drop-last-drops-tail setup-order-from-seed-and-epoch setup-seed-per-rank-overlaps setup-fewer-samples-than-ranks
"""

# %%
# Every rank makes its own sampler; the global generator, here with another seed on each rank, does not affect it.

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ddplab import launch, record
from ddplab.apparatus.plotting import FAINT, INK, RANK_COLORS, describe, subplots

RANKS, SAMPLES = 4, 10


def worker(samples, epoch=0, seed=0, seed_per_rank=False, **options):
    torch.manual_seed(dist.get_rank())
    seed += dist.get_rank() if seed_per_rank else 0
    sampler = DistributedSampler(range(samples), seed=seed, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def deal(samples=SAMPLES, ranks=RANKS, **options):
    return launch(lambda: worker(samples, **options), ranks)


orders = {
    "shuffle=False": deal(shuffle=False),
    "shuffle, epoch 0": deal(),
    "shuffle, epoch 1": deal(epoch=1),
    "drop_last, epoch 1": deal(epoch=1, drop_last=True),
    "seed=rank": deal(seed_per_rank=True),
}
for name, ranks in orders.items():
    lanes = (f"rank {rank}: {order}" for rank, order in enumerate(ranks))
    print(f"{name:18}  " + "  ".join(lanes))

# %%
# Each square is one reading of a sample, with the number of the rank in it; a repetition is hatched.

# drawing
fig, axes = subplots(5, 1, height_in=5.4, sharex=True)
describe(fig, "Which ranks read each of ten samples, under five settings of the sampler")
titles = ["repeats the first two", "repeats two others", "repeats yet others"]
titles += ["leaves two out", "some are read twice, some never"]
counts, middle = {}, {"ha": "center", "va": "center", "fontsize": 8.5}
for ax, (name, ranks), title in zip(axes, orders.items(), titles, strict=True):
    readers = {i: [rank for rank in range(RANKS) if i in ranks[rank]] for i in range(SAMPLES)}
    counts[name] = [len(reading) for reading in readers.values()]
    for i, reading in readers.items():
        for level, rank in enumerate(reading):
            look = {"color": RANK_COLORS[rank], "hatch": "///" if level else "", "ec": FAINT}
            ax.bar(i, 0.9, 0.86, level, lw=0, **look)
            plate = {"color": FAINT, "pad": 3.2, "lw": 0}
            ax.text(i, level + 0.45, rank, color=INK, bbox=plate, **middle)
        if not reading:
            ax.text(i, 0.45, "none", color=INK, **middle)
    ax.set(yticks=[], ylim=(0, max(2, *counts[name])))
    ax.spines["left"].set_visible(False)
    ax.set_title(f"{name}: {title}")
axes[-1].set(xlabel="sample", xticks=range(SAMPLES))

for name in list(orders)[:3]:
    assert sorted(counts[name]) == [1] * 8 + [2] * 2
assert sorted(counts["drop_last, epoch 1"]) == [0] * 2 + [1] * 8
assert 0 in counts["seed=rank"]

# %%
# The ranks take turns at one order: padding repeats its beginning, ``drop_last`` leaves out its end.
# Seed and epoch are added, so seed 3 in epoch 0 gives the order of seed 0 in epoch 3, and the number of ranks does not enter.


def order(of_ranks):
    return [i for turn in zip(*of_ranks, strict=True) for i in turn]


for name in list(orders)[:3]:
    assert order(orders[name])[SAMPLES:] == order(orders[name])[:2]
assert order(orders["drop_last, epoch 1"]) == order(orders["shuffle, epoch 1"])[:8]
assert deal() == orders["shuffle, epoch 0"] != deal(seed=3) == deal(epoch=3)
for ranks in (2, 5):  # which divide ten
    assert order(deal(ranks=ranks)) == order(orders["shuffle, epoch 0"])[:SAMPLES]
    assert sorted(order(deal(ranks=ranks, shuffle=False))) == list(range(SAMPLES))

# %%
# How much of a larger data set is never read with a seed per rank; and a data set with fewer samples than ranks.

read = {i for order in deal(samples=10_000, seed_per_rank=True) for i in order}
never = 1 - len(read) / 10_000
print(f"10000 samples, seed=rank: {never:.1%} are never read in this epoch")
record("%", never=100 * never)
assert abs(never - (1 - 1 / RANKS) ** RANKS) < 0.02
for drop_last in (False, True):
    tiny = deal(samples=2, drop_last=drop_last)
    lanes = (f"rank {rank}: {order}" for rank, order in enumerate(tiny))
    print(f"2 samples, {drop_last=!s:5}  ", "  ".join(lanes))
    assert [len(order) for order in tiny] == [0 if drop_last else 1] * RANKS

# %%
# What to notice
# --------------
#
# - Unshuffled, rank :math:`r` reads samples :math:`r`, :math:`r+p`, :math:`r+2p` and so on; shuffled, the same positions of one order that all ranks draw alike.
# - Padding takes the first samples of the order, so with shuffling it repeats other samples in each epoch.
# - With ``drop_last=True`` and two samples, each rank has an empty epoch: the loop ends at once, and nothing is trained.
# - A different seed on each rank makes four orders out of one, and :measured:`samplers.never:.1f` of a large data set are not read in this epoch.
#   A rank skips a sample with probability :math:`1-1/p`, so all of them do with :math:`(1-1/p)^p`, which tends to :math:`1/e`.
#
# What this does not mean
# -----------------------
# That all ranks need the same seed: dropout and augmentation want a seed per rank, and only the sampler's ``seed`` must be the same.
#
# Change it: predict, then run
# ----------------------------
# Set ``SAMPLES`` to 9.
# How many samples are read twice, and how many does ``drop_last`` leave out?
#
# Expect: three are read twice, so that each rank has three, and one is left out, so that each has two; the assertion that was written for ten fails.
#
# Say it aloud
# ------------
# "DistributedSampler deals one common order to the ranks in turns and pads it, so that all ranks make the same number of steps.
# Padding counts a few samples twice; drop_last leaves a few out.
# For training either will do, and for evaluation neither: there I take every p-th sample and divide by the true count."
