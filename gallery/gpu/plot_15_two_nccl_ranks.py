"""
Two NCCL ranks: a bucket is a kernel
====================================

Which kernel is which bucket, on which stream, and what is launched around it?
It serves :ref:`gpu-streams`.

DDP asks for one all-reduce per bucket, and NCCL runs each as one kernel on a stream of its own.
The host asks for it in the middle of the backward, so kernels of the backward lie on both sides of its launch.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# Two ranks with NCCL train a model of seven layers, and a profiler records one step of each, after twelve others.
# The buckets are predicted from the sizes of the layers; the trace tells of each NCCL kernel its bytes, its stream, and how many kernels of the backward were launched before and after it.
# Then it checks, in the order of events, what the chapter says of the two streams.
# The gradients are compared with those of a plain model that gets the batches of all ranks.
#
# The ranks may share one card (``DDPLAB_SHARE_GPU=1``).
# They then take turns on it, so this lab tells *orders* and no times, and the picture's axis has no numbers.

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ddplab import device, launch, record
from ddplab.apparatus.plotting import (
    ACCENT,
    INK,
    MUTED,
    RANK_COLORS,
    describe,
    label,
    name_rows,
    subplots,
)
from ddplab.buckets import MIB, assign
from ddplab.runtime.group import gpu_uuid
from ddplab.runtime.needs import needs_nccl_ranks
from ddplab.runtime.torch_private import ddp_facts

RANKS = 2
WIDTHS = (512, 1024, 2048, 1024, 512, 1536, 1024, 256)  # so that all buckets differ
CAP_MIB = 6
BATCH = 64  # rows of each rank
UNTIMED = 11  # DDP times its first ten steps, and rebuilds its buckets in the second
TOLERANCE = 1e-5  # float32 products of up to 2048 terms, added in another order

needs_nccl_ranks(RANKS)


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(into, out, bias=False) for into, out in pairwise(WIDTHS)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.GELU())))


def batches():
    """Inputs and targets of all ranks, row by row."""
    some = torch.Generator().manual_seed(1)
    return [
        torch.randn(RANKS * BATCH, width, generator=some) for width in (WIDTHS[0], WIDTHS[-1])
    ]


# %%
# Predict
# -------
# Gradients become ready from the last layer to the first, and a bucket closes when it has reached its cap.
# How many NCCL kernels will a step have, and how large is the first?

sizes = [4 * into * out for into, out in pairwise(WIDTHS)]
last_first = sizes[::-1]
buckets = assign(last_first, CAP_MIB * MIB, CAP_MIB * MIB)
predicted = [sum(last_first[i] for i in bucket) for bucket in buckets]
print("layers, the last first:", ", ".join(f"{size / MIB:g}" for size in last_first), "MiB")
print("buckets, as predicted: ", ", ".join(f"{size / MIB:g}" for size in predicted), "MiB")

# %%
# The worker
# ----------


def worker(folder):
    rank, here = torch.distributed.get_rank(), device()
    inputs, targets = (tensor.to(here) for tensor in batches())
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    ddp = DistributedDataParallel(network().to(here), device_ids=[here], bucket_cap_mb=CAP_MIB)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    plan = schedule(skip_first=UNTIMED, wait=0, warmup=1, active=1, repeat=1)
    with profile(
        schedule=plan, activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
    ) as profiler:
        for _ in range(UNTIMED + 2):
            loss = mse_loss(ddp(inputs[own]), targets[own])
            with record_function("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()  # so that a step's kernels lie in its step
            profiler.step()
    path = f"{folder}/rank{rank}.json"
    profiler.export_chrome_trace(path)

    mse_loss(ddp(inputs[own]), targets[own]).backward()
    plain = network().to(here)
    plain.load_state_dict(ddp.module.state_dict())
    mse_loss(plain(inputs), targets).backward()
    pairs = zip(plain.parameters(), ddp.parameters(), strict=True)
    worst = max(((a.grad - b.grad).norm() / a.grad.norm()).item() for a, b in pairs)
    reported = [int(size) for size in ddp_facts(ddp)["rebuilt_bucket_sizes"].split(", ")]
    return path, worst, reported, gpu_uuid()


# %%
# A kernel and its launch have the same correlation number, a kernel and the operator that asked for it the same external id.
# torch writes what it asked NCCL for beside the kernel, or beside that operator: ``In msg nelems`` and ``dtype``.


def read(path):
    """The kernels of the step in the order of their launches, and when its backward began and ended on the host."""
    trace = json.loads(Path(path).read_text())["traceEvents"]
    events = [e for e in trace if e.get("ph") == "X" and "args" in e]
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    launched = {e["args"].get("correlation"): e["ts"] for e in calls}
    operators = {e["args"].get("External id"): e for e in events if e.get("cat") == "cpu_op"}
    kernels = []
    for e in events:
        if e.get("cat") == "kernel":
            asked = operators.get(e["args"].get("External id"), e)
            said = asked["args"] | e["args"]
            kernels.append(
                {
                    "nccl": "nccl" in e["name"].lower(),
                    "launched": launched.get(said.get("correlation"), asked["ts"]),
                    "start": e["ts"],
                    "end": e["ts"] + e["dur"],
                    "stream": said["stream"],
                    "bytes": 4
                    * said.get("In msg nelems", 0)
                    * (said.get("dtype") == "Float"),  # 0: not said
                }
            )
    spans = [e for e in events if (e["name"], e.get("cat")) == ("backward", "user_annotation")]
    kernels.sort(key=lambda k: k["launched"])
    return kernels, spans[0]["ts"], spans[0]["ts"] + spans[0]["dur"]


# %%
# Run it
# ------

with tempfile.TemporaryDirectory() as folder:
    paths, worst, reported, cards = zip(
        *launch(worker, RANKS, folder, quiet=True), strict=True
    )
    steps = [read(path) for path in paths]
shared = len(set(cards)) < RANKS
print(f"{RANKS} NCCL ranks on {len(set(cards))} card(s)")
matches = []
for rank, (kernels, began, ended) in enumerate(steps):
    sums = [k for k in kernels if k["nccl"]]
    backward = [k for k in kernels if not k["nccl"] and began <= k["launched"] < ended]
    print(
        f"\nrank {rank}: {len(sums)} NCCL kernels, {len(backward)} others launched in the backward"
    )
    print("  bucket  predicted  DDP says  its kernel     on  of the backward, launched")
    for number, (size, said, k) in enumerate(
        zip(predicted, reported[rank], sums, strict=False)
    ):
        before = sum(other["launched"] < k["launched"] for other in backward)
        print(
            f"  {number:6}{size / MIB:7.3g} MiB{said / MIB:6.3g} MiB{k['bytes'] / MIB:8.3g} MiB"
            f"{k['stream']:>7}  {before} before it, {len(backward) - before} after"
        )
        matches.append(size == said == k["bytes"])
print(
    f"\nworst relative difference to the joined batch: {max(worst):.1e}; tolerance {TOLERANCE:.0e}"
)

# %%
# What the chapter says of the streams, as far as an order can tell, on each rank.


def holds(kernels, ended):
    """Statement → whether the order of this rank's launches, starts and ends agrees."""
    sums = [k for k in kernels if k["nccl"]]
    others = [k for k in kernels if not k["nccl"]]
    streams = {k["stream"] for k in sums}
    behind = [k for k in others if k["launched"] >= ended]
    return {
        "NCCL's kernels have a stream, and share it with no other": len(streams) == 1
        and not any(k["stream"] in streams for k in others),
        "they run in a row, in the order of the launches": all(
            a["end"] <= b["start"] for a, b in pairwise(sums)
        ),
        "A: each begins after what was launched before it": all(
            k["start"] >= other["end"]
            for k in sums
            for other in others
            if other["launched"] < k["launched"]
        ),
        "B: what follows the backward begins after the last sum": bool(sums and behind)
        and min(k["start"] for k in behind) >= max(k["end"] for k in sums),
    }


