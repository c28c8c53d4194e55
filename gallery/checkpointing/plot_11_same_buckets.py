"""
The mystery of three ranks
==========================

On two ranks a resumed run equals the uninterrupted one bit for bit; on three it does not, with the same program and the same complete checkpoint.
This lab rules out the suspects one by one, until the buckets are left.
It serves :ref:`checkpointing-mystery`.

A sum of floating-point numbers depends on the order in which they are added.
A number's place in the bucket decides at which rank its sum starts, so another bucket gives other bits.

:Level: deep, 20 minutes
:Proves: ckpt-resume-off-at-three ckpt-first-step-has-constructors-buckets ckpt-only-moved-numbers-change
"""

# %%
# The case
# --------
# Thirty steps, saved after ten, of this small run:
#
# .. literalinclude:: /../gallery/ddplab/apparatus/resumed.py
#    :language: python
#    :start-at: class SmallRun
#
# Here a communication hook also watches: before it reduces as DDP would, it notes what is in each bucket, and this rank's own gradients.

import tempfile
from functools import partial
from typing import NamedTuple

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from ddplab import launch, record
from ddplab.apparatus.gaps import gap
from ddplab.apparatus.plotting import ACCENT, INK, describe, subplots
from ddplab.apparatus.resumed import SmallRun, resumed
from ddplab.runtime.needs import ON_CPU

SAVED, STEPS = 10, 20
SIZES = {"0.weight": 1024, "0.bias": 64, "3.weight": 4096, "3.bias": 64}
SIZES |= {"5.weight": 256, "5.bias": 4}  # parameters in the order of registration


def flat(tensors):
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors])


class Step(NamedTuple):
    loss: float
    own: torch.Tensor  # this rank's gradients, before the all-reduce
    gradient: torch.Tensor  # after it
    weights: torch.Tensor
    buckets: list[list[str]]  # names of the parameters, in the order of each bucket


class WatchedRun(SmallRun):
    def __init__(self, **variant):
        super().__init__(**variant)
        self.names = {p: name for name, p in self.model.module.named_parameters()}
        assert {name: p.numel() for p, name in self.names.items()} == SIZES
        self.buckets, self.own = [], {}
        self.model.register_comm_hook(self, WatchedRun.watch)

    def watch(self, bucket):
        self.buckets.append([self.names[p] for p in bucket.parameters()])
        own = map(torch.clone, bucket.gradients())
        self.own.update(zip(self.buckets[-1], own, strict=True))
        return allreduce_hook(None, bucket)

    def step(self, step):
        self.buckets, self.own = [], {}
        loss, weights = super().step(step)
        own, gradient = (self.own[name] for name in SIZES), (p.grad for p in self.names)
        return Step(loss, flat(own), flat(gradient), flat(weights), self.buckets)


# %%
# Everything is restored: weights, optimizer, random numbers of each rank, and the step, which determines the data.

SUSPECTS = {
    "resumed": {},
    "resumed, no dropout": {"dropout": 0},
    "resumed, one batch for all steps": {"one_batch": True},
    "resumed, plain SGD": {"sgd": True},
    "resumed, small buckets": {"bucket_cap_mb": 0.005},
}


def off(whole, other):
    return [gap([a.weights, b.weights]) for a, b in zip(whole, other, strict=True)]


def is_exact(whole, other):
    """Whether losses, gradients and weights of all steps are equal in every bit."""
    steps = zip(whole, other, strict=True)
    return all(a.loss == b.loss and all(map(torch.equal, a[1:4], b[1:4])) for a, b in steps)


def case(folder):
    runs = {
        name: resumed(partial(WatchedRun, **variant), f"{folder}/{name}", SAVED, STEPS)
        for name, variant in SUSPECTS.items()
    }
    whole, other = runs["resumed"]
    again = WatchedRun().train(0, SAVED + STEPS)[SAVED:]
    runs["not resumed, but run twice"] = again, whole
    apart = {name: (off(*pair), is_exact(*pair)) for name, pair in runs.items()}
    small = runs["resumed, small buckets"]
    buckets = [[step.buckets for step in run] for run in (whole, other, *small)]
    return apart, whole[0], other[0], buckets


def equal_at_first(whole, other):
    return whole.loss == other.loss and torch.equal(whole.own, other.own)


cases = {}
with tempfile.TemporaryDirectory() as folder:
    for ranks in (2, 3, 4):
        cases[ranks] = launch(case, ranks, f"{folder}/{ranks}", quiet=True, env=ON_CPU)
print("ranks   weights off after 1 step    5 steps   20 steps")
for ranks, ((apart, *_), *others) in cases.items():
    (off_by, exact), (_, repeatable) = apart["resumed"], apart["not resumed, but run twice"]
    print(f"{ranks:5}{off_by[0]:27.1e}{off_by[4]:11.1e}{off_by[-1]:11.1e}")
    assert repeatable
    assert exact == (ranks == 2)
    assert all(one["resumed"][1] == exact for one, *_ in others)

# %%
# The suspects
# ------------
# Remove each of them, and see whether the difference disappears.
# A program that is not deterministic would be a suspect too, so one run is done twice.

print("3 ranks                              weights off after 20 steps")
for name, (apart, exact) in cases[3][0][0].items():
    print(f"{name:35}{apart[-1]:28.1e}")
    assert exact == ("twice" in name)

# %%
# Inside the first step
# ---------------------
# The loss of the first step after resuming, each rank's own gradients, and what the all-reduce made of them.

