"""
Overlap on and off
==================

How much time does it save that buckets travel while the backward computes, and how much could it save at most?
This lab sends the same buckets over the same link, once during the backward and once after it, and compares both with a bound.
It serves :ref:`performance-overlap-lab`.

Computing and sending can run at the same time, but a bucket leaves only when it is full.
The longer of the two always remains; what overlap hides is at most the shorter.

:Level: core, 15 minutes
"""

# %%
# The same buckets, later
# -----------------------
# DDP calls a communication hook when a bucket is complete, and wants a future.
# A hook may start the transfer at once, or hold the bucket back until the last one is complete, when nothing is left to compute.
# That is all that *off* does.

import statistics

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.over_link import over_link, timed_step
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.apparatus.sleeping import SleepingLayers
from ddplab.costmodel import Link, bucketed, equal_layers, simulate_step

BUCKETS, NBYTES, BACKWARD_S, ROUNDS = 8, 2**13, 40e-3, 7
LINKS_S = (20e-3, 40e-3, 60e-3, 80e-3)  # what the link needs for all buckets


HELD_BACK = []  # buckets, and the futures that DDP waits for


def at_once(link, bucket):
    return link.all_reduce(bucket.buffer().mul_(1 / dist.get_world_size()))


def afterwards(link, bucket):
    future = torch.futures.Future()
    HELD_BACK.append((bucket.buffer().mul_(1 / dist.get_world_size()), future))
    if bucket.is_last():
        for buffer, waiting in HELD_BACK:
            done = link.all_reduce(buffer)
            done.then(lambda done, waiting=waiting: waiting.set_result(done.value()))
        HELD_BACK.clear()
    return future


# %%
# For each link, the two take turns on the same ranks.
# A layer of the model is a bucket; it sleeps instead of computing, so computing and transfers do not compete for cores.


def worker(links_s):
    models, batch = {}, torch.ones(1)
    for name, hook in (("off", afterwards), ("on", at_once)):
        model = SleepingLayers(BUCKETS, NBYTES, 0, BACKWARD_S / BUCKETS)
        models[name] = over_link(model, batch, hook, bucket_cap_mb=NBYTES / 2**20)
    seen = {(seconds, name): [] for seconds in links_s for name in models}
    for _ in range(ROUNDS):
        for (seconds, name), runs in seen.items():
            ddp, link = models[name]
            link.bytes_per_s = BUCKETS * NBYTES / seconds
            runs.append(timed_step(ddp, link, batch))
        gradients = [[p.grad.clone() for p in ddp.parameters()] for ddp, _ in models.values()]
        assert all(map(torch.equal, *gradients))  # only the time is different
    return seen


# %%
# A bound, before the run
# -----------------------
# Let the backward compute for :math:`b` and the link need :math:`C` for all buckets.
# Without overlap the backward lasts :math:`b + C`.
# With overlap, it never lasts less than :math:`\max(b, C)`, since each of the two has to happen.
# So overlap saves at most :math:`b + C - \max(b, C) = \min(b, C)`: it can halve the time, and no more.

ready = equal_layers(BUCKETS, NBYTES, BACKWARD_S)
plan = bucketed(ready, NBYTES)


def predict(seconds, overlap):
    link = Link(0, BUCKETS * NBYTES / seconds, 2, "link")
    return 1e3 * simulate_step(0, ready, plan, link, overlap=overlap).step_s


seen = launch(worker, 2, LINKS_S)[0]
saved = {}
print("computing  sending |   after  predicted | during  predicted  bound |  saved   at most")
for seconds in LINKS_S:
    off, on = (statistics.median(1e3 * t for t, _ in seen[seconds, n]) for n in ("off", "on"))
    for whole, sent in seen[seconds, "off"] + seen[seconds, "on"]:
        assert whole > max(BACKWARD_S, seconds) - 1e-6  # noise can only add
        assert [nbytes for nbytes, _, _ in sent] == [NBYTES] * BUCKETS  # the same buckets
    b, c = 1e3 * BACKWARD_S, 1e3 * seconds
    saved[c / b] = off - on
    row = f"{b:6.0f} ms{c:6.0f} ms |{off:5.1f} ms{predict(seconds, False):8.1f} ms |"
    row += f"{on:4.1f} ms{predict(seconds, True):8.1f} ms{max(b, c):4.0f} ms |"
    print(f"{row}{off - on:4.1f} ms{min(b, c):6.0f} ms")
    if b == c:
        record("ms", off=off, on=on, saved=off - on)
        record("%", saved_share=100 * (1 - on / off))

# %%
# Above, both timelines where computing and sending need the same time; below, what overlap saved for each link.

# drawing
fig, (times, ax) = subplots(2, 1, height_in=4.6, height_ratios=(1, 1.3))
describe(fig, "Timelines of a backward without and with overlap, and what overlap saves")
for y, name in ((1, "off"), (0, "on")):
    whole, sent = sorted(seen[BACKWARD_S, name])[ROUNDS // 2]
    times.barh(y + 0.19, 1e3 * BACKWARD_S, 0.34, color=MUTED)
    free = 0.0
    for _, launched, done in sent:
        start, free = 1e3 * max(launched, free), done
        times.barh(y - 0.19, 1e3 * done - start, 0.34, start, color=ACCENT, ec="white", lw=1)
    times.plot([1e3 * whole] * 2, [y - 0.4, y + 0.4], color=INK, lw=1, ls="--")
times.set_yticks((1, 0), ("after", "during"))
times.set(xlabel="time since the backward began (ms)", xlim=0)
times.set_title("gray: computing · filled: a bucket travels · dashed: the end", fontsize=9.5)

shares = [i / 50 for i in range(121)]
most = [1e3 * BACKWARD_S * min(1, x) for x in shares]
ax.plot(shares, most, color=INK, lw=1, label="bound: the smaller of both")
less = [y * (1 - 1 / BUCKETS) for y in most]
ax.plot(shares, less, color=INK, lw=1, ls=":", label="with eight buckets: ⅞ of it")
ax.plot(saved.keys(), saved.values(), "o", color=ACCENT, label="measured")
ax.set(xlabel="sending ÷ computing", ylabel="saved (ms)", xlim=0, ylim=(0, 46))
ax.legend(fontsize=8.5, loc="lower right")

# %%
# What to notice
# --------------
#
# - Overlap saves most where computing and sending take equally long: :measured:`overlap-on-and-off.off:.0f` become :measured:`overlap-on-and-off.on:.0f`, which is :measured:`overlap-on-and-off.saved_share:.0f` less, of a possible 50 %.
#   (*Saved* is a difference of two measurements, so it carries the noise of both.)
# - With eight equal buckets an eighth of the smaller one cannot be saved: until the first bucket is full there is nothing to send, and after the last one nothing is left to compute.
# - A link that is four times faster, or twice slower, gains less from overlap: one of the two is short, and only the shorter one can be hidden.
# - The gradients are equal bit for bit in both cases, and so are the transfers.
#
# What this does not mean
# -----------------------
#
# That hidden communication costs nothing: these layers sleep.
# Where sending needs the same cores or memory as computing, :doc:`plot_20_predict_then_measure` shows by how much both get longer.
#
# Change it: predict, then run
# ----------------------------
# Set ``BUCKETS`` to 2.
# How much of the possible saving is left?
#
# Expect: about half, because one bucket of two has nothing to hide behind.
#
# Say it aloud
# ------------
# "Overlap hides sending behind the backward, so it saves at most the shorter of the two.
# The first bucket's computing and the last bucket's transfer cannot be hidden.
# More buckets hide more, and pay more latencies."
