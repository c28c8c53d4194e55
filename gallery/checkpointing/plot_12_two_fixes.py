"""
Two fixes for three ranks
=========================

A resumed run has another bucket in its first step, so on three ranks it adds in another order.
This lab makes resumed runs exact in two ways, and shows where each way fails and what it costs.
It serves :ref:`checkpointing-mystery`.

The layout of DDP's buckets is a state that no checkpoint holds.
A resumed run is exact if its first step has the layout of the interrupted run, rebuilt or not.

:Level: deep, 15 minutes
:Proves: ckpt-warm-up-makes-it-exact ckpt-unused-makes-it-exact ckpt-as-many-warm-ups ckpt-adamw-amplifies-rounding
"""

# %%
# A warm-up is a backward before anything is loaded: the next forward then rebuilds the buckets, and the load overwrites what the warm-up changed.
# ``CheckpointManager.load`` does one if you give it a loss; a second one, where it is needed, comes before.
# The run is ``SmallRun`` of :doc:`/labs/checkpointing/plot_11_same_buckets`.
#
# .. literalinclude:: /../gallery/ddplab/apparatus/resumed.py
#    :language: python
#    :pyobject: resumed

import statistics
import tempfile
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.apparatus.resumed import SmallRun, resumed
from ddplab.runtime.clock import now

STEPS = 12


def off(folder, warm_ups=0, saved=3, steps=STEPS, **variant):
    """How far a resumed run is off after each step, in the weights and in the loss; and, at last, in each parameter."""
    pair = resumed(partial(SmallRun, **variant), folder, saved, steps, warm_ups)
    losses, weights = [], []
    for (loss, ours), (other_loss, theirs) in zip(*pair, strict=True):
        losses.append(abs(loss - other_loss))
        each = [(a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)]
        weights.append(max(each))
    return weights, losses, each


def is_exact(runs):
    """Whether no rank was off after any step, in the weights or in the loss."""
    return not any(sum(weights + losses) for weights, losses, _ in runs)


# %%
# Exact or not
# ------------
# Each line is an uninterrupted run and a resumed one with the same options.

VARIANTS = {
    "nothing done": {},
    "nothing done, with BatchNorm": {"norm": True},
    "warm-up": {"warm_ups": 1},
    "warm-up, with BatchNorm": {"warm_ups": 1, "norm": True},
    "warm-up, gradient_as_bucket_view": {"warm_ups": 1, "gradient_as_bucket_view": True},
    "warm-up, small buckets": {"warm_ups": 1, "bucket_cap_mb": 0.005},
    "find_unused_parameters": {"find_unused_parameters": True},
    "find_unused_parameters, warm-up": {"warm_ups": 1, "find_unused_parameters": True},
    "static_graph, 1 warm-up": {"warm_ups": 1, "static_graph": True},
    "static_graph, 2 warm-ups": {"warm_ups": 2, "static_graph": True},
    "saved at step 0, nothing done": {"saved": 0},
    "saved at step 0, warm-up": {"warm_ups": 1, "saved": 0},
}
EXACT = {*list(VARIANTS)[2:8], "static_graph, 2 warm-ups", "saved at step 0, nothing done"}


def all_variants(folder):
    return {name: off(f"{folder}/{name}", **kw) for name, kw in VARIANTS.items()}


found = {}  # by the number of ranks, what each rank saw of each variant
with tempfile.TemporaryDirectory() as folder:
    for ranks in (2, 3, 4):
        runs = launch(all_variants, ranks, f"{folder}/{ranks}", quiet=True, up_to=4)
        found[ranks] = {name: [run[name] for run in runs] for name in VARIANTS}
print("weights off after 12 steps            2 ranks   3 ranks   4 ranks")
for name in VARIANTS:
    ends = [runs[name][0][0][-1] for runs in found.values()]
    print(f"{name:35}" + "".join(f"{end:10.0e}" if end else f"{0:10}" for end in ends))
    assert [is_exact(runs[name]) for runs in found.values()] == [True, *[name in EXACT] * 2]

# %%
# With ``static_graph=True`` the first backward only records the graph, so the rebuild comes one backward later.
# And a run that is saved before its first step has not rebuilt either; there the warm-up creates the difference that it should remove.
# The rule behind all lines: a resumed run needs as many backwards first as the interrupted run had made, up to the rebuild.
#
# How far it grows
# ----------------

# drawing
fig, axes = subplots(1, 3, height_in=2.6, sharey=True)
describe(fig, "Difference from the uninterrupted run per step, on 2, 3 and 4 ranks")
looks = {
    "nothing done, with BatchNorm": {"color": MUTED, "label": "with BatchNorm"},
    "nothing done": {"color": INK, "ls": "--", "label": "without BatchNorm"},
    "warm-up, with BatchNorm": {"color": ACCENT, "lw": 4, "label": "with, warmed up"},
}
for ax, (ranks, runs) in zip(axes, found.items(), strict=True):
    for name, look in looks.items():
        apart = runs[name][0][0]
        ax.plot(range(1, STEPS + 1), apart, clip_on=False, **look)
    ax.set_yscale("symlog", linthresh=1e-9, linscale=0.5)
    ax.set(xlabel="steps after resuming", ylim=(0, 0.1), yticks=[0, 1e-8, 1e-6, 1e-4, 1e-2])
    ax.set_title(f"{ranks} ranks")
