"""
The prediction on a real network
================================

Does the prediction hold when the link is not emulated by a hook?
Here the kernel shapes what each of several machines sends, real sockets carry real bytes, and gloo reduces them.
Latency and rate are fitted to a few all-reduces; then DDP's steps are predicted, and only then measured.
It serves :ref:`performance-validation`.

:Level: evidence, 10 minutes
"""

# %%
# The program
# -----------
# Every machine runs one rank of this program, which does a task as soon as a file of that name exists.
# ``fit`` times all-reduces of several sizes, issued as DDP does: several at once, one after the other.
# ``steps`` times steps of DDP for several bucket caps.
# The layers compute by sleeping (``ddplab.apparatus.sleeping``), so that all ranks fit on the cores of one host.
#
# .. literalinclude:: /../gallery/ddplab/apparatus/shaped_steps.py
#    :language: python
#    :start-at: def timed

import json
import tempfile
from pathlib import Path
from statistics import mean, median

from ddplab import record
from ddplab.apparatus import shaped_steps
from ddplab.apparatus.machines import machines, torchrun
from ddplab.apparatus.plotting import RANK_COLORS, describe, log_axis, subplots
from ddplab.buckets import MIB
from ddplab.costmodel import bucketed, equal_layers, fit_link, simulate_step

LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S = 12, 2**16, 2e-3, 5e-3
SIZES, AT_ONCE = [2**n for n in range(16, 20)], 3  # bytes, all-reduces
CAPS = (0.06, 0.12, 0.25, 0.75)  # MiB
WARM, ROUNDS = 2, 5

PROGRAM = "--no-python", "python", shaped_steps.__file__
SETTINGS = {"sizes": SIZES, "at_once": AT_ONCE, "caps": CAPS, "warm": WARM, "rounds": ROUNDS}
SETTINGS["layers"] = LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S

# %%
# Fit, predict, measure
# ---------------------
# The predictions are made and kept before the ranks run a single step.
# The computing time of a step is known, so nothing has to be profiled.

GRADIENTS = equal_layers(LAYERS, LAYER_BYTES, LAYERS * BACKWARD_S)


def predict(link, cap):
    buckets = bucketed(GRADIENTS, int(cap * MIB))
    return 1e3 * simulate_step(LAYERS * FORWARD_S, GRADIENTS, buckets, link).step_s


def run(count, rates):
    with tempfile.TemporaryDirectory() as folder, machines(count) as (hosts, why_not):
        if why_not:
            return why_not
        tasks = [f"{what}-{rate}" for rate in rates for what in ("fit", "steps")]
        agents = torchrun(hosts, *PROGRAM, folder, json.dumps(SETTINGS), *tasks)

        def ask(task):
            """Per load, what the rounds took, in order."""
            Path(folder, task).touch()
            line = agents[0].wait_for(f"{task} took", timeout_s=90)
            rounds = json.loads(line.split(" took ")[1])
            return [sorted(took_s) for took_s in zip(*rounds, strict=True)]

        seen = {}
        for rate in rates:
            for host in hosts:
                host.rate(rate)
            took = zip(SIZES, ask(f"fit-{rate}"), strict=True)
            link = fit_link([(n, median(took_s) / AT_ONCE) for n, took_s in took], count)
            predicted = tuple(predict(link, cap) for cap in CAPS)
            seen[rate] = link, predicted, ask(f"steps-{rate}")
        return seen


loads = {}
for count, rates in {2: (50, 100), 4: (100,)}.items():
    seen = run(count, rates)
    if isinstance(seen, str):
        print(f"{count} machines: not run here: {seen}")
        continue
    loads.update({(count, rate): load for rate, load in seen.items()})

errors = []
for (count, rate), (link, predicted, measured) in loads.items():
    print(f"\n{count} machines, {rate} Mbit/s; fitted:", end=" ")
    print(f"{1e3 * link.latency_s:.2f} ms, {link.bytes_per_s * 8 / 1e6:.0f} Mbit/s")
    for cap, says, took_s in zip(CAPS, predicted, measured, strict=True):
        ms = 1e3 * median(took_s)
        errors.append(100 * (says / ms - 1))
        row = f"predicted {says:5.1f} ms, measured {ms:5.1f} ms, {errors[-1]:+5.1f} %"
        print(f"  cap {cap:4} MiB: {row}")
if errors:
    record("%", mean_error=mean(map(abs, errors)), worst_error=max(map(abs, errors)))
else:
    record(mean_error="not run here", worst_error="not run here")

# %%
# Lines are predictions, marks medians, bars all rounds.

# drawing
fig, ax = subplots(height_in=3.4)
describe(fig, "Step time over the bucket cap on shaped networks, predicted and measured")
looks, keys = zip(loads.items(), RANK_COLORS, "os^", ("-", "--", ":"), strict=False), []
for (_, (_, predicted, measured)), color, mark, dash in looks:
    low, middle, high = zip(*((t[0], median(t), t[-1]) for t in measured), strict=True)
    ms = [1e3 * m for m in middle]
    spans = [
        [1e3 * abs(a - b) for a, b in zip(middle, end, strict=True)] for end in (low, high)
    ]
    (line,) = ax.plot(CAPS, predicted, color=color, lw=1.4, ls=dash)
    look = {"yerr": spans, "capsize": 3, "lw": 1, "fmt": mark, "color": color, "ms": 5.5}
    keys.append((line, ax.errorbar(CAPS, ms, **look)))
if loads:
    names = [f"{count} machines, {rate} Mbit/s" for count, rate in loads]
    ax.legend(keys, names, fontsize=8.5, handlelength=4)
else:
    ax.text(0.3, 0.5, "not run here", transform=ax.transAxes)
log_axis(ax.xaxis, CAPS)
ax.set(xlabel="bucket cap (MiB)", ylabel="step (ms)", ylim=0)
ax.set_title("Predicted before, measured after")

# %%
# What to notice
# --------------
#
# - The mean error is :measured:`shaped-network.mean_error`, the worst :measured:`shaped-network.worst_error`, with a link that was fitted to single all-reduces and a schedule that was not fitted to anything.
# - The fitted rate is a little below the shaped one, because packets have headers; the latency is that of gloo and of this host's scheduler, because the shaper does not delay what is within its rate, and even lets the first bytes after a pause pass at once.
# - A real link is not served one bucket at a time: gloo works on two all-reduces at once (``Options::create_default`` in ``ProcessGroupGloo.cpp``), so part of the latency of many small buckets is hidden, which the model does not know.
#
# What this does not mean
# -----------------------
#
# That your cluster is this predictable: here no other traffic is on the network, all ranks compute for the same time, and no GPU shares its memory with the network card.
