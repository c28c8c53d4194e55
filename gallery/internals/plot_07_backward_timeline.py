"""
A backward pass, as a timeline
==============================

When does each gradient become ready, when does its bucket start to travel, and when has it arrived?
This lab takes a time stamp of all three on every rank, for the first iteration and for a warm one, and draws them.
It serves :ref:`internals-backward`.

Overlap means that the first buckets travel while the backward still computes the other gradients.
Keep in mind: only what ends after the last gradient costs time, and that is called exposed.

:Level: deep, 20 minutes
"""

import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.runtime.clock import now, seconds, stamp

LAYERS, WIDTH, BATCH, STEPS, RANKS = 8, 1024, 384, 6, 2  # 8 gradients of 4 MiB each

# %%
# Three stamps
# ------------
# A ``stamp()`` is a clock reading on a CPU and an event in the current stream on a GPU, where the host runs ahead; ``now()`` waits for all of them.
# *Ready* comes from a hook on each parameter, *launched* from a communication hook, *done* from its future.
# The communication hook does what DDP does without one: it divides by the number of ranks and sums over them.


def all_reduce_with_stamps(stamps, bucket):
    def arrived(future):
        stamps["done"][bucket.index()] = stamp()  # buckets need not arrive in order
        return future.value()[0]

    stamps["launched"].append(stamp())
    stamps["done"].append(None)
    mine = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(mine, async_op=True).get_future().then(arrived)


# %%
# The worker
# ----------
# A plain copy of the model takes turns with the stamped one, so that the cost of observing is measured too.


def build():
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    return DistributedDataParallel(nn.Sequential(*layers).to(device()), bucket_cap_mb=4)


def one_backward(ddp, batch):
    loss = ddp(batch).square().mean()
    dist.barrier()  # so that the backward starts at the same moment on all ranks
    start = stamp()
    loss.backward()
    return start, stamp()


def worker():
    batch = torch.randn(BATCH, WIDTH, device=device())
    plain, stamped, stamps = build(), build(), {}
    stamped.register_comm_hook(stamps, all_reduce_with_stamps)
    for parameter in stamped.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: stamps["ready"].append(stamp()))
    timelines, plain_ms = [], []
    for _ in range(STEPS):
        stamps.update(ready=[], launched=[], done=[])
        start, end = one_backward(stamped, batch)
        plain_span = one_backward(plain, batch)
        now()
        plain_ms.append(1e3 * seconds(*plain_span))
        stamps["end"] = [end]
        timelines.append(
            {k: [1e3 * seconds(start, at) for at in v] for k, v in stamps.items()}
        )
    return timelines, plain_ms


ranks = launch(worker, RANKS)

# %%
# The first iteration and a warm one
# ----------------------------------
# The last gradient is ready when computing ends; what is left of the backward then is *exposed* communication.
# The warm iteration is the one of median length on rank 0; iteration 1 is left out, because its buckets are new.

