"""
Profile a step
==============

Where does a training step spend its time, and how much of it waits for other ranks?
This lab plans which steps the profiler keeps, checks which it kept, and reads the exported trace back as you would read it on a screen.
It serves :ref:`performance-measure`.

A schedule skips steps, warms up, and records a few, because recording costs time and first steps are not typical.
Communication costs what the backward waits after its last bucket was launched.

:Level: core, 20 minutes
:Proves: perf-profiler-keeps-the-plan
"""

# %%
# The plan
# --------
# ``schedule`` says for each step what the profiler does: nothing, warm up, or record.
# Skip the first steps: DDP rebuilds its buckets in the second, and allocators and caches fill up.

import contextlib
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule

from ddplab import device, launch, record
from ddplab.apparatus.plotting import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    RANK_COLORS,
    describe,
    subplots,
)
from ddplab.apparatus.traces import communication, spans, steps_in, transfers
from ddplab.runtime.clock import now
from ddplab.runtime.slowlink import SlowLink

STEPS, LAYERS, WIDTH, BATCH, RANKS = 11, 4, 512, 64, 2
LATENCY_S, BYTES_PER_S = 1e-3, 100e6
PLAN = {"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
REGIONS = "data", "forward", "backward", "optimizer"


# %%
# The program
# -----------
# ``record_function`` names a section of the step, which becomes a region of the trace.
# ``profiler.step()`` ends a step: one call per optimizer step, not per micro-batch.
# When a cycle is complete it calls ``on_trace_ready``, here to write a file per rank and cycle.


def one_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for left in reversed(range(micro_batches)):
        with model.no_sync() if left else contextlib.nullcontext():
            with record_function("data"):
                x = torch.randn(BATCH, WIDTH).to(device())
            with record_function("forward"):
                loss = model(x).square().mean() / micro_batches
            with record_function("backward"):
                loss.backward()
    with record_function("optimizer"):
        optimizer.step()


def worker(folder, micro_batches, slow):
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]  # of 1 MiB each
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()), bucket_cap_mb=1)
    optimizer = torch.optim.Adam(model.parameters())
    if slow:
        model.register_comm_hook(SlowLink(LATENCY_S, BYTES_PER_S), SlowLink.hook)
    plan, happened, operators = schedule(**PLAN), [], []

    def keep(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}-{len(operators)}.json")
        rows = profiler.key_averages()
        operators.append([(e.key, e.count, e.self_cpu_time_total / 1e3) for e in rows])

    what = {"record_shapes": True, "profile_memory": True}
    with profile(schedule=plan, on_trace_ready=keep, **what) as profiler:
        for step in range(STEPS):
            began = now()
            one_step(model, optimizer, micro_batches)
            ended = now()
            profiler.step()
            times = 1e3 * (ended - began), 1e3 * (now() - ended)
            happened.append((plan(step).name, *times))
    return happened, operators[-1]


# %%
# Four runs: one and four micro-batches per step, between these ranks, and over a link that is slow on purpose.
# On one machine communication is little more than copying, so only over the link its share says something.

CASES = {"plain": (1, False), "4 micro-batches": (4, False)}
CASES |= {"plain, slow link": (1, True), "4, slow link": (4, True)}
runs, traces = {}, {}
with tempfile.TemporaryDirectory() as folder:
    for name, case in CASES.items():
        runs[name] = launch(worker, RANKS, folder, *case, quiet=True)
        files = sorted(Path(folder).glob("rank0-*.json"))
        traces[name] = [json.loads(file.read_text())["traceEvents"] for file in files]

# %%
# What was kept
# -------------
# The trace marks each step that it holds as ``ProfilerStep#n``; ``ddplab.apparatus.traces`` reads it.

happened, operators = runs["plain"][0]
files = [steps_in(trace) for trace in traces["plain"]]
planned = [step for step, (action, *_) in enumerate(happened) if action.startswith("RECORD")]
print(f"recorded by plan: {planned}; in the two files: {files}")
for of_case in traces.values():
    assert [step for trace in of_case for step in steps_in(trace)] == planned
record("ms", saving=max(ms for action, _, ms in happened if action.endswith("SAVE")))

# %%

# drawing
COLORS = {"NONE": FAINT, "WARMUP": MUTED, "RECORD": ACCENT, "RECORD_AND_SAVE": ACCENT}
fig, ax = subplots(height_in=2.8)
describe(fig, "Eleven steps by what the profiler did in each, and what it cost")
for step, (action, step_ms, profiler_ms) in enumerate(happened):
    ax.bar(step, step_ms, color=COLORS[action], ec=INK, lw=0.6)
    ax.bar(step, profiler_ms, bottom=step_ms, color="none", hatch="////", ec=INK, lw=0.6)
    word = {"NONE": "skip" if step < PLAN["skip_first"] else "wait"}.get(action, action)
    word = "off" if step > planned[-1] else word.partition("_")[0].lower()
    ax.text(step, step_ms + profiler_ms, word, ha="center", va="bottom", fontsize=8.5)
