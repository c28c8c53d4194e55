"""
Resuming an epoch
=================

A run is stopped after five of an epoch's batches; the next has to begin with the sixth.
What does it cost to get there, who knows the position, and is it still right with another number of ranks?
It serves :ref:`setup-resume-data`.

The position in an epoch is a number of steps; all else follows from seed, epoch and batch size.
Keep in mind: count what was trained, not what the loader has asked for.

:Level: core, 10 minutes
:Proves: setup-resume-reads-nothing setup-sampler-runs-ahead setup-resume-other-world-size
"""

# %%
# ``Noted`` counts the samples that are read, and ``Counting`` the sample numbers that the loader has drawn.

import multiprocessing

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import launch

SAMPLES, BATCH, DONE = 64, 4, 5


class Noted(list):
    read = 0

    def __getitem__(self, i):
        self.read += 1
        return super().__getitem__(i)


class Counting(DistributedSampler):
    drawn = 0

    def __iter__(self):
        for i in super().__iter__():
            self.drawn += 1
            yield i


# %%
# Where to begin
# --------------
# The order is drawn again from seed and epoch; the question is what is read on the way to its position.


def resume(how):
    data, sampler = Noted(range(SAMPLES)), DistributedSampler(range(SAMPLES))
    order = list(sampler)[DONE * BATCH :] if how == "skip numbers" else sampler
    batches = iter(DataLoader(data, BATCH, sampler=order))
    for _ in range(DONE if how == "skip batches" else 0):
        next(batches)
    wasted = data.read
    return [i for batch in batches for i in batch.tolist()], wasted


whole = launch(lambda: list(DistributedSampler(range(SAMPLES))), 2)
for how, reads in {"skip batches": DONE * BATCH, "skip numbers": 0}.items():
    found = launch(resume, 2, how)
    assert found == [(order[DONE * BATCH :], reads) for order in whole]
    print(f"{how}: rank 0 goes on with {found[0][0][:BATCH]}, after {reads} wasted reads")

# %%
# What the sampler counts
# -----------------------
# With workers, the loader asks for batches ahead of time, so a counter in the sampler counts what was requested.


def ahead(workers, prefetch):
    # A rank of launch may not have children unless it says so.
    multiprocessing.current_process().daemon = False
    sampler, options = Counting(range(SAMPLES)), {"multiprocessing_context": "fork"}
    options |= {"num_workers": workers, "prefetch_factor": prefetch}
    options = options if workers else {}
    batches = iter(DataLoader(range(SAMPLES), BATCH, sampler=sampler, **options))
    for _ in range(2):
        next(batches)
    return sampler.drawn // BATCH - 2


for workers, prefetch in ((0, 0), (1, 2), (2, 2), (2, 3)):
    early, other = launch(ahead, 2, workers, prefetch)
    assert early == other == workers * prefetch
    print(f"{workers} workers × prefetch_factor {prefetch}: {early} batches ahead of training")

# %%
# With another number of ranks
# ----------------------------
# The global batch stays, and so each rank's share of it changes.


def consumed(steps, global_batch):
    share = global_batch // dist.get_world_size()
    return list(DistributedSampler(range(SAMPLES)))[: steps * share]


order = launch(consumed, 1, 3, 8)[0]
for ranks in (1, 2, 4):
    for steps in (1, 2, 3):
        done = sorted(i for share in launch(consumed, ranks, steps, 8) for i in share)
        assert done == sorted(order[: 8 * steps])
    print(f"3 steps, ranks: {ranks}  samples:", *done)

# %%
# What to notice
# --------------
#
# - Keep the number of steps, and compute the position from it: what was *trained* is what counts.
# - Ranks take turns at one order, so after :math:`k` steps with global batch :math:`M` its first :math:`k\\,M` samples are used up, for any number of ranks.
#
# Change it: predict, then run
# ----------------------------
# Resume on three ranks: ``for ranks in (1, 2, 3)``.
# Are the samples that were used the same as on one rank?
#
# Expect: no, there are fewer: eight does not divide by three, so a step uses six, and the assertion fails after the first.
#
# Say it aloud
# ------------
# "I save the step and compute where to begin: with the same seed and epoch, every rank draws the order again and skips its part.
# Skipping numbers costs nothing, skipping batches reads them all.
# It holds for another number of ranks only while the global batch stays the same, so I give up choosing the batch per rank freely."
