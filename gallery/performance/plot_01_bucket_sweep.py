"""
The bucket sweep
================

Why is a step slow with one bucket and slow with one per layer, and fast somewhere between?
This lab computes what each number of buckets costs, draws it, and only then measures.
It serves :ref:`performance-buckets`.

Each bucket pays the latency once, and the first leaves when it is full.
Fewer buckets leave the link idle for longer, more pay the latency more often.

:Level: core, 15 minutes
"""

# %%
# Three costs
# -----------
# Twenty-four equal layers compute for 48 ms in their backward, and the link needs 48 ms for their bytes and 2 ms for each transfer.
# With :math:`k` buckets the link waits for the first one, :math:`48/k` ms; then it is busy until the end, for :math:`2k` ms of latency and 48 ms of bytes.
# Their sum is the formula of :ref:`performance-overlap`; ``simulate_step`` does not know that formula and simulates the step event by event.

import statistics

import torch

from ddplab import launch, record
from ddplab.apparatus.over_link import over_link, timed_step
from ddplab.apparatus.plotting import (
    ACCENT,
    INK,
    MUTED,
    RANK_COLORS,
    describe,
    log_axis,
    subplots,
)
from ddplab.apparatus.sleeping import SleepingLayers
from ddplab.buckets import MIB
from ddplab.costmodel import Link, bucketed, equal_layers, simulate_step

LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S = 24, 2**16, 6e-3, 48e-3
LATENCY_S, BYTES_S = 2e-3, 48e-3
RATE = LAYERS * LAYER_BYTES / BYTES_S
COUNTS = (1, 2, 3, 4, 6, 8, 12, 24)  # numbers of buckets
CAPS = {k: LAYERS // k * LAYER_BYTES / MIB for k in COUNTS}  # in MiB, as bucket_cap_mb

gradients = equal_layers(LAYERS, LAYER_BYTES, BACKWARD_S)
link, predicted = Link(LATENCY_S, RATE, 2, "link"), {}
print("   cap in   buckets |  link idle +  latency +  bytes  = backward |  step")
for k in COUNTS:
    buckets = bucketed(gradients, int(CAPS[k] * MIB))
    step = predicted[k] = simulate_step(FORWARD_S, gradients, buckets, link)
    parts = [1e3 * s for s in (BACKWARD_S / k, k * LATENCY_S, BYTES_S)]
    assert len(buckets) == k
    assert abs(step.step_s - FORWARD_S - sum(parts) / 1e3) < 1e-9  # simulation = formula
    idle, latency, nbytes = (f"{ms:.1f} ms" for ms in parts)
    cells = f"{CAPS[k]:7.4f} MiB {k:7}  |{idle:>11}{latency:>12}{nbytes:>9}"
    print(f"{cells}{sum(parts):8.1f} ms |{1e3 * step.step_s:6.1f} ms")
best = min(COUNTS, key=lambda k: predicted[k].step_s)
record(predicted_best=best)

# %%
# The prediction
# --------------
# Two of the three costs depend on the number of buckets: one falls and one rises.

# drawing


def draw(title):
    fig, ax = subplots(height_in=3.0)
    describe(fig, f"Backward time against the number of buckets, in parts: {title}")
    dense = [1 + i / 8 for i in range(8 * LAYERS - 7)]
    layers = [1e3 * BYTES_S] * len(dense), [2 * k for k in dense], [48 / k for k in dense]
    ax.stackplot(dense, *layers, colors=[MUTED, RANK_COLORS[4], ACCENT], alpha=0.4)
    says = [1e3 * (predicted[k].step_s - FORWARD_S) for k in COUNTS]
    ax.plot(COUNTS, says, "_", color=INK, ms=14, mew=1.8, label="predicted")
    for x, y, text in (4.5, 24, "bytes"), (15, 60, "latency"), (1.35, 66, "link idle"):
        ax.text(x, y, text, ha="center")
    log_axis(ax.xaxis, COUNTS)
    ax.set(xlabel="buckets (log scale)", ylabel="backward (ms)", title=title)
    ax.set(ylim=(0, 112), xlim=(0.95, 25.3))
    return ax


draw("Predicted, before any run").legend(fontsize=8.5, loc="lower left")

# %%
# Measure
# -------
# There is one model per cap, and the caps take turns, so that a busy moment of the machine hits all of them alike.
# ``over_link`` wraps a model in DDP over an emulated link and takes the first steps, until DDP has rebuilt its buckets; ``timed_step`` times one step and reads the link's log; without its forward, that is the backward.
# ``first`` is when the first bucket was launched, ``busy`` how long transfers occupied the link.


def worker(caps, rounds):
    models, batch = {}, torch.ones(1)
    for k, cap in caps.items():
        model = SleepingLayers(LAYERS, LAYER_BYTES, FORWARD_S / LAYERS, BACKWARD_S / LAYERS)
        ddp, link = over_link(model, batch, bucket_cap_mb=cap)
        link.latency_s, link.bytes_per_s = LATENCY_S, RATE
        models[k] = ddp, link, []
    for _ in range(rounds):
        for ddp, link, seen in models.values():
            whole, log = timed_step(ddp, link, batch)
            free, busy = 0.0, 0.0
            for sent in log:
                free, busy = sent.done_s, busy + sent.done_s - max(sent.launched_s, free)
            times = whole - FORWARD_S, log[0].launched_s - FORWARD_S, busy
            seen.append((times, [sent.nbytes for sent in log]))
    return {k: seen for k, (_, _, seen) in models.items()}


backward, errors = {}, []
print("buckets   first launched    link busy     backward   predicted    error")
for k, seen in launch(worker, 2, CAPS, 5)[0].items():
    times, sent = zip(*seen, strict=True)
    assert list(sent) == [[t.nbytes for t in predicted[k].timeline]] * len(sent)
    whole, first, busy = (1e3 * statistics.median(c) for c in zip(*times, strict=True))
    says = 1e3 * (predicted[k].step_s - FORWARD_S)
    backward[k], error = whole, 100 * (says / whole - 1)
    errors.append(abs(error))
    row = f"{k:7}{first:14.1f} ms{busy:10.1f} ms{whole:10.1f} ms{says:9.1f} ms"
    print(f"{row}{error:+7.1f} %")
    if k in (1, LAYERS):
        values = {"backward": whole, "first": first, "busy": busy}
        record("ms", **{f"{'one' if k == 1 else 'most'}_{n}": ms for n, ms in values.items()})
record("%", mean_error=statistics.mean(errors), worst_error=max(errors))
record(measured_best=min(backward, key=backward.__getitem__))
record("ms", best_backward=min(backward.values()))

# %%
# The same drawing, with what was measured.

# drawing
ax = draw("Predicted and measured")
look = {"color": ACCENT, "ms": 5, "mec": "white", "label": "measured"}
ax.plot(backward.keys(), backward.values(), "o", **look)
ax.legend(fontsize=8.5, loc="lower left")

# %%
# What to notice
# --------------
#
# - With one bucket the link idles for the whole backward and works afterwards: nothing overlaps.
#   With 24 it starts at once, and pays its latency 24 times; the sum is about the same.
# - The link is the bottleneck here, so its bytes are in every bar; no cap removes them.
# - Near the lowest point the curve is flat: 4, 6 and 8 buckets differ by little, and the predicted best is :math:`\sqrt{48/2} \approx 4.9`.
# - The prediction, which knows nothing of the run, is off by :measured:`bucket-sweep.mean_error:.1f` on average, and by :measured:`bucket-sweep.worst_error:.1f` at worst.
#
# What this does not mean
# -----------------------
#
# That your U-shaped curve is as deep or as symmetric: with a faster link the left end falls, because less is left to hide, and with less latency the right end does.
# Nor that a cap can have any number of buckets: it counts whole tensors, and here all are equal.
#
# Change it: predict, then run
# ----------------------------
# Set ``LATENCY_S`` to 8e-3, four times as long.
# Where does the lowest point go?
#
# Expect: to two or three buckets, half as many, as the square root says; only the drawing's colored parts keep the old latency.
#
# Say it aloud
# ------------
# "One bucket cannot overlap, and one per layer pays each latency, so the time is a U.
# At its minimum the wait for the first bucket equals all latencies together.
# Larger buckets save latency, smaller ones start earlier."