print("ranks   loss    own gradients   reduced gradients")
for ranks, results in cases.items():
    assert all(equal_at_first(whole, other) for _, whole, other, _ in results)
    _, whole, other, _ = results[0]
    share = (whole.gradient != other.gradient).double().mean().item()
    print(f"{ranks:5}   equal   equal           {share:.1%} of the numbers differ")
    assert (share == 0) == (ranks == 2)
    record("%", **{f"share_{ranks}": 100 * share})

# %%
# Weights, data, dropout, and everything else that makes a gradient are ruled out: what went into the all-reduce is equal, and what came out is not.
#
# The clue
# --------
# What did the hook see?

*_, (whole, other, of_small, other_small) = cases[3][0]
lines = {"uninterrupted": whole[0], "resumed, first": other[0], "resumed, second": other[1]}
for name, (bucket,) in lines.items():
    print(f"{name:15} {' '.join(bucket)}")
for before, after in ((whole, other), (of_small, other_small)):
    assert after[0] == [list(SIZES)] != before[0]  # one, in the order of registration
    assert after[1:] == before[1:] == before[:1] * (STEPS - 1)
assert len(of_small[0]) > 1

# %%
# The first step after the resume reduces the same gradients in another order of parameters: DDP has not rebuilt its bucket yet.
# The second step has the order of the uninterrupted run again.
#
# The proof
# ---------
# A ring all-reduce cuts the bucket into one chunk per rank, and each chunk's sum starts at a different rank.
# If that is the whole story, only numbers that are now in another chunk can have changed.
# ``chunks`` computes where gloo cuts (``ring`` in ``gloo/allreduce.cc``): two segments per chunk, rounded up.


def chunks(bucket, ranks):
    """The chunk of every number, in the order of registration; and the length of a chunk."""
    total = sum(SIZES.values())
    length = 2 * -(-total // (2 * ranks))
    places = (torch.arange(total) // length).split([SIZES[name] for name in bucket])
    chunk_of = dict(zip(bucket, places, strict=True))
    return torch.cat([chunk_of[name] for name in SIZES]), length


print("ranks   changed, in another chunk   changed, in the same chunk")
for ranks, ((_, whole, other, _), *_) in cases.items():
    (before,), (after,) = whole.buckets, other.buckets
    moved = chunks(before, ranks)[0] != chunks(after, ranks)[0]
    changed = whole.gradient != other.gradient
    print(f"{ranks:5}{(changed & moved).sum():28}{(changed & ~moved).sum():29}")
    assert not (changed & ~moved).any()
    assert (changed & moved).any() == (ranks > 2)
    record("numbers", **{f"stayed_{ranks}": int((~moved).sum())})

# %%
# Not one number changed that stayed in its chunk.
# The picture shows the bucket on three ranks before and after, with the two boundaries between its chunks, and a line for each number that changed.

# drawing
_, whole, other, _ = cases[3][0]
_, length = chunks(*whole.buckets, 3)
fig, axes = subplots(2, 1, height_in=2.4, sharex=True)
describe(fig, "The bucket of the uninterrupted step, and of the first step after resuming")
titles = "Uninterrupted", "The first step after resuming, and which numbers changed"
for ax, title, bucket in zip(axes, titles, (*whole.buckets, *other.buckets), strict=True):
    left = 0
    for name in bucket:
        alpha = 0.4 if name == "3.weight" else 0.12
        ax.barh(0, SIZES[name], 0.8, left, edgecolor=INK, lw=0.6, color=ACCENT, alpha=alpha)
        if SIZES[name] > 500:
            ax.text(left + SIZES[name] / 2, 0.45, name, ha="center", fontsize=8.5)
        left += SIZES[name]
    for border in (length, 2 * length):
        ax.axvline(border, color=INK, ls="--", lw=1.4)
    ax.set(yticks=[], ylim=(-0.5, 0.85), xlim=(0, left))
    ax.set_title(title)
(changed,) = (whole.gradient != other.gradient).nonzero(
    as_tuple=True
)  # the second bucket is in this order
axes[1].vlines(changed, -0.4, 0.4, color=INK, lw=0.25)
axes[1].set(xlabel="number in the bucket", xticks=[0, length, 2 * length, left])

# %%
# What to notice
# --------------
#
# - Nothing is missing from the checkpoint. What differs is not part of any state; it is how far DDP has got: a new wrapper has not rebuilt its buckets.
# - One step is enough: the second has the old order again, but starts from different weights.
# - On two ranks there is only one order of additions, because :math:`a + b = b + a`. A test on two ranks cannot see this.
#
# What this does not mean
# -----------------------
#
# That the resumed run is wrong: each of the sums is right in its order, and :doc:`/labs/checkpointing/plot_12_two_fixes` makes them equal.
# Nor that your GPUs do the same: NCCL chooses its algorithm by size and network, and cuts elsewhere (not run).
#
# Change it: predict, then run
# ----------------------------
# Add ``"searching": {"find_unused_parameters": True}`` to ``SUSPECTS``.
# Is this run off, too?
#
# Expect: no, since DDP then never rebuilds its buckets; the assertion fails, because it expected a difference.
#
# Say it aloud
# ------------
# "On three ranks a resumed run can differ in the last bits although its checkpoint is complete.
# Its first all-reduce adds in another order, because the buckets are not rebuilt yet.
# For training that is noise; removing it costs a backward, and buys runs that compare bit for bit."
