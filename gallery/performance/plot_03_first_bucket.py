"""
First bucket, last bucket
=========================

Which bucket gets which cap, and what do you gain by making one bucket smaller than the others?
This lab reads buckets back for several options, and then times three layouts on a slow and on a fast link.
It serves :ref:`performance-first-bucket`.

A step ends when the link is done: a slow link should begin early, a fast one should have little left.
So the first bucket matters where the link limits the step, and the last where computing does.

:Level: deep, 15 minutes
:Proves: perf-cap-list-counts-from-the-first-to-leave perf-cap-list-from-the-other-end perf-cap-list-wins cap-list-shapes-the-first-backward unused-never-rebuilds
"""

# %%
# Who sets which cap
# ------------------
# Forty layers of 0.5 MiB, 20 MiB in all.
# DDP logs what it reduced in the first backward, and what it has reduced since the buckets were rebuilt.
# Both must equal what torch's own rule gives for the caps in ``OPTIONS``.

import torch
from torch.nn.parallel import DistributedDataParallel

from ddplab import launch, record
from ddplab.apparatus.over_link import over_link, timed_step
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, name_rows, subplots
from ddplab.apparatus.sleeping import SleepingLayers
from ddplab.buckets import MIB
from ddplab.costmodel import Link, equal_layers, simulate_step
from ddplab.runtime.torch_private import ddp_facts, torch_assign

ALL = 1000  # a cap in MiB that nothing reaches