axes[0].set_ylabel("largest difference")
axes[0].legend(loc="upper left", fontsize=8.5)

# %%
# With BatchNorm the difference grows much further, and not because BatchNorm is unstable.
# It subtracts the batch's mean, and with it the bias of the layer before it: that bias has the gradient 0, and what is left of it is rounding.
# AdamW divides a gradient by its own size, so it takes full-length steps out of rounding.

_, losses, each = found[3]["nothing done, with BatchNorm"][0]
names = [f"{part}.{kind}" for part in (0, 3, "norm", 6) for kind in ("weight", "bias")]
print("3 ranks, with BatchNorm, off after 12 steps")
for name, apart in zip([*names, "the loss"], [*each, losses[-1]], strict=True):
    print(f"{name:12}{apart:8.0e}")
bias, *rest = sorted(each, reverse=True)
assert bias == each[3] > 1e-4  # the bias before BatchNorm
assert max(*rest, losses[-1]) < 1e-5
record(plain=found[3]["nothing done"][0][0][-1], norm=bias, norm_loss=losses[-1])

# %%
# What they cost
# --------------
# One backward at the start, or a walk over the graph in every step.
# Steps with and without the walk take turns, on many small layers, where it costs most.


def cost():
    x = torch.randn(16, 64, device=device())
    pairs, models = [], []
    for searching in (False, True):
        net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(60)]).to(device())
        models.append(DistributedDataParallel(net, find_unused_parameters=searching))
    for _ in range(25):
        times = []
        for model in models:
            dist.barrier()
            began = now()
            model(x).sum().backward()
            times.append(now() - began)
        pairs.append(times[1] / times[0])
    return statistics.median(pairs[5:])


ratio = launch(cost, 2, quiet=True)[0]
print(f"a step with find_unused_parameters ÷ a step without, median of 20: {ratio:.2f}")
record(ratio=ratio)

# %%
# How many warm-ups
# -----------------
# The rule, tried on three ranks: saved after 0, 1, 2 and 5 steps, which numbers of warm-ups make the resumed run exact?

SAVES, GRAPHS = (0, 1, 2, 5), {"default": False, "static_graph": True}


def warm_ups(folder, saved, static):
    runs = [
        off(f"{folder}/{saved} {static} {n}", n, saved, 3, static_graph=static)
        for n in (0, 1, 2)
    ]
    return [n for n, run in enumerate(runs) if is_exact([run])]


def both_graphs(folder):
    return {
        name: [warm_ups(folder, s, static) for s in SAVES] for name, static in GRAPHS.items()
    }


with tempfile.TemporaryDirectory() as folder:
    ranks = launch(both_graphs, 3, folder, quiet=True, up_to=4)
print("saved after step" + "".join(f"{saved:>9}" for saved in SAVES)[1:])
for name, exact in ranks[0].items():
    columns = (" or ".join(map(str, some)) for some in exact)
    print(f"{name:15}" + "".join(f"{column:>9}" for column in columns))
once, static = [[0], [1, 2], [1, 2], [1, 2]], [[0], [1], [2], [2]]
assert ranks == [{"default": once, "static_graph": static}] * 3

# %%
# What to notice
# --------------
#
# - If the run had made at least one step, one warm-up makes every line exact, with views and small buckets too; ``static_graph=True`` needs two.
# - ``find_unused_parameters=True`` is exact with no warm-up, and pays for that in every step; its buckets also keep the order of the constructor.
# - With BatchNorm the weights are off by :measured:`two-fixes.norm:.0e`, but in a number that the loss does not depend on; the loss is off by :measured:`two-fixes.norm_loss:.0e`.
#
# What this does not mean
# -----------------------
#
# That every resume needs it: for the result of a training these differences are noise.
# It pays off where a difference would raise a question: in a test of your checkpoints, in the search for a bug, or when a run has to be repeated bit for bit.
#
# Change it: predict, then run
# ----------------------------
# Set ``warm_ups`` to 2 in the line ``"warm-up"``.
# Does a second warm-up make the resumed run wrong again?
#
# Expect: no, its row stays 0, because buckets are rebuilt only once.
#
# Say it aloud
# ------------
# "For a bit-exact resume on three or more ranks I run one backward before the load, so that DDP rebuilds its buckets first.
# ``find_unused_parameters`` works as well, since it never rebuilds them.
# The first costs one backward, the second a walk over the graph in every step."
