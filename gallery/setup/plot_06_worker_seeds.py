"""
What a worker draws
===================

Random augmentation runs in the loader's worker processes, each with its own generators.
Do two ranks, two workers and two epochs draw different numbers?
It serves :ref:`setup-worker-seeds`.

A worker's global generators follow from its rank's generator and its number; a generator that the data set keeps is copied as it is.
Keep in mind: what is copied repeats.

:Level: core, 10 minutes
:Proves: setup-workers-draw-alike setup-own-generator-repeats setup-draw-by-sample
"""

# %%
# A sample is what each of four sources draws for it: the global generators of torch, numpy and Python, and a generator that the data set keeps.

import multiprocessing
import random
from collections import ChainMap

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import launch, record

SOURCES = ("torch", "numpy", "random", "kept")


class Draws:
    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, _):
        return torch.rand(()).item(), np.random.rand(), random.random(), self.own.random()


def load(data, workers, **options):
    # A rank of launch may not have children unless it says so.
    multiprocessing.current_process().daemon = False
    options |= {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    return DataLoader(data, 1, sampler=DistributedSampler(data), **options)


def worker(seed_per_rank):
    torch.manual_seed(dist.get_rank() if seed_per_rank else 0)
    loader = load(Draws(), 2)
    return [[[x.item() for x in sample] for sample in loader] for _ in range(2)]


# %%
# A rank has two samples in an epoch, one from each worker, and ``|`` separates its two epochs: eight samples in all.

for name, seed_per_rank in (("same seed on both ranks", False), ("seed + rank", True)):
    drawn = launch(worker, 2, seed_per_rank)
    print(f"{name:26}rank 0                       rank 1                       different")
    different = {}
    for i, source in enumerate(SOURCES):
        epochs = ["  ".join(f"{s[i]:.3f}" for s in epoch) for rank in drawn for epoch in rank]
        different[source] = len({s[i] for rank in drawn for epoch in rank for s in epoch})
        assert (epochs[:2] == epochs[2:]) == (source == "kept" or not seed_per_rank)
        lanes = f"{epochs[0]} | {epochs[1]}    {epochs[2]} | {epochs[3]}"
        print(f"    {source:8}  {lanes}    {different[source]} of 8")
    for source in SOURCES[:3]:
        assert different[source] == (8 if seed_per_rank else 4)
    assert different["kept"] == 1
    kind = "own" if seed_per_rank else "same"
    record("of 8", **{f"{kind}_{source}": different[source] for source in SOURCES})

# %%
# A fix for all of it
# -------------------
# A generator that is made for each sample, from seed, epoch and sample number, draws the same numbers for it on any rank, in any worker, and after a resume.


def augment(seed, epoch, i):
    return np.random.default_rng([seed, epoch, i]).random()


def by_sample(workers):
    torch.manual_seed(dist.get_rank())
    drawn = {}
    for epoch in range(2):
        loader = load(range(4), workers, collate_fn=lambda i, e=epoch: (*i, augment(0, e, *i)))
        drawn |= {(epoch, i): number for i, number in loader}
    return drawn


WAYS = [(1, 0), (2, 2), (4, 1)]  # ranks, and workers of each
results = [dict(ChainMap(*launch(by_sample, *way))) for way in WAYS]
assert results[0] == results[1] == results[2]
print(f"{len(set(results[0].values()))} of 8 differ, and are the same on 1, 2 and 4 ranks")

# %%
# What to notice
# --------------
#
# - Each rank draws a base seed from its own torch generator at the start of an epoch, and a worker seeds torch, numpy and Python with the base seed and its number.
#   So workers differ and epochs differ; ranks differ only if their generators do.
# - The generator that the data set keeps is copied to each worker unchanged: :measured:`worker-seeds.own_kept` are different, however you seed.
#
# Change it: predict, then run
# ----------------------------
# Make the kept generator without a seed: ``np.random.default_rng()``.
# How many of its eight numbers are different?
#
# Expect: two, one per rank: each rank makes its own, and both workers and both epochs start from the same copy; the assertion that there is one fails.
#
# Say it aloud
# ------------
# "Ranks that share a seed augment alike, so I seed by rank, and nothing random lives in the data set.
# Better still, I derive the generator from seed, epoch and sample number.
# That is the same on any number of ranks and after a resume; it costs making a generator per sample."
