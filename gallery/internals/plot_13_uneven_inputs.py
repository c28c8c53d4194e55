"""
Uneven inputs and join
======================

What do the other ranks do when one runs out of data, and what does ``model.join()`` change?
This lab shows the wait, then the same loop under ``join``, and finds out what the gradients are divided by.
It serves :ref:`internals-join`.

A backward needs all ranks, so a rank that ends early leaves the others waiting; ``join`` lets it answer with zeros until all have ended.
Keep in mind: a shadow takes part in the sum, and not in the training.

:Level: core, 15 minutes
:Proves: join-uneven-inputs join-divisor
"""

# %%
# Two batches on rank 0, four on rank 1
# -------------------------------------
# The model is one weight w and the loss is w·x with x = 1: every local gradient is exactly 1, so what ``.grad`` holds shows the divisor.

import contextlib
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.runtime.torch_private import flight_records

BATCHES = [2, 4]


def worker(batches, join, group_timeout_s):
    # A gloo group on every machine, because its timeout raises; NCCL's would end the process.
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=group_timeout_s))
    layer = nn.Linear(1, 1, bias=False).to(device())
    model, weight = DistributedDataParallel(layer, process_group=group), layer.weight
    nn.init.ones_(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients, error, own = [], None, None
    try:
        with contextlib.nullcontext() if join is None else model.join(**join):
            for _ in range(batches[dist.get_rank()]):
                before = len(flight_records())
                model(torch.ones(1, 1).to(device())).sum().backward()
                issued = [f"{e.operation} of {e.elements}" for e in flight_records()[before:]]
                gradients.append(weight.grad.item())
                optimizer.step()
                optimizer.zero_grad()
            own = weight.item()
    except RuntimeError as raised:
        error = str(raised).split("] ")[-1]  # without gloo's file name
    seen = {"gradients": gradients, "error": error, "issued": issued}
    return seen | {"before": own, "after": weight.item()}


# %%
# Without join
# ------------
# Rank 0 leaves its loop after two batches; rank 1's third backward waits for it until the group's timeout, here two seconds.


def show(results):
    for rank, r in enumerate(results):
        steps = "  ".join(f"{g:.1f}" for g in r["gradients"])
        print(f"rank {rank}: gradients {steps:18}  weight {r['after']:.3f}")
        if r["error"]:
            print(f"        {r['error']}")


alone = launch(worker, 2, BATCHES, None, 2.0)
show(alone)
assert alone[0]["error"] is None
assert "Timed out" in alone[1]["error"]
assert len(alone[1]["gradients"]) == 2

# %%
# With join
# ---------
# A rank that leaves the block early *shadows* the others: it contributes zeros to each all-reduce until all have left.
# Meanwhile its weight falls behind; at the end, the rank that left last broadcasts the model.

joined = launch(worker, 2, BATCHES, {}, 20.0)
show(joined)
for rank, r in enumerate(joined):
    own = f"{r['before']:.3f} after its own last batch"
    print(f"rank {rank}: weight {own}, {r['after']:.3f} after the block")
assert [len(r["gradients"]) for r in joined] == BATCHES
assert joined[0]["before"] != joined[1]["before"]
assert joined[0]["after"] == joined[1]["after"] == joined[1]["before"]

# %%
# The divisor
# -----------
# By default it stays the number of ranks, so each batch weighs the same.
# ``divide_by_initial_world_size=False`` divides by the number of ranks that still have data.

fewer = launch(worker, 2, BATCHES, {"divide_by_initial_world_size": False}, 20.0)
show(fewer)
assert joined[1]["gradients"] == [1.0, 1.0, 0.5, 0.5]
assert fewer[1]["gradients"] == [1.0] * 4

# %%
# Each square is a batch, and the number in it the gradient that came out.

# drawing
from ddplab.apparatus.plotting import FAINT, RANK_COLORS, label, name_rows, subplots

fig, axes = subplots(3, 1, height_in=3.9, sharex=True)
titles = ["Without join: rank 1 waits, then fails", "join(): divided by 2"]
titles += ["join(divide_by_initial_world_size=False): divided by the ranks that are left"]
for ax, results, title in zip(axes, (alone, joined, fewer), titles, strict=True):
    for rank, r in enumerate(results):
        for i, gradient in enumerate(r["gradients"]):
            ax.barh(rank, 0.9, 0.7, i + 0.05, color=RANK_COLORS[rank])
            look = {"color": FAINT, "weight": "bold", "fontsize": 9.5}
            label(ax, i + 0.5, rank, f"{gradient:.1f}", **look)
        for i in range(len(r["gradients"]), max(BATCHES) if results is not alone else 0):
            shadow = {"color": "none", "edgecolor": RANK_COLORS[rank], "ls": "--"}
            ax.barh(rank, 0.9, 0.7, i + 0.05, **shadow)
            label(ax, i + 0.5, rank, "shadows")
        if r["error"]:
            ax.text(len(r["gradients"]) + 0.05, rank, "timed out", va="center")
    name_rows(ax, ["rank 0", "rank 1"])
    ax.set_title(title)
axes[-1].set_xticks([i + 0.5 for i in range(4)], [f"batch {i}" for i in range(4)])

# %%
# What join costs
# ---------------
# The collectives of rank 1's last step, with their sizes in elements, beside those of a run with four batches on each rank.

even = launch(worker, 2, [4, 4], None, 20.0)
for name, results in (("no join", even), ("join", joined)):
    print(f"{name:8} {', '.join(results[1]['issued'])}")
extra = len(joined[1]["issued"]) - len(even[1]["issued"])
record("all-reduces", extra_per_step=extra)
assert extra == 2

# %%
# Or end together
# ---------------
# ``throw_on_early_termination=True`` makes all ranks raise as soon as one has run out.

together = launch(worker, 2, BATCHES, {"throw_on_early_termination": True}, 20.0)
for rank, r in enumerate(together):
    print(f"rank {rank} after {len(r['gradients'])} batches:\n  {r['error']}")
    assert len(r["gradients"]) == 2

# %%
# What to notice
# --------------
# - Under ``join`` each step issues :measured:`uneven-inputs.extra_per_step` more, of one element each: which ranks still have data, and whether backward will synchronize.
# - A rank that has left makes no optimizer steps.
#   Only the final broadcast brings its model up to date, and that covers the model alone: its optimizer state, scheduler and step counter fall behind.
#
# What this does not mean
# -----------------------
# That ``join`` shadows everything: it knows DDP's own collectives only.
# A SyncBatchNorm, a metric that you reduce yourself or a barrier in the loop still waits.
#
# Change it: predict, then run
# ----------------------------
# Let three ranks join, of which one ends early: ``joined = launch(worker, 3, [2, 4, 4], {}, 20.0)``.
# What is the gradient after rank 0 has left?
#
# Expect: two thirds, on both ranks that are left, since the sum of two ones is still divided by three; the assertion that expects a half fails.
#
# Say it aloud
# ------------
# "Without join the rank with more data waits in its backward until the timeout.
# With join the one that has ended contributes zeros, and the last one to leave broadcasts its model.
# It costs two small all-reduces per step and covers only DDP's own collectives; cutting all ranks to the same number of steps costs some data instead."