verdicts = [holds(kernels, ended) for kernels, _, ended in steps]
for statement in verdicts[0]:
    seen = ", ".join("yes" if one[statement] else "no" for one in verdicts)
    print(f"{statement:57} {seen}")

# %%

# drawing
kernels, began, ended = steps[0]
drawn = [k for k in kernels if k["launched"] >= began]
moments = sorted({k[what] for k in drawn for what in ("launched", "start", "end")})
at = {moment: place for place, moment in enumerate(moments)}
sending = {k["stream"] for k in drawn if k["nccl"]}
streams = sorted(
    {k["stream"] for k in drawn}, key=lambda stream: (stream in sending, str(stream))
)
fig, ax = subplots(height_in=2.6)
describe(fig, "Launches on the host above the kernels of each stream, in their order")
for k in drawn:
    color = ACCENT if k["nccl"] else RANK_COLORS[0] if k["launched"] < ended else MUTED
    row, start, end = 1 + streams.index(k["stream"]), at[k["start"]], at[k["end"]]
    ax.plot([at[k["launched"]]] * 2, [-0.3, 0.3], color=color, lw=1.2)
    ax.broken_barh([(start, end - start)], (row - 0.35, 0.7), color=color, lw=0)
    if k["nccl"]:
        ax.plot([at[k["launched"]], start], [0.3, row - 0.35], color=ACCENT, lw=0.8)
        if end - start > 0.04 * len(moments):  # the others are too thin for a number
            label(ax, (start + end) / 2, row, f"{k['bytes'] / MIB:.3g}", color="white")
name_rows(ax, ["host", *(f"stream {stream}" for stream in streams)])
ax.set_xticks([])
turns = ": two ranks take turns on one card" if shared else ""
ax.set_xlabel(f"order only{turns}", color=INK)
ax.set_title("Rank 0: backward blue, NCCL violet with its MiB, optimizer grey")

# %%
# Takeaway
# --------

counts = [sum(k["nccl"] for k in kernels) for kernels, _, _ in steps]
agree = sum(all(one[statement] for one in verdicts) for statement in verdicts[0])
print(
    f"{len(predicted)} buckets, {counts} NCCL kernels on the ranks, {sum(matches)} of {len(matches)} as predicted."
)
print(f"Of {len(verdicts[0])} statements about the streams, {agree} hold on all ranks.")
print(
    "The gradients are those of the joined batch:", "yes" if max(worst) < TOLERANCE else "no"
)
record(buckets=len(predicted), kernels=counts[0], matches=sum(matches), compared=len(matches))
record(streams=len({k["stream"] for k in steps[0][0] if k["nccl"]}), statements=agree)
record(difference=max(worst))

# %%
# Change it: predict, then run
# ----------------------------
# Set ``CAP_MIB`` to 1. How many NCCL kernels does a step have, and how many are launched when the backward has no kernel left to launch?
#
# What this does not mean
# -----------------------
# That the all-reduce is hidden: an order says what may run side by side, not how long it does.
# Two ranks that share a card also share its multiprocessors and take turns, which no training job should.
#
# Say it aloud
# ------------
# "Each bucket is one NCCL kernel, with the bucket's bytes, on a stream that NCCL has for itself.
# It is launched in the middle of the backward, behind the gradients that it sends, and the optimizer waits for the last one."