def read_back(options):
    """Per entry of ``options``: the buckets in MiB of the first backward, and those after the rebuild."""
    read = []
    for some in options:
        ddp = DistributedDataParallel(SleepingLayers(40, MIB // 2, 0, 0), **some)
        for _ in range(4):
            ddp(torch.ones(1)).sum().backward()
        facts = ddp_facts(ddp)
        logged = (facts.get(f"{when}bucket_sizes", "") for when in ("", "rebuilt_"))
        read.append([[int(n) / MIB for n in sizes.split(",") if n] for sizes in logged])
    return read


def assigned(caps_mib):
    """The buckets, in MiB, that torch's rule makes of forty layers of 0.5 MiB; the last cap repeats."""
    weights = [torch.empty(MIB // 8) for _ in range(40)]
    return [len(b) / 2 for b in torch_assign(weights, [int(cap * MIB) for cap in caps_mib])]


OPTIONS = [  # options; caps of the first backward, from its end; caps afterwards, from the start
    ({}, [ALL], [1, 25]),
    ({"bucket_cap_mb": 25}, [ALL], [25]),
    ({"bucket_cap_mb": 6}, [ALL], [6]),
    ({"bucket_cap_mb_list": [1, 6]}, [1, 6], [1, 6]),
    ({"bucket_cap_mb_list": [6, 6, 6, 1]}, [6, 6, 6, 1], [6, 6, 6, 1]),
    ({"bucket_cap_mb_list": [1, 6], "bucket_cap_mb": 3}, [1, 6], [1, 6]),
    ({"bucket_cap_mb_list": [], "bucket_cap_mb": 6}, [ALL], [6]),
    ({"bucket_cap_mb_list": [2, 20], "find_unused_parameters": True}, [2, 20], None),
]
print(f"{'option':48}{'first backward':>15} {'afterwards (MiB)':>18}")
read = launch(read_back, 2, [options for options, _, _ in OPTIONS], quiet=True)[0]
for (options, first_caps, caps), (first, later) in zip(OPTIONS, read, strict=True):
    assert first == assigned(first_caps)[::-1]  # packed as registered, then reversed
    assert later == (assigned(caps) if caps else [])
    name = ", ".join(f"{k.removeprefix('bucket_')}={v}" for k, v in options.items()) or "none"
    each = (" ".join(f"{n:g}" for n in sizes) or "not rebuilt" for sizes in (first, later))
    print("{:48}{:>15} {:>18}".format(name, *each))

# %%
# Three layouts, two links
# ------------------------
# Twelve layers and 60 ms of backward, always in four buckets, so latency is the same.
# All have three layers, or they grow from one to five, or shrink from five to one.
# One link takes longer than the backward, the other less time; the predictions come first.

LAYERS, LAYER_BYTES, BACKWARD_S, ROUNDS = 12, 2**13, 60e-3, 5
LAYOUTS = {"equal": [3], "small first": [1, 2, 4, 5], "small last": [5, 4, 2, 1]}  # in layers
LINKS = {"slow": Link(1e-3, 1e6, 2, "link"), "fast": Link(1e-3, 3e6, 2, "link")}
gradients = equal_layers(LAYERS, LAYER_BYTES, BACKWARD_S)


def predict(caps, link):
    weights = [torch.empty(LAYER_BYTES // 4) for _ in range(LAYERS)]
    buckets = torch_assign(weights, [cap * LAYER_BYTES for cap in caps])
    return simulate_step(0, gradients, buckets, link)


def worker():
    models, seen, batch = {}, {}, torch.ones(1)
    for name, caps in LAYOUTS.items():
        model = SleepingLayers(LAYERS, LAYER_BYTES, 0, BACKWARD_S / LAYERS)
        caps_mib = [cap * LAYER_BYTES / MIB for cap in caps]
        models[name] = over_link(model, batch, bucket_cap_mb_list=caps_mib)
    for _ in range(ROUNDS):
        for speed, like in LINKS.items():
            for name, (ddp, link) in models.items():
                link.latency_s, link.bytes_per_s = like.latency_s, like.bytes_per_s
                seen.setdefault((speed, name), []).append(timed_step(ddp, link, batch))
    return seen


predicted = {(s, n): predict(LAYOUTS[n], LINKS[s]) for s in LINKS for n in LAYOUTS}
print("link   buckets        predicted     measured   first leaves   after computing")
seen, kept = launch(worker, 2)[0], {}
for (speed, name), step in predicted.items():
    for _, sent in seen[speed, name]:
        assert [nbytes for nbytes, _, _ in sent] == [t.nbytes for t in step.timeline]
    whole, sent = kept[speed, name] = sorted(seen[speed, name])[ROUNDS // 2]
    row = f"{speed:6} {name:12}{1e3 * step.step_s:9.1f} ms {1e3 * whole:9.1f} ms"
    print(f"{row}{1e3 * sent[0][1]:12.1f} ms{1e3 * (whole - BACKWARD_S):15.1f} ms")
    record("ms", **{f"{speed}_{name.replace(' ', '_')}": 1e3 * whole})

# %%
# Bars are measured transfers, dashed lines the predicted ends, and the gray line is the end of computing.

# drawing
fig, axes = subplots(1, 2, height_in=2.4, sharey=True)
describe(fig, "When each bucket travels: three layouts on a slow and on a fast link")
for ax, speed in zip(axes, LINKS, strict=True):
    for y, name in enumerate(LAYOUTS):
        free = 0.0
        for _, launched, done in kept[speed, name][1]:
            start, free = 1e3 * max(launched, free), done
            ax.barh(y, 1e3 * done - start, 0.5, start, color=ACCENT, ec="white", lw=1)
        end = 1e3 * predicted[speed, name].step_s
        ax.plot([end, end], [y - 0.4, y + 0.4], color=INK, lw=1.2, ls="--")
    ax.axvline(1e3 * BACKWARD_S, color=MUTED, lw=1)
    ax.set(xlabel="time since the backward began (ms)", title=f"{speed} link", xlim=0)
name_rows(axes[0], list(LAYOUTS))

# %%
# What to notice
# --------------
#
# - ``bucket_cap_mb=25`` is not the default: it removes the small first bucket.
# - A list wins over ``bucket_cap_mb``, unless it is empty, and its last cap is that of all further buckets.
# - Once buckets are rebuilt, a list counts from the first bucket that is sent.
#   In the first backward, and always with ``find_unused_parameters``, it counts from the other end.
# - On the slow link the step ends when the link is done, so it matters when the link *begins*: the small first bucket wins, :measured:`first-bucket.slow_small_first:.0f` against :measured:`first-bucket.slow_equal:.0f`.
# - On the fast link the link waits for buckets, so it matters what is *left* at the end: the small last bucket wins, :measured:`first-bucket.fast_small_last:.0f` against :measured:`first-bucket.fast_equal:.0f`.
#
# What this does not mean
# -----------------------
#
# That you should write lists: the gain is at most the time that the first bucket waits, or that the last one travels, and a list is right for one model in one order of layers.
#
# Change it: predict, then run
# ----------------------------
# Give the fast link ten times its rate, ``30e6``.
# How far apart are the layouts?
#
# Expect: hardly at all; little is left to send.
#
# Say it aloud
# ------------
# "By default DDP makes only the first bucket small, so that the link starts early.
# A list shapes all of them: small first for slow links, small last for fast ones.
# It gains at most one bucket's wait or transfer, and has to follow the model."
