"""
Pinned memory, and a copy that hides
====================================

How fast does a batch reach the GPU, what of that hides behind computing, and what goes wrong when nobody waits?
It serves :ref:`gpu-input`.

The copy engine reads memory that cannot move; from pageable memory the bytes first go through a pinned buffer.
With ``non_blocking=True`` nobody may touch source or target until the stream has passed the copy.

:Level: deep, 20 minutes
"""

# %%
# What it will show
# -----------------
# The rate of a copy to the GPU from pageable and from pinned memory, and how long the call keeps the host.
# Then a loop over batches in three ways: pageable, pinned with ``non_blocking``, and fetched one batch ahead on a stream of its own.
# Then the two races: the pinned source is overwritten while its copy still waits in the queue, and a copy to the host is read before it has arrived.
# On several GPUs all ranks copy at once, bound to the processors beside their GPU, and not.

import contextlib
import os
from pathlib import Path

import torch

from ddplab import device, launch, record
from ddplab.apparatus.gpu import gpu_times_ms, host_time_ms, needs_gpus, repeats
from ddplab.apparatus.plotting import ACCENT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now
from ddplab.runtime.gpus import nvidia_smi

MIB = 256
BATCHES = 12
SIZE = 4096


def rates(here):
    """GB/s of the copy, and ms until the call returns, of each kind."""
    pageable = torch.rand(MIB * 2**18)
    pinned, target = pageable.pin_memory(), torch.empty(MIB * 2**18, device=here)
    cases = {
        "pageable": lambda: target.copy_(pageable),
        "pinned": lambda: target.copy_(pinned),
        "pinned, non_blocking": lambda: target.copy_(pinned, non_blocking=True),
        "to the host, pinned": lambda: pinned.copy_(target, non_blocking=True),
    }
    ms = gpu_times_ms(cases, rounds=7)
    return {
        name: (pageable.nbytes / ms[name] / 1e6, host_time_ms(case, 5))
        for name, case in cases.items()
    }


def loops(here):
    """Milliseconds per batch: only copying, only computing, and three loops that do both."""
    pageable = torch.rand(MIB * 2**18)
    pinned, a = pageable.pin_memory(), torch.rand(SIZE, SIZE, device=here)
    copy_ms = gpu_times_ms({"": lambda: pinned.to(here, non_blocking=True)}, rounds=7)[""]
    often = repeats(
        lambda: a @ a, 1.2 * copy_ms
    )  # computing takes a little longer than copying
    side = torch.cuda.Stream()

    def compute(batch):
        batch.add_(1)
        for _ in range(often):
            a @ a

    def fetch():
        with torch.cuda.stream(side):
            return pinned.to(here, non_blocking=True)

    def one_after_the_other(source, non_blocking):
        def run():
            for _ in range(BATCHES):
                compute(source.to(here, non_blocking=non_blocking))

        return run

    def one_ahead():
        coming = fetch()
        for number in range(BATCHES):
            torch.cuda.current_stream().wait_stream(side)
            batch = coming
            batch.record_stream(
                torch.cuda.current_stream()
            )  # its memory belongs to the other stream
            if number + 1 < BATCHES:
                coming = fetch()
            compute(batch)

    only = torch.empty_like(pinned, device=here)
    cases = {
        "computing only": lambda: [compute(only) for _ in range(BATCHES)],
        "pageable": one_after_the_other(pageable, non_blocking=False),
        "pinned, non_blocking": one_after_the_other(pinned, non_blocking=True),
        "one batch ahead": one_ahead,
    }
    ms = gpu_times_ms(cases, rounds=5, warm_up=2)
    return copy_ms, {name: took / BATCHES for name, took in ms.items()}


# %%
# The races: the GPU has work for some 20 ms, so the copy has not begun when the next line runs.


