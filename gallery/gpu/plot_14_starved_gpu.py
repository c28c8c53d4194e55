"""
100 % utilization, and starved
==============================

How much of the time does a GPU wait for its input, which setting of the DataLoader ends that, and what does ``nvidia-smi`` say meanwhile?
It serves :ref:`gpu-input`.

The percent of ``nvidia-smi`` is the share of time in which some kernel ran, whatever the share of the GPU that it used.
A trace tells both: the gaps between kernels, and how many thread blocks each had for the SMs.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# A loop over images that a CPU must resize, and products of matrices that take the GPU a sixth of the time that one process needs for a batch.
# With ``w`` workers a batch comes every ``1/w`` of that time, or as soon as the GPU wants it.
# So predict the idle share: about 5/6 without workers, where the main process prepares the next batch; 2/3 with two; about none from six on, if there are so many cores.
# Pinned memory and more batches ahead change what a batch costs the main process, and cannot replace a worker.
#
# Each row has three views of the same loop: idle by the trace, the SMs that had a block at all, and the percent that ``nvidia-smi`` said.
# Then one thread block that copies, and nothing else: predict its percent, and its share of the SMs.
# On several GPUs, rank 0 waits in an all-reduce for ranks that come late: predict that percent, too.

import json
import math
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from ddplab import device, launch, record
from ddplab.apparatus.copy_kernel import copy_on
from ddplab.apparatus.gpu import gpu_times_ms, needs_gpus, repeats
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now

IMAGE, BATCH = 256, 16
SIZE = 2048
SLOWER = 6  # one process needs so many times as long for a batch as the GPU
SECONDS, STEPS = 3.0, 24
AVERAGED_S = 1.2  # nvidia-smi looks back for up to a second
# Workers, pinned memory, batches ahead of each worker.
CASES = ((0, False, None), (2, False, 2), (8, False, 2), (8, True, 2), (8, True, 4))


def named(workers, pinned, ahead):
    return (
        f"{workers} workers{', pinned' if pinned else ''}{f', {ahead} ahead' if ahead else ''}"
    )


class Images(Dataset):
    """Resized by the CPU, as what a camera or a decoder delivers."""

    def __init__(self):
        self.stored = torch.randint(256, (16, 3, IMAGE, IMAGE), dtype=torch.uint8)

    def __len__(self):
        return 10**6

    def __getitem__(self, number):
        image = self.stored[number % 16].float()[None] / 255
        return functional.interpolate(
            image, scale_factor=0.875, mode="bilinear", antialias=True
        )[0]


def loader(workers, pinned, ahead):
    # This book's ranks do not fork by default; the workers touch no GPU.
    forked = {"multiprocessing_context": "fork", "prefetch_factor": ahead} if workers else {}
    return iter(DataLoader(Images(), BATCH, num_workers=workers, pin_memory=pinned, **forked))


# %%
# ``nvidia-smi`` is asked again and again by a thread while the loop runs.
# It averages over up to a second, so an answer counts that was asked for later than that; the last one, if none was.


def percent():
    card = f"--id=GPU-{torch.cuda.get_device_properties().uuid}"
    ask = ["nvidia-smi", card, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=10).stdout
        return float(said.splitlines()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return math.nan


def watched(step, steps=None):
    """Repeat a step, so often or for SECONDS; return its milliseconds, and the percent meanwhile."""
    over, said, late = threading.Event(), [math.nan], []
    began = now()

    def watch():
        while not over.is_set():
            kept = late if time.perf_counter() - began > AVERAGED_S else said
            kept.append(percent())
            over.wait(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    count = 0
    while count < steps if steps else time.perf_counter() < began + SECONDS:
        step()
        count += 1
    ms = 1e3 * (now() - began) / count
    over.set()
    watcher.join()
    return ms, statistics.median(late or said[-1:])


def traced(step, before):
    """Idle share between the first kernel and the last, and the share of SMs that had a block."""
    sms = torch.cuda.get_device_properties().multi_processor_count
    plan = schedule(wait=0, warmup=before, active=STEPS, repeat=1)
    with profile(
        schedule=plan, activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
    ) as profiler:
        for left in reversed(range(before + STEPS)):
            step()
            if not left:
                now()  # so that the last kernels are in it
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    reached, busy, blocks = kernels[0]["ts"], 0.0, 0.0
    for e in kernels:
        end = e["ts"] + e["dur"]
        busy += max(0, end - max(reached, e["ts"]))
        reached = max(reached, end)
        blocks += e["dur"] * min(1, math.prod(e["args"].get("grid", [sms])) / sms)
    whole = reached - kernels[0]["ts"]
    return 1 - busy / whole, blocks / whole


def worker():
    """Milliseconds of a batch and of its products, and for each case its own, idle, SMs and percent."""
    multiprocessing.current_process().daemon = False  # a rank of a lab may have no workers
    torch.set_num_threads(1)  # as in a worker
    torch.set_float32_matmul_precision("high")
    here = device()
    a = torch.rand(SIZE, SIZE, device=here)
    batches = loader(0, False, None)
    next(batches)
    began = time.perf_counter()
    for _ in range(3):
        next(batches)
    batch_ms = 1e3 * (time.perf_counter() - began) / 3
    often = repeats(lambda: a @ a, batch_ms / SLOWER)

    def products():
        for _ in range(often):
            a @ a

    gpu_ms = gpu_times_ms({"": products}, rounds=5)[""]
    rows = {}
    for workers, pinned, ahead in CASES:
        batches, marks = loader(workers, pinned, ahead), []

        def step(batches=batches, marks=marks, pinned=pinned):
            next(batches).to(here, non_blocking=pinned).mul_(2)
            products()
            marks.append(torch.cuda.Event())
            marks[-1].record()
            if len(marks) > 2:  # the host is at most two steps ahead
                marks.pop(0).synchronize()

        # Batches that are ready: they would hide how slowly the others come.
        kept = workers * (ahead or 0)
        for _ in range(kept + 1):
            step()
        ms, said = watched(step)
        rows[named(workers, pinned, ahead)] = (ms, *traced(step, kept + 2), said)
        del batches, step  # ends its workers
    return batch_ms, gpu_ms, rows


# %%
# One block, and a rank that waits.


def one_block():
    source = torch.rand(2**20, device=device())
    target = torch.empty_like(source)

    def step():
        copy_on(1, source, target, 50)
        torch.cuda.synchronize()

    try:
        step()
    except Exception as error:  # of Triton's compiler
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    ms, said = watched(step)
    return (ms, *traced(step, 2), said)


def waiting():
    """The percent of rank 0, which is early for each all-reduce."""
    ones, late_s, often = torch.ones(1024, device=device()), SECONDS / 10, 10

    def step():
        if dist.get_rank():
            time.sleep(late_s)
        dist.all_reduce(ones)
        torch.cuda.synchronize()

    step()
    return watched(step, often)[1]


# %%
# Run it
# ------

gpus = needs_gpus()
cores = len(os.sched_getaffinity(0))
batch_ms, gpu_ms, rows = launch(worker, 1, quiet=True)[0]
print(
    f"one process makes a batch in {batch_ms:.1f} ms, the GPU needs {gpu_ms:.1f} ms; {cores} cores"
)


def line(name, expected, ms, idle, sms, said):
    told = "no answer" if math.isnan(said) else f"{said:.0f} %"
    print(f"{name:26} {ms:8.1f} {expected:>9} {idle:6.1%} {sms:14.1%} {told:>11}")


print(
    f"{'':26} {'step ms':>8} {'expected':>9} {'idle':>6} {'SMs with work':>14} {'nvidia-smi':>11}"
)
for (name, row), (workers, *_) in zip(rows.items(), CASES, strict=True):
    interval_ms = max(gpu_ms, batch_ms / max(1, min(workers, cores)))
    line(name, f"{1 - gpu_ms / interval_ms:.1%}", *row)

# %%

alone = launch(one_block, 1, init=False, quiet=True)[0]
if isinstance(alone, str):
    print("one block: not run,", alone)
else:
    line("one block", "0.0%", *alone)
if gpus > 1:
    print(
        f"rank 0 of {gpus}, waiting: nvidia-smi says {launch(waiting, gpus, quiet=True)[0]:.0f} %"
    )

# %%

# drawing
fig, ax = subplots(height_in=2.4)
describe(
    fig, "Idle share by the trace and percent by nvidia-smi, for each loader and for one block"
)
shown = rows if isinstance(alone, str) else {**rows, "one block": alone}
for place, (_, idle, _, said) in enumerate(shown.values()):
    ax.barh(place - 0.2, 100 * idle, 0.36, color=ACCENT, ec=INK, lw=0.5)
    ax.barh(place + 0.2, said, 0.36, color=FAINT, ec=INK, lw=0.5)
name_rows(ax, list(shown))
ax.set(xlabel="%: violet idle by the trace, light nvidia-smi", xlim=(0, 100))
ax.set_title("Who waits, and who says so")

# %%
# Takeaway
# --------

fed = [name for name, (_, idle, _, _) in rows.items() if idle < 0.1]
print("Idle less than a tenth of the time:", ", ".join(fed) or "in no case")
first, *_, last = rows
print(f"From {first} to {last} a step is {rows[first][0] / rows[last][0]:.1f} times as fast.")
if not isinstance(alone, str):
    print(
        f"One block: nvidia-smi says {alone[3]:.0f} %, and {alone[2]:.1%} of the SMs have work."
    )
    record("%", block_sms=100 * alone[2], **{"block_said": alone[3]} if alone[3] >= 0 else {})
record("%", starved=100 * rows[first][1], fed=100 * rows[last][1])
record("ms", batch=batch_ms, gpu=gpu_ms)

# %%
# Change it: predict, then run
# ----------------------------
# Set ``SLOWER`` to 2. How many workers are enough now, and what is left of the idle share then?
#
# What this does not mean
# -----------------------
# That 100 % is bad: it says that some kernel ran, and leaves open whether it was a full one, a small one or one that waits for another rank.
# Nor that an SM with a block is busy: the block may wait for memory.
# A profiler of kernels tells that; a trace does not.
#
# Say it aloud
# ------------
# "The percent of nvidia-smi is the time in which any kernel ran, so one block or a waiting collective makes it 100.
# I look for gaps in a trace: if the GPU idles until the next batch comes, I add workers until it does not, and pin the memory so that the copy hides.
# More workers buy batches, and pay with cores and memory of the host."
