"""
What accumulation does to communication
=======================================

If you accumulate over several micro-batches before you synchronize, which part of the step shrinks, and by how much?
The lab counts the all-reduces of a step exactly, and measures how long a step waits for them over a link that is slow on purpose.
It serves :ref:`from-scratch-training-run`.

Accumulation sends the same bytes per step and computes more samples in it.
Keep in mind: per step the communication stays, per sample it shrinks.

:Level: core, 15 minutes
"""

# %%
# A slow link, emulated
# ---------------------
# Ranks on one machine have no slow link, so a communication hook emulates one, ``ddplab.runtime.slowlink``: it starts the real all-reduce, and delivers the result only when a link of the given latency and rate would have delivered it.
# A bucket waits until the bucket before it has left the link.
# The numbers of bytes are real and small; the time they take is emulated.

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.runtime.clock import now, seconds, stamp
from ddplab.runtime.slowlink import SlowLink

LATENCY_S, BYTES_PER_S = 2e-3, 25e6

# %%
# Steps of k micro-batches
# ------------------------
# All micro-batches but the last run under ``no_sync``, forward and backward both.
# The link keeps a log, which counts the all-reduces.
# A step *computes* until its last gradient is ready, which a hook on each parameter stamps; from then to the return of ``backward()`` it *waits*.

LAYERS, WIDTH, MICRO_BATCH, RANKS = 6, 256, 256, 2
WARM, STEPS = 2, 7


def worker(k):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model = DistributedDataParallel(net.to(device()), bucket_cap_mb=0.25)
    link, ready, steps = SlowLink(LATENCY_S, BYTES_PER_S), [], []
    model.register_comm_hook(link, SlowLink.hook)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: ready.append(stamp()))
    batch = torch.randn(MICRO_BATCH, WIDTH).to(device())
    for _ in range(WARM + STEPS):
        dist.barrier()
        model.zero_grad()
        link.log.clear()
        now()
        begin = stamp()
        for micro in range(k):
            with model.no_sync() if micro < k - 1 else contextlib.nullcontext():
                (model(batch).square().mean() / k).backward()
        end = stamp()
        now()
        steps.append((seconds(begin, end), seconds(begin, ready[-1]), len(link.log)))
    return steps[WARM:]  # the first steps still have other buckets


# %%
# Per sample
# ----------
# Times are the shortest of rank 0's warm steps, because other load on the machine can only add to them.

print("       samples  all-reduces           ms per step     waiting,")
print("  k   per rank  per step  per sample  whole  waiting  share of step")
compute_us, waiting_us, per_sample = {}, {}, {}
for k in (1, 2, 4, 8):
    whole_s, computes_s, sent = zip(*launch(worker, RANKS, k)[0], strict=True)
    assert set(sent) == {LAYERS}  # one per layer, however many micro-batches
    whole, samples = min(whole_s), k * MICRO_BATCH
    waits = whole - min(computes_s)
    per_sample[k] = LAYERS / samples
    compute_us[k], waiting_us[k] = (1e6 * t / samples for t in (whole - waits, waits))
    counts = f"{k:3}  {samples:9}  {LAYERS:8}  {per_sample[k]:10.5f}"
    print(f"{counts}  {1e3 * whole:5.0f}  {1e3 * waits:7.0f}  {waits / whole:13.0%}")
    record("%", **{f"share_{k}": 100 * waits / whole})
    record("ms", **{f"waits_{k}": 1e3 * waits})
assert all(per_sample[k] * k == per_sample[1] for k in per_sample)
assert waiting_us[8] < waiting_us[1] / 4

# %%
# Each bar is the time that one sample costs.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots

fig, ax = subplots(height_in=3.4)
describe(fig, "Time per sample against the number of micro-batches, computing and waiting")
names = [str(k) for k in compute_us]
compute, waiting = list(compute_us.values()), list(waiting_us.values())
ax.bar(names, compute, color=MUTED, width=0.6)
ax.bar(names, waiting, bottom=compute, color=ACCENT, hatch="///", ec=INK, width=0.6)
for x, (low, high) in enumerate(zip(compute, waiting, strict=True)):
    ax.text(
        x,
        low + high,
        f"{high / (low + high):.0%} waiting",
        ha="center",
        va="bottom",
        fontsize=11,
    )
ax.set_xlabel(
    "micro-batches per step · grey: computing · hatched: waiting for the link", fontsize=11
)
ax.set(ylabel="time per sample (µs)", ylim=(0, 1.1 * (compute[0] + waiting[0])))
ax.set_title("The same waiting is shared by more samples")

# %%
# What to notice
# --------------
# - The all-reduces per *step* stay the same, one per bucket; per *sample* they fall to exactly :math:`1/k`.
# - A step waits about as long as before, :measured:`accumulation-share.waits_1:.0f` with one micro-batch and :measured:`accumulation-share.waits_8:.0f` with eight, since the same bytes cross the same link.
#   It computes for :math:`k` times as many samples meanwhile, so the share of waiting falls from :measured:`accumulation-share.share_1:.0f` to :measured:`accumulation-share.share_8:.0f`.
# - Only the last micro-batch has a backward to hide communication behind, so overlap gains no more for :math:`k = 8` than for :math:`k = 1`.
#
# What this does not mean
# -----------------------
# That accumulation makes an update cheaper: each covers :math:`k` times the samples, which is a different batch size that needs a different learning rate.
# Nor that your job has these shares: the link is chosen slow enough to matter.
#
# Change it: predict, then run
# ----------------------------
# Make the link slower to answer: ``LATENCY_S, BYTES_PER_S = 22e-3, 25e6``.
# By how many times the additional latency does the waiting grow, and does that depend on k?
#
# Expect: by five to six, nearly one per bucket, because this link carries one message after the other, and about as much for every k.
#
# Say it aloud
# ------------
# "With k micro-batches per step I send one k-th of the messages per sample, and the waiting per step stays what it was.
# So the share of waiting falls.
# The step trains on a batch k times as large, with fewer updates per epoch, and only its last micro-batch can overlap with communication."
