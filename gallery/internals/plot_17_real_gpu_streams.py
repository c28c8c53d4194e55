r"""
Ahead or behind: when the host asked, and when the GPU began
============================================================

How far does the host run ahead of a GPU, do NCCL's kernels ever run side by side, and how wide are they?
It serves :ref:`gpu-host-ahead` and :ref:`gpu-streams`.

The traces are the public ones of :doc:`/labs/performance/plot_04_real_gpu_trace`; nothing was run for this page.

:Level: evidence, 8 minutes
:Proves: gpu-nccl-kernels-in-a-row
"""

# %%
# Asked, and begun
# ----------------
# A trace has both moments of a kernel: the host's call that queued it, and its own start on the device.

# runs nothing: recorded traces of real GPUs
import gzip
import json
from itertools import pairwise
from statistics import median

from ddplab import record
from ddplab.apparatus.plotting import ACCENT, MUTED, describe, name_rows, subplots
from ddplab.apparatus.public_traces import FOLDER, JOBS, public_trace
from ddplab.trace import steps

traces = {name: public_trace(name) for name in JOBS}

print("                      kernels   asked before it began, ms:  median     most")
lead = {}
for name, trace in traces.items():
    lead[name] = [1e3 * (one.start_s - one.launched_s) for one in trace.collectives]
    print(
        f"{JOBS[name]:20}{len(lead[name]):9}{median(lead[name]):35.3f}{max(lead[name]):9.3f}"
    )
record("ms", ahead=median(lead["of-128-rank-0"]), most_ahead=max(lead["of-128-rank-1"]))
record("µs", behind=1e3 * median(lead["a100-pair"]))

# %%
# One after the other
# -------------------
# On each of NCCL's streams: how many kernels there are, and how many begin before the one in front of them has ended.

print("                       stream  kernels  begin too early")
total = together = 0
for name, trace in traces.items():
    for stream in sorted({one.stream for one in trace.collectives}):
        row = [one for one in trace.collectives if one.stream == stream]
        early = sum(after.start_s < before.end_s for before, after in pairwise(row))
        print(f"{JOBS[name]:20}{stream:>9}{len(row):9}{early:17}")
        total, together = total + len(row), together + early
    assert not {one.stream for one in trace.collectives} & set(trace.streams)
assert together == 0
record(
    kernels=total, streams=sum(len({c.stream for c in t.collectives}) for t in traces.values())
)

# %%
# How wide
# --------
# The grid of a kernel is its number of blocks, which NCCL calls CTAs: one for each channel.

print("                      kernel      blocks of each")
widest = 0
for name in JOBS:
    with gzip.open(FOLDER / f"{name}.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    widths = {}
    for event in events:
        if event["name"].startswith("nccl"):
            kind = event["name"].removeprefix("ncclKernel_").split("_")[0]
            widths.setdefault(kind, set()).add(event["args"]["grid"][0])
    for kind, blocks in sorted(widths.items()):
        print(f"{JOBS[name]:22}{kind:12}{' '.join(map(str, sorted(blocks)))}")
        widest = max(widest, *blocks)
record(widest=widest)

# %%

# drawing
fig, axes = subplots(2, height_in=3.6)
describe(
    fig,
    "For two jobs, lines from the moment at which the host launched each NCCL kernel to the kernel on the device",
)
for ax, name, title in zip(
    axes,
    ("a100-pair", "of-128-rank-0"),
    (
        "Two A100: the device waits for the host",
        "Rank 0 of 128: the host is far ahead",
    ),
    strict=True,
):
    step = steps(traces[name])[0]
    for one in step.collectives:
        asked, begun = (1e3 * (t - step.start_s) for t in (one.launched_s, one.start_s))
        ax.plot([asked, begun], [0, 0.7], color=MUTED, lw=1)
        ax.plot(asked, 0, "o", color=ACCENT, ms=4)
        ax.broken_barh([(begun, 1e3 * one.seconds)], (0.7, 0.6), color=ACCENT, lw=0)
    name_rows(ax, ["host asks", "NCCL kernel"])
    ax.set_title(title)
axes[1].set_xlabel("ms from the start of the step")

# %%
# What to notice
# --------------
#
# - In the pair a kernel begins :measured:`real-gpu-streams.behind:.0f` behind the call that queued it: what was queued before it is done, so the device waits for Python. In the large job the host asked :measured:`real-gpu-streams.ahead:.0f` before, and has long gone on.
# - Of :measured:`real-gpu-streams.kernels` kernels none begins before the one in front of it on its stream has ended, and no stream of NCCL's has any other kernel.
# - A kernel has up to :measured:`real-gpu-streams.widest` blocks.
#
# What this does not mean
# -----------------------
#
# That the host is idle where it is ahead, or that the lead is a queue's length: a kernel also begins late because its gradient is not there yet, or because the one in front of it waits for another rank.
# These are five files of four jobs with old versions of NCCL, up to 2.17 where they say it; newer ones choose other widths.
# The two of 128 ranks are samples, in which kernels are missing.
