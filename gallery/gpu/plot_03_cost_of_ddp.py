"""
What DDP costs with nobody to talk to
=====================================

What does DDP add to a step when there is one rank, and so nothing to average?
It serves :ref:`gpu-sm`.

Even alone, DDP runs a hook for each parameter, which multiplies its gradient into a bucket; without views a copy brings it back.
A step takes as long as the slower of two: the host that launches and the GPU that computes.

:Level: deep, 15 minutes
"""

# %%
# What it will show
# -----------------
# The same model as a plain module, in DDP, and in DDP with gradients as views, in a world of one under NCCL.
# Their steps take turns in one process: the time by the GPU's clock, the time until the host is done, and how many kernels and copies a step puts on the GPU.
# DDP names what it does with a gradient, so the table counts that, too: multiplied *into* its bucket, divided *in place*, copied *back*.
# Two models: one of many small layers, whose steps wait for the host, and one whose kernels are long.
#
# Predict for each case: how many of the three per parameter?
# And the last column with one rank, where nothing has to be added: the kernels of NCCL are 0, since it launches none for a sum in place (``ncclLaunchOneRank`` in ``src/device/onerank.cu``, NCCL 2.28.9; read, not run).
# On several GPUs the same table, and ``no_sync`` as the step without communication.

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gpu import (
    DDP_WARM_UP,
    gpu_times_ms,
    host_time_ms,
    kernels,
    needs_gpus,
    operators,
    worlds,
)
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, MUTED, describe, name_rows, subplots

SHAPES = {"many small": (64, 256, 32), "few large": (8, 4096, 2048)}  # layers, width, batch


def steps(layers, width, batch, here):
    """One step of each case, as functions."""
    x = torch.rand(batch, width, device=here)

    def network():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(here)

    def step_of(model, quiet=False, to_none=True):
        def step():
            model.zero_grad(set_to_none=to_none)
            if quiet:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()

        return step

    def wrapped(views):
        return DistributedDataParallel(
            network(), device_ids=[here], gradient_as_bucket_view=views
        )

    copies = wrapped(views=False)
    return {
        "plain": step_of(network()),
        "DDP": step_of(copies),
        "DDP, views": step_of(wrapped(views=True)),
        "views, set to 0": step_of(wrapped(views=True), to_none=False),
        "DDP, no_sync": step_of(copies, quiet=True),
    }


# What DDP does with a gradient -> the operator, or the range that its reducer names (torch 2.11.0 and 2.13.0).
TOUCHED = {
    "into": "torch::distributed::reducer::mul_out",
    "in place": "aten::div_",
    "back": "torch.distributed.ddp.reducer::copy_bucket_to_grad",
}


def count(step):
    """What a step puts on the GPU, what DDP does with gradients in it, and NCCL's kernels."""
    there, host = kernels(step), operators(step)
    ours = {what: host[name] for what, name in TOUCHED.items()}
    nccl = sum(n for name, n in there.items() if "nccl" in name.lower())
    return {"all": there.total() - nccl, **ours, "NCCL": nccl}


def worker(shape):
    cases = steps(*shape, device())
    on_gpu = gpu_times_ms(cases, rounds=20, warm_up=DDP_WARM_UP)
    on_host = {name: host_time_ms(step) for name, step in cases.items()}
    return on_gpu, on_host, {name: count(step) for name, step in cases.items()}


# %%
# Run it
# ------

gpus = needs_gpus()
results = {}
for ranks in worlds(gpus):
    for name, shape in SHAPES.items():
        results[ranks, name] = launch(worker, ranks, shape, quiet=True)[0]
        on_gpu, on_host, counted = results[ranks, name]
        print(f"{ranks} rank(s), {name}: {shape[0]} layers of {shape[1]}, batch {shape[2]}")
        names = list(counted["plain"])
        print(f"  {'':15} {'GPU ms':>8} {'host ms':>9} " + "".join(f"{n:>9}" for n in names))
        for case in on_gpu:
            cells = "".join(f"{counted[case][n]:9}" for n in names)
            print(f"  {case:15} {on_gpu[case]:8.3f} {on_host[case]:9.3f} {cells}")

# %%

# drawing
fig, axes = subplots(1, len(SHAPES), height_in=2.6, sharey=True)
describe(fig, "Time of a step of each case, by the GPU's clock and by the host's")
for ax, name in zip(axes, SHAPES, strict=True):
    on_gpu, on_host, _ = results[1, name]
    for row, case in enumerate(on_gpu):
        ax.barh(row - 0.2, on_gpu[case], 0.36, color=ACCENT, ec=INK, lw=0.5)
        ax.barh(row + 0.2, on_host[case], 0.36, color=FAINT, ec=INK, lw=0.5)
    name_rows(ax, list(on_gpu))
    ax.set_xlabel("ms: violet GPU, light host", color=MUTED)
    ax.set_title(f"{name}, one rank")

# %%
# Takeaway
# --------

for name in SHAPES:
    on_gpu, on_host, counted = results[1, name]
    more = 100 * (on_gpu["DDP"] / on_gpu["plain"] - 1)
    views = 100 * (on_gpu["DDP, views"] / on_gpu["plain"] - 1)
    behind = "the host" if on_host["DDP"] > 0.9 * on_gpu["DDP"] else "the GPU"
    print(
        f"{name}: DDP adds {more:+.1f} %, with views {views:+.1f} %; the step waits for {behind}."
    )
    key = name.replace(" ", "_")
    record("%", **{f"{key}_ddp": more, f"{key}_views": views})
    parameters = 2 * SHAPES[name][0]
    for case in ("DDP", "DDP, views", "views, set to 0"):
        touched = {what: counted[case][what] for what in TOUCHED if counted[case][what]}
        print(
            f"  {case}, of {parameters} gradients:", *(f"{n} {w}" for w, n in touched.items())
        )
    record(**{f"{key}_into": counted["DDP"]["into"], f"{key}_back": counted["DDP"]["back"]})
    record(**{f"{key}_views_into": counted["DDP, views"]["into"]})
    record(**{f"{key}_in_place": counted["views, set to 0"]["in place"]})
    record(**{f"{key}_nccl": counted["DDP"]["NCCL"]})

# %%
# Change it: predict, then run
# ----------------------------
# Give the small layers a batch of 4096. Does the part that DDP adds grow, shrink or stay, in ms and in per cent?
#
# What this does not mean
# -----------------------
# That DDP costs so much on several GPUs: there the all-reduce comes on top, and what of it hides behind the backward.
# Nor that zeros are cheaper than ``None``: they save the multiplication into the bucket, and pay with filling, adding and dividing.
#
# Say it aloud
# ------------
# "With one rank DDP averages nothing, but its hooks run: each gradient is multiplied into its bucket, and without views copied back.
# Views save the way back. The way in they save only if I keep the gradients and set them to zero: then autograd adds into the bucket, and DDP divides there.
# With many small layers the host pays for all that; beside large kernels it hardly shows."
