"""
The prediction on a real network
================================

Does the prediction hold when the link is not made up?
Here the kernel shapes what each of several machines sends, real sockets carry real bytes, and gloo reduces them.
Latency and rate are fitted to a few all-reduces; then DDP's steps are predicted, and only then measured.
It serves :ref:`performance-validation`.
"""

# %%
# The program
# -----------
# Every machine runs one rank of this program, which waits to be told what to do next, by a file of that name.
# ``fit`` times all-reduces of several sizes, each as DDP issues them: several at once, one behind the other.
# ``steps`` times steps of DDP for several bucket caps.
# The layers compute by sleeping (``ddplab.labs.sleeping``), so that all ranks fit on the cores of one host.

import json
import tempfile
from pathlib import Path
from statistics import mean, median

from ddplab import record
from ddplab.buckets import MIB
from ddplab.costmodel import bucketed, equal_layers, fit_link, simulate_step
from ddplab.labs.machines import machines, torchrun
from ddplab.labs.plotting import RANK_COLORS, describe, subplots

LAYERS, LAYER_BYTES, FORWARD_S, BACKWARD_S = 12, 2**16, 2e-3, 5e-3
SIZES, AT_ONCE = [2**n for n in range(16, 20)], 3  # bytes, all-reduces
CAPS = (0.06, 0.12, 0.25, 0.75)  # MiB
WARM, ROUNDS = 2, 5

PROGRAM = f"""
import json, os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddplab.labs.sleeping import SleepingLayers

def slower(began):
    took_s = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return took_s.item()

def all_reduces(tensors):
    dist.barrier()
    began = time.perf_counter()
    for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()
    return slower(began) / {AT_ONCE}

def step(ddp):
    dist.barrier()
    began = time.perf_counter()
    ddp(torch.ones(1)).sum().backward()
    return slower(began)

def model(cap):
    layers = SleepingLayers({LAYERS}, {LAYER_BYTES}, {FORWARD_S}, {BACKWARD_S})
    return DDP(layers, bucket_cap_mb=cap)

dist.init_process_group("gloo")
for task in sys.argv[2:]:
    while not os.path.exists(sys.argv[1] + "/" + task):
        time.sleep(0.01)
    fit = task.startswith("fit")
    if fit:
        loads = [[torch.ones(n // 4) for _ in range({AT_ONCE})] for n in {SIZES}]
    else:
        loads = [model(cap) for cap in {CAPS}]
    rounds = [[(all_reduces if fit else step)(load) for load in loads] for _ in range({WARM + ROUNDS})]
    if dist.get_rank() == 0:
        print(task + " says " + json.dumps(rounds[{WARM}:]), flush=True)
dist.barrier()
os._exit(0)
"""

# %%
# Fit, predict, measure
# ---------------------
# The predictions are made and kept before the ranks are told to run a single step.
# A step computes for a known time, so nothing has to be profiled.

GRADIENTS = equal_layers(LAYERS, LAYER_BYTES, LAYERS * BACKWARD_S)


def predict(link, cap):
    buckets = bucketed(GRADIENTS, int(cap * MIB))
    return 1e3 * simulate_step(LAYERS * FORWARD_S, GRADIENTS, buckets, link).step_s


def run(count, rates):
    with tempfile.TemporaryDirectory() as folder, machines(count) as (hosts, why_not):
        if why_not:
            return why_not
        tasks = [f"{what}-{rate}" for rate in rates for what in ("fit", "steps")]
        agents = torchrun(hosts, "--no-python", "python", "-c", PROGRAM, folder, *tasks)

        def ask(task):
            """Per load, what the rounds took, in order."""
            Path(folder, task).touch()
            said = agents[0].wait_for(f"{task} says", timeout_s=90)
            rounds = json.loads(said.split(" says ")[1])
            return [sorted(took_s) for took_s in zip(*rounds, strict=True)]

        seen = {}
        for rate in rates:
            for host in hosts:
                host.rate(rate)
            samples = [
                (n, median(took_s))
                for n, took_s in zip(SIZES, ask(f"fit-{rate}"), strict=True)
            ]
            link = fit_link(samples, count)
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
        print(
            f"  cap {cap:4} MiB: predicted {says:5.1f} ms, measured {ms:5.1f} ms, {errors[-1]:+5.1f} %"
        )
sizes = [abs(error) for error in errors]
unit, mean_error, worst_error = (
    ("%", mean(sizes), max(sizes)) if sizes else ("", *2 * ["not run here"])
)
record(unit, mean_error=mean_error, worst_error=worst_error)

# %%
# Lines are predictions, marks medians, bars all rounds.

fig, ax = subplots(height_in=3.4)
describe(fig, "Step time over the bucket cap on shaped networks, predicted and measured")
for ((count, rate), (_, predicted, measured)), color, mark in zip(
    loads.items(), RANK_COLORS, "os^", strict=False
):
    middles = [1e3 * median(took_s) for took_s in measured]
    spans = [
        [m - 1e3 * took_s[0], 1e3 * took_s[-1] - m]
        for m, took_s in zip(middles, measured, strict=True)
    ]
    label = f"{count} machines, {rate} Mbit/s"
    ax.plot(CAPS, predicted, color=color, lw=1.2)
    bars = {"yerr": list(zip(*spans, strict=True)), "capsize": 3, "lw": 1}
    ax.errorbar(CAPS, middles, fmt=mark, color=color, ms=4.5, label=label, **bars)
if loads:
    ax.legend(fontsize=8.5)
else:
    ax.text(0.3, 0.5, "not run here", transform=ax.transAxes)
ax.set(xscale="log", xlabel="bucket cap (MiB)", ylabel="step (ms)", ylim=0)
ax.set_xticks(CAPS, CAPS)
ax.minorticks_off()
ax.set_title("Predicted before, measured after")

# %%
# What to notice
# --------------
#
# - The mean error is :measured:`shaped-network.mean_error`, the worst :measured:`shaped-network.worst_error`, with a link that was fitted to single all-reduces and a schedule that was not fitted to anything.
# - The fitted rate is a little below the shaped one, because packets have headers; the latency is that of gloo and of this host's scheduler, because the shaper delays nothing that is within its rate, and even lets the first bytes after a pause pass at once.
# - A real link is not served one bucket at a time: gloo works on two all-reduces at once (``Options::create_default`` in ``ProcessGroupGloo.cpp``), so part of the latency of many small buckets is hidden, which the model does not know.
#
# What this does not mean
# -----------------------
#
# That your cluster is this predictable: here nobody else is on the wire, ranks compute for the same time, and no GPU shares its memory with the network card.