ax.set(xticks=range(STEPS), xlabel="step", ylabel="ms")
ax.set_title("The plan, as it happened; hatched: inside profiler.step()")

# %%
# Read it: overview, operators, memory
# ------------------------------------
# The three tables that every viewer shows, from the second file of rank 0.
# *Self* time excludes the operators that an operator calls.

trace = traces["plain"][-1]
whole = sum(end - start for start, end, _ in spans(trace, "ProfilerStep#"))
for region in REGIONS:
    inside = sum(end - start for start, end, _ in spans(trace, f"{region}$"))
    print(f"overview   {region:22} {inside / whole:6.1%} of the step")
ranked = sorted((op for op in operators if "::" in op[0]), key=lambda op: -op[2])
for name, calls, self_ms in ranked[:4]:
    print(f"operators  {name:22} {calls:4} calls {self_ms:7.1f} ms self")
seen = [e["args"] for e in trace if e.get("name") == "[memory]"]
place = max(e["Device Type"] for e in seen)  # 0: the CPU; where there is a GPU, its memory
allocated = [e["Total Allocated"] for e in seen if e["Device Type"] == place]
print(f"memory     highest − lowest       {(max(allocated) - min(allocated)) / 2**20:.1f} MiB")

# %%
# Read it: how much is communication?
# -----------------------------------
# In the timeline, look at two moments of each step: when the last bucket is launched, and when its result is there, which is the end of the backward on gloo, and that of the last NCCL kernel on GPUs.
# The time between them cannot be hidden behind this backward: the rank *waits*.
# Bytes come from the recorded shapes of the calls; buckets are float32.

print("                  all-reduces      MiB sent         step   waits   share")
print("                  per step    per 1,000 samples       ms      ms of step")
for name, (micro, slow) in CASES.items():
    events = [e for trace in traces[name] for e in trace]
    calls, sent, step_ms, waits_ms = communication(events)
    per_sample = sent / (micro * BATCH) * 1000 / 2**20
    assert calls == LAYERS
    assert sent == 4 * LAYERS * WIDTH**2
    if slow:
        row = f"{name:17} {calls:10.0f} {per_sample:14.1f} {step_ms:14.1f} {waits_ms:7.1f}"
        print(f"{row} {waits_ms / step_ms:6.1%}")
        record("%", **{f"share_{micro}": 100 * waits_ms / step_ms})
    else:
        record("ms", **{f"step_{micro}": step_ms})

# %%
# The timeline of the first recorded step, without and with accumulation, drawn from the exported files.

# drawing
fig, axes = subplots(2, 1, height_in=3.4, sharex=True)
describe(fig, "Timelines of a plain step and of a step of four micro-batches")
colors, hatches = (INK, FAINT, MUTED, ACCENT), ("", "", "", "////")
LOOKS = dict(zip(REGIONS, zip(colors, hatches, strict=True), strict=True))
for ax, name in zip(axes, ("plain", "4 micro-batches"), strict=True):
    start, end, _ = spans(traces[name][-1], "ProfilerStep#")[0]
    for region, (color, hatch) in LOOKS.items():
        look = {"color": color, "hatch": hatch, "ec": INK, "lw": 0.5}
        if ax is axes[0]:
            ax.barh(0, 0, label=region, **look)  # for the legend
        for at, until, _ in spans(traces[name][-1], f"{region}$"):
            if start <= at < end:
                ax.barh(0, until - at, left=at - start, **look)
    for at, until, _ in transfers(traces[name][-1]):
        if start <= at < end:
            ax.barh(1, until - at, left=at - start, color=RANK_COLORS[0], ec=INK, lw=0.5)
    ax.set_yticks([0, 1], ["main thread", "all-reduce"])
    ax.invert_yaxis()
    ax.set_title(name)
axes[0].legend(loc="center right", fontsize=8.5)
axes[-1].set_xlabel("ms since the step began")

# %%
# What to notice
# --------------
#
# - The files hold the steps of the plan and no others; the call that saves a cycle takes :measured:`profile-a-step.saving:.0f` here, so exclude it when you time a step from outside.
# - Accumulation does not change the all-reduces per step and divides those per sample by four; over the slow link the share of waiting goes from :measured:`profile-a-step.share_1:.0f` to :measured:`profile-a-step.share_4:.0f`.
#
# What this does not mean
# -----------------------
#
# That your job has these shares: the link is chosen slow enough to matter.
# A rank also waits for the slowest rank, not only for the link; one rank's trace cannot tell these apart (:doc:`plot_14_one_slow_rank`).
#
# Change it: predict, then run
# ----------------------------
# Set ``"wait"`` to 3 in ``PLAN``.
# Which steps are recorded, in how many files?
#
# Expect: steps 6 and 7 in one file, since a second cycle no longer fits.
#
# Say it aloud
# ------------
# "I skip the first steps, warm the profiler up, and record two or three.
# In the timeline I look from the launch of the last bucket to the end of the backward.
# More recorded steps give a steadier picture, and a larger file that takes longer to save."