stamped, plain_ms = ranks[0]
middle = sorted(range(2, STEPS), key=lambda step: stamped[step]["end"])[(STEPS - 2) // 2]
print("rank 0         buckets   first launch   last gradient   backward returns   exposed")
for name, step in (("iteration_0", 0), ("warm", middle)):
    seen = stamped[step]
    first, last, (end,) = seen["launched"][0], seen["ready"][-1], seen["end"]
    times = f"{first:12.1f} ms{last:13.1f} ms{end:16.1f} ms{end - last:7.1f} ms"
    print(f"{name:11}{len(seen['launched']):11}{times}")
    record(unit="ms", **{f"{name}_first_launch": first, f"{name}_backward": end})
    record(unit="ms", **{f"{name}_exposed": end - last})
for timelines, _ in ranks:
    first, warm = timelines[0], timelines[middle]
    assert len(first["launched"]) == 1  # one bucket, and it starts after the last gradient
    assert first["launched"][0] > first["ready"][-1]
    assert len(warm["launched"]) == LAYERS  # one bucket per layer, and the first starts early
    assert warm["launched"][0] < warm["ready"][1]

# %%
# Each row is a gradient, in the order in which they became ready.
# A dot marks the moment it was ready, the thin line its wait, and the bar its bucket on the way.

# drawing
from ddplab.apparatus.plotting import INK, MUTED, RANK_COLORS, subplots

fig, axes = subplots(2, RANKS, height_in=4.6, sharex=True, sharey=True)
for step, row in zip((0, middle), axes, strict=True):
    for rank, (ax, (timelines, _)) in enumerate(zip(row, ranks, strict=True)):
        seen = timelines[step]
        per_bucket = LAYERS // len(seen["launched"])
        for gradient, ready in enumerate(seen["ready"]):
            launched = seen["launched"][gradient // per_bucket]
            ax.plot([ready, launched], [gradient, gradient], color=MUTED, lw=1)
            ax.plot(ready, gradient, "o", ms=5, color=INK, zorder=3)
        for bucket, launched in enumerate(seen["launched"]):
            y, travels = (bucket + 0.5) * per_bucket - 0.5, seen["done"][bucket] - launched
            place = {"height": per_bucket - 0.3, "left": launched}
            ax.barh(y, travels, **place, color=RANK_COLORS[rank], alpha=0.75)
        ax.axvline(*seen["end"], color=INK, lw=1, ls="--")
        buckets = "a bucket each" if step else "one bucket"
        ax.set_title(f"rank {rank}, iteration {step}: {buckets}")
    row[0].set(ylabel="gradient, as ready", ylim=(LAYERS - 0.4, -0.6), yticks=range(LAYERS))
for ax in axes[-1]:
    ax.set(xlabel="time since backward began (ms)")
key = "dot: gradient ready · line: it waits · bar: its bucket travels · dashed: backward ends"
fig.supxlabel(key, fontsize=9.5)

# %%
# What observing changes
# ----------------------
# With a communication hook, dividing by the number of ranks is a separate pass over the bucket; without one, DDP divides while it copies a gradient into the bucket.
# The stamps also run Python in the autograd thread, and in the thread that communicates.

with_ms = statistics.median(seen["end"][0] for seen in stamped[2:])
without_ms = statistics.median(plain_ms[2:])
record(unit="ms", with_stamps=with_ms, without_stamps=without_ms)
print(f"backward on rank 0, median of {STEPS - 2} iterations:")
print(f"{with_ms:.1f} ms with stamps, {without_ms:.1f} ms without")

# %%
# What to notice
# --------------
# * In iteration 0 all gradients share one bucket, so nothing travels before the last gradient: the first launch comes after :measured:`backward-timeline.iteration_0_first_launch`, and :measured:`backward-timeline.iteration_0_exposed` are exposed.
# * In the warm iteration the first bucket leaves after :measured:`backward-timeline.warm_first_launch`, while the other layers still compute, and :measured:`backward-timeline.warm_exposed` are exposed.
# * No rank finishes a bucket before the slowest rank has launched it, so a bar also contains waiting for a peer.
#
# What this does not mean
# -----------------------
# Overlap does not make communication free.
# On CPU ranks it uses the cores that compute, so a gradient can become ready later than it would without communication.
# The bars show when a bucket was launched and done, not when its bytes were on the wire.
#
# Change it: predict, then run
# ----------------------------
# Set ``bucket_cap_mb=16``, four gradients per bucket.
# How many buckets does the warm iteration have, and after which gradient does the first one leave?
#
# Expect: two, and the first leaves with the fourth gradient, so its launch comes much later in the table; the assertion that each layer has a bucket of its own fails.
#
# Say it aloud
# ------------
# "A bucket leaves as soon as its last gradient is ready, so most of the communication runs beside the backward.
# What counts is the exposed rest: at least the last bucket, which is full only when computing is over.
# Smaller buckets make that rest shorter and add messages, and on a CPU the transfer also takes cores from the backward."
