"""
What the profiler's options cost
================================

``record_shapes``, ``profile_memory``, ``with_stack``, ``with_flops``: what does each add to a trace, and to the step that it records?
It serves :ref:`performance-measure`.

:Level: evidence, 10 minutes
"""

# %%
# One option at a time
# --------------------
# Every round records the same two steps of the same model with each set of options, in turn, and without a profiler.
# The model has many short operators, which is where a cost per operator shows.
# What is timed is the processor time of the rank's process: that is what recording costs, whoever else uses the machine.

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

from ddplab import device, launch, record
from ddplab.runtime.clock import now

RANKS, ROUNDS, STEPS, WARM = 2, 9, 2, 2
BATCH, WIDTH, LAYERS = 64, 64, 12
OFF = "no profiler"
OPTIONS = {
    "no option": {},
    "record_shapes": {"record_shapes": True},
    "profile_memory": {"profile_memory": True},
    "with_stack": {"with_stack": True},
    "with_flops": {"with_flops": True},
    "all four": dict.fromkeys(
        ("record_shapes", "profile_memory", "with_stack", "with_flops"), True
    ),
}


def steps(model, x):
    """The seconds that all threads of this process compute for one step."""
    began = time.process_time()
    for _ in range(STEPS):
        model.zero_grad()
        model(x).square().mean().backward()
    now()  # on a GPU, until it has done all of it
    return (time.process_time() - began) / STEPS


def worker(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*(part for block in blocks for part in block)).to(device())
    ddp, x = DistributedDataParallel(model), torch.randn(BATCH, WIDTH, device=device())
    times, flops = {name: [] for name in (OFF, *OPTIONS)}, {}
    for last in [False] * (ROUNDS - 1) + [True]:
        dist.barrier()
        times[OFF].append(steps(ddp, x))
        for name, options in OPTIONS.items():
            dist.barrier()
            with profile(**options) as profiler:
                times[name].append(steps(ddp, x))
            if last and dist.get_rank() == 0:
                flops[name] = sum(row.flops or 0 for row in profiler.key_averages())
                profiler.export_chrome_trace(f"{folder}/{name}.json")
    return times, flops


with tempfile.TemporaryDirectory() as folder:
    times, flops = launch(worker, RANKS, folder, quiet=True)[0]
    sizes = {name: Path(folder, f"{name}.json").stat().st_size for name in OPTIONS}
    traces = {
        name: json.loads(Path(folder, f"{name}.json").read_text())["traceEvents"]
        for name in OPTIONS
    }

# %%
# What each costs
# ---------------
# The step while it is recorded, beside one without a profiler; and the file that is written afterwards.

base = statistics.median(times[OFF][WARM:])
print("                CPU ms   times no     events       KiB")
print("              per step   profiler   per step  per step")
for name, taken in times.items():
    step_s = statistics.median(taken[WARM:])
    events, kib = len(traces.get(name, [])) / STEPS, sizes.get(name, 0) / STEPS / 1024
    print(f"{name:15} {1e3 * step_s:6.2f} {step_s / base:10.2f} {events:10.0f} {kib:9.0f}")
    if name in OPTIONS:
        key = name.replace(" ", "_")
        record(**{f"time_{key}": step_s / base})
        record("KiB", **{f"file_{key}": kib})

# %%
# What each adds
# --------------
# The trace says it: a shape for each operator, an event for each allocation, an event for each Python frame.
# FLOPs are in the table of operators, and come from shapes, so ``with_flops`` records these too; a product counts, an all-reduce does not.


def holds(trace, what):
    return sum(what(event) for event in trace)


shapes = {n: holds(t, lambda e: "Input Dims" in e.get("args", {})) for n, t in traces.items()}
memory = {n: holds(t, lambda e: e.get("name") == "[memory]") for n, t in traces.items()}
frames = {n: holds(t, lambda e: e.get("cat") == "python_function") for n, t in traces.items()}
print("                 shapes  allocations  Python frames       MFLOP")
for name in OPTIONS:
    row = f"{name:15} {shapes[name]:7} {memory[name]:12} {frames[name]:14}"
    print(f"{row} {flops[name] / 1e6:11.2f}")
    every = name == "all four"
    assert (shapes[name] > 0) == (every or name in ("record_shapes", "with_flops"))
    assert (memory[name] > 0) == (every or name == "profile_memory")
    assert (frames[name] > 0) == (every or name == "with_stack")
    assert (flops[name] > 0) == (every or name == "with_flops")
products = 3 * STEPS * LAYERS * 2 * BATCH * WIDTH**2  # one forward, two in the backward
print(f"the weights' products alone: {products / 1e6:.2f} MFLOP in {STEPS} steps")
assert 0.9 < flops["with_flops"] / products <= 1.1

# %%
# When is there no file?
# ----------------------
# One step is left out, one waits, one warms up, and three are recorded: how many files does a shorter run leave, and with which steps?


def files(count, say_step=True):
    """For each file that such a run leaves, how many steps it holds, by their sums."""
    kept = []
    plan = schedule(skip_first=1, wait=1, warmup=1, active=3, repeat=1)
    with profile(
        schedule=plan, on_trace_ready=lambda one: kept.append(one.events())
    ) as profiler:
        for _ in range(count):
            torch.ones(8).sum()
            if say_step:
                profiler.step()
    return [sum(e.name == "aten::sum" for e in events) for events in kept]


runs = {"2 steps": (2,), "5 steps": (5,), "7 steps": (7,), "7, no profiler.step()": (7, False)}
for run, how in runs.items():
    print(f"{run:22} steps in its files: {files(*how) or 'no file'}")
assert [files(*how) for how in runs.values()] == [[], [2], [3], []]

# %%
# What to notice
# --------------
#
# - Recording as such makes the host compute :measured:`profiler-options.time_no_option:.1f` times as long for a step here, with all options :measured:`profiler-options.time_all_four:.1f` times: never compare a recorded step with one that is not.
# - Stacks are what fills a file: :measured:`profiler-options.file_with_stack:.0f` per step, against :measured:`profiler-options.file_no_option:.0f` without options.
#
# What this does not mean
# -----------------------
#
# That your step slows down by these factors: the cost is per operator and per Python call, and these operators are short on purpose.
# A kernel on a GPU is not slower because the host is; the gaps between kernels grow.