def races(here):
    a = torch.rand(SIZE, SIZE, device=here)
    often = repeats(lambda: a @ a, 20)
    source, back = torch.zeros(1024).pin_memory(), torch.zeros(1024).pin_memory()
    ones, wrong = torch.ones(1024, device=here), {"overwritten": 0, "read too early": 0}
    for _ in range(10):
        source.zero_()
        back.zero_()
        now()
        for _ in range(often):
            a @ a
        there = source.to(here, non_blocking=True)
        source.fill_(1)  # the next batch, into the same memory
        back.copy_(ones, non_blocking=True)
        wrong["read too early"] += int(back.sum().item() != 1024)
        now()
        wrong["overwritten"] += int(there.sum().item() != 0)
    return wrong


def worker():
    here = device()
    return rates(here), *loops(here), races(here)


def beside_its_gpu(bind):
    """GB/s from pinned memory while all ranks copy; None where the machine does not tell what is near."""
    here = device()
    if bind:
        bus = nvidia_smi(
            f"--id={here.index}", "--query-gpu=pci.bus_id", "--format=csv,noheader"
        )
        node = Path("/sys/bus/pci/devices", bus.strip().lower()[-12:], "local_cpulist")
        if not bus or not node.exists():
            return None
        parts = [part.split("-") for part in node.read_text().strip().split(",") if part]
        cores = {core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)}
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores & os.sched_getaffinity(0))
    torch.distributed.barrier()
    return rates(here)["pinned, non_blocking"][0]


# %%
# Run it
# ------

gpus = needs_gpus()
speeds, copy_ms, per_batch, wrong = launch(worker, 1, quiet=True)[0]
print("                         GB/s   host waits")
for name, (rate, host_ms) in speeds.items():
    print(f"{name:22} {rate:6.1f} {host_ms:9.3f} ms")
print(f"a batch of {MIB} MiB: copying {copy_ms:.2f} ms")
for name, ms in per_batch.items():
    print(f"{name:22} {ms:6.2f} ms per batch")
print("of 10 tries:", ", ".join(f"{name} {count}" for name, count in wrong.items()))
for bind in (False, True) if gpus > 1 else ():
    at_once = launch(beside_its_gpu, gpus, bind, quiet=True)
    told = [f"{rate:.1f}" if rate else "no answer" for rate in at_once]
    print(f"all ranks at once, bound {bind}: {' '.join(told)} GB/s")

# %%

# drawing
fig, ax = subplots(height_in=2.2)
describe(fig, "Time per batch of each loop")
for row, ms in enumerate(per_batch.values()):
    ax.barh(row, ms, color=ACCENT, ec=INK, lw=0.6)
name_rows(ax, list(per_batch))
ax.set_xlabel("ms per batch")
ax.set_title("Three ways to bring a batch to the GPU")

# %%
# Takeaway
# --------

serial, ahead = per_batch["pinned, non_blocking"], per_batch["one batch ahead"]
hidden = 100 * (serial - ahead) / copy_ms
faster = speeds["pinned"][0] / speeds["pageable"][0]
print(f"Pinned memory is copied {faster:.1f} times as fast as pageable memory.")
print(
    f"One batch ahead hides {hidden:.0f} % of the copy; non_blocking in the same stream hides none by itself."
)
raced = [name for name, count in wrong.items() if count]
print("Races that showed:", ", ".join(raced) or "none in these tries")
record("GB/s", pageable=speeds["pageable"][0], pinned=speeds["pinned"][0])
record("%", hidden=hidden)
record(overwritten=wrong["overwritten"], too_early=wrong["read too early"])

# %%
# Change it: predict, then run
# ----------------------------
# Leave out ``record_stream``. Are the results wrong every time, sometimes, or never in these few batches?
#
# Expect: no promise; the allocator may reuse a batch's memory while kernels still read it (``record_stream`` in ``torch/_tensor_docs.py``, torch 2.13.0; read, not run).
#
# What this does not mean
# -----------------------
# That every DataLoader should pin: pinning itself costs the host a copy, and pinned memory cannot be swapped out.
#
# Say it aloud
# ------------
# "Pinned memory makes the copy faster and lets the call return, but in the same stream the copy still takes its turn between kernels.
# To hide it I fetch the next batch on a side stream.
# That hides the copy, and pays with locked host memory and two races to get right."
