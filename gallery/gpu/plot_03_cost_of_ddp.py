"""
What DDP costs with nobody to talk to
=====================================

What does DDP add to a step when there is one rank, and so nothing to average?
It serves :ref:`gpu-sm`.

Even alone, DDP runs a hook for each parameter, and without views it copies each gradient into a bucket and back.
A step takes as long as the slower of two: the host that launches and the GPU that computes.

:Level: deep, 15 minutes
"""

# %%
# What it will show
# -----------------
# The same model as a plain module, in DDP, and in DDP with gradients as views, in a world of one under NCCL.
# Their steps take turns in one process: the time by the GPU's clock, the time until the host is done, and how many kernels and copies a step puts on the GPU.
# Two models: one of many small layers, whose steps wait for the host, and one whose kernels are long.
# On several GPUs the same table, and ``no_sync`` as the step without communication.

from collections import Counter

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.labs.gpu import gpu_times_ms, host_time_ms, kernels, needs_gpus, worlds
from ddplab.labs.plotting import ACCENT, FAINT, INK, MUTED, describe, name_rows, subplots

SHAPES = {"many small": (64, 256, 32), "few large": (8, 4096, 2048)}  # layers, width, batch


def steps(layers, width, batch, here):
    """One step of each case, as functions."""
    x = torch.rand(batch, width, device=here)

    def network():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(here)

    def step_of(model, quiet=False):
        def step():
            model.zero_grad()
            if quiet:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()

        return step

    copies = DistributedDataParallel(network(), device_ids=[here])
    views = DistributedDataParallel(network(), device_ids=[here], gradient_as_bucket_view=True)
    cases = {"plain": step_of(network()), "DDP": step_of(copies), "DDP, views": step_of(views)}
    return {**cases, "DDP, no_sync": step_of(copies, quiet=True)}


def kind(name):
    """What a kernel or copy is for, from its name."""
    lower = name.lower()
    if "nccl" in lower:
        return "NCCL"
    return "copies" if "memcpy" in lower or "copy" in lower else "computing"


def worker(shape):
    cases = steps(*shape, device())
    on_gpu = gpu_times_ms(cases, rounds=20, warm_up=5)
    on_host = {name: host_time_ms(step) for name, step in cases.items()}
    counted = {}
    for name, step in cases.items():
        kinds = Counter()
        for kernel, count in kernels(step).items():
            kinds[kind(kernel)] += count
        counted[name] = dict(kinds)
    return on_gpu, on_host, counted


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
        print("                 GPU ms   host ms   computing  copies   NCCL")
        for case in on_gpu:
            kinds = [counted[case].get(what, 0) for what in ("computing", "copies", "NCCL")]
            print(
                f"  {case:12} {on_gpu[case]:8.3f} {on_host[case]:9.3f}",
                "".join(f"{n:9}" for n in kinds),
            )

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
    record(**{f"{key}_copies": counted["DDP"].get("copies", 0)})

# %%
# Change it: predict, then run
# ----------------------------
# Give the small layers a batch of 4096. Does the part that DDP adds grow, shrink or stay, in ms and in per cent?
#
# What this does not mean
# -----------------------
# That DDP costs so much on several GPUs: there the all-reduce comes on top, and what of it hides behind the backward.
#
# Say it aloud
# ------------
# "With one rank DDP averages nothing, but its hooks run, and without views every gradient is copied into its bucket and back.
# With many small layers the host pays for that; beside large kernels it hardly shows.
# Views save the copies, and the next backward then overwrites a gradient that you kept."
