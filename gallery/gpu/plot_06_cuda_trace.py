"""
Read a CUDA trace
=================

When did the host launch each kernel, when did it run, on which stream, and where was the GPU idle?
It serves :ref:`gpu-profile`.

Each kernel has two moments: its launch on the host and its start on a stream.
One that starts long after its launch has waited for the GPU; for one that starts at once, the GPU has waited.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# A profiler trace of a DDP step, read with a few lines of Python.
# Each launch on the host and its kernel on the GPU have the same *correlation* number; the time between them is how far the host is ahead.
# A table gives the kernels per stream, how long the GPU was busy, and its gaps; the picture puts the host above the streams.
# Predict the collectives of one rank: NCCL launches no kernel for it, since a sum over one rank is there already (``ncclLaunchOneRank`` in ``src/device/onerank.cu``, NCCL 2.28.9; read, not run).
# On several GPUs NCCL's kernels are there, on a stream of their own, and ``ddplab.trace`` says what of them was exposed.

import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from ddplab import device, launch, record
from ddplab.apparatus.gpt import GPT
from ddplab.apparatus.gpu import DDP_WARM_UP, needs_gpus, worlds
from ddplab.apparatus.plotting import (
    ACCENT,
    INK,
    MUTED,
    RANK_COLORS,
    describe,
    name_rows,
    subplots,
)
from ddplab.trace import lateness, read_trace, steps

MODEL = {"width": 1024, "layers": 8, "heads": 16, "tokens": 512, "vocabulary": 8192}
BATCH, STEPS = 8, 3


def worker(folder):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    here = device()
    model = GPT(**MODEL).to(here)
    ddp = DistributedDataParallel(model, device_ids=[here])
    optimizer = torch.optim.AdamW(ddp.parameters())
    text = model.text(BATCH, here)
    plan = schedule(skip_first=DDP_WARM_UP - 1, wait=0, warmup=1, active=STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(schedule=plan, activities=activities) as profiler:
        for _ in range(DDP_WARM_UP + STEPS):
            ddp(text).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()  # so that a step's kernels lie in its step
            profiler.step()
    path = f"{folder}/rank{torch.distributed.get_rank()}.json"
    profiler.export_chrome_trace(path)
    return path


# %%
# Launches and kernels belong together by their correlation; busy is the union of all kernels of all streams.


def read(path):
    events = [
        e for e in json.loads(Path(path).read_text())["traceEvents"] if e.get("ph") == "X"
    ]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    called = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    launched = {e["args"].get("correlation"): e for e in called}
    ahead = [
        (e["ts"] - launched[e["args"]["correlation"]]["ts"]) / 1e3
        for e in kernels
        if e["args"].get("correlation") in launched
    ]
    return kernels, launched, ahead


def idle(kernels):
    """Milliseconds between the first kernel's start and the last's end, and the gaps in between."""
    reached, gaps = kernels[0]["ts"], []
    for e in kernels:
        if e["ts"] > reached:
            gaps.append((e["ts"] - reached) / 1e3)
        reached = max(reached, e["ts"] + e["dur"])
    return (reached - kernels[0]["ts"]) / 1e3, gaps


# %%
# Run it
# ------

gpus = needs_gpus()
with tempfile.TemporaryDirectory() as folder:
    for ranks in worlds(gpus):
        paths = launch(worker, ranks, folder, quiet=True)
        kernels, launched, ahead = read(paths[0])
        traces = [read_trace(Path(path)) for path in paths]
        whole_ms, gaps = idle(kernels)
        streams = Counter(e["args"]["stream"] for e in kernels)
        print(f"rank 0 of {ranks}: {len(kernels) / STEPS:.0f} kernels per step")
        for stream, count in streams.most_common():
            took = sum(e["dur"] for e in kernels if e["args"]["stream"] == stream) / 1e3
            print(f"  stream {stream}: {count} kernels, {took:.1f} ms")
        print(f"  {whole_ms:.1f} ms, of which idle {sum(gaps):.1f} ms in {len(gaps)} gaps")
        print(
            f"  a kernel starts {statistics.median(ahead):.3f} ms behind its launch (median)"
        )
        step = sorted(steps(traces[0]), key=lambda step: step.seconds)[STEPS // 2]
        print(
            f"  collectives per step {len(step.collectives)}: {1e3 * step.communicating_s:.2f} ms, "
            f"exposed {1e3 * step.exposed_s:.2f} ms"
        )
        if ranks > 1:
            for one in lateness(traces)[0]:
                print(f"  rank {one.rank} came last in {one.last} collectives")

# %%

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "One step: launches on the host above the kernels of each stream")
first = kernels[0]["ts"]
until = first + 1e3 * whole_ms / STEPS
rows = ["host", *(f"stream {stream}" for stream in sorted(streams, key=str))]
bars = [
    ((e["ts"] - first) / 1e3, e["dur"] / 1e3)
    for e in launched.values()
    if first <= e["ts"] < until
]
ax.broken_barh(bars, (-0.35, 0.7), color=MUTED, lw=0)
for row, stream in enumerate(sorted(streams, key=str), 1):
    own = [e for e in kernels if e["args"]["stream"] == stream and e["ts"] < until]
    color = ACCENT if any("nccl" in e["name"].lower() for e in own) else RANK_COLORS[0]
    ax.broken_barh(
        [((e["ts"] - first) / 1e3, e["dur"] / 1e3) for e in own],
        (row - 0.35, 0.7),
        color=color,
        lw=0,
    )
name_rows(ax, rows)
ax.set_xlabel("ms since the first kernel", color=INK)
ax.set_title(f"The first step, rank 0 of {ranks}; violet: NCCL")

# %%
# Takeaway
# --------

busy = 1 - sum(gaps) / whole_ms
late = statistics.median(ahead)
print(f"The GPU is busy {busy:.1%} of the time; a kernel waits {late:.3f} ms for its turn.")
middle = statistics.median(e["dur"] for e in kernels) / 1e3
who = (
    "the GPU: the host is ahead"
    if late > middle
    else "the host: kernels start as soon as they come"
)
print(f"The median kernel takes {middle:.3f} ms, so this step waits for {who}.")
record("ms", behind=late, idle=sum(gaps), exposed=1e3 * step.exposed_s)
record("%", busy=100 * busy)
record(kernels=len(kernels) / STEPS, streams=len(streams))

# %%
# Change it: predict, then run
# ----------------------------
# Set ``BATCH`` to 1. Does a kernel start sooner or later behind its launch, and do the gaps grow?
#
# What this does not mean
# -----------------------
# That this step takes so long without a profiler: recording costs the host some microseconds per launch.
# Each step ends with a synchronization here, which a training loop should not have.
#
# Say it aloud
# ------------
# "I compare each launch with the start of its kernel.
# If they are far apart, the host is ahead and the GPU sets the pace; if they are close and the GPU has gaps, the host does.
# A trace shows this kernel by kernel, and slows the host while it records."
