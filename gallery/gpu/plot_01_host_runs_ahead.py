"""
The host runs ahead
===================

How far ahead of the GPU does the host run, and which calls make it wait?
It serves :ref:`gpu-host-ahead`.

A call to the GPU puts work into a queue and returns; it waits where the host needs a value or the queue is full.
Think of a printer: you see how fast you send pages, not how fast they are printed.

:Level: core, 15 minutes
"""

# %%
# What it will show
# -----------------
# First, three timers around the same products of matrices: one that stops when the calls return, one that waits for the GPU, and CUDA events.
# Then a list of calls, each made while the GPU has work for some 20 ms: a call that returns at once only queued something, one that takes as long as the work has waited for it.
# Read it as a list of what not to put into a training step.
#
# Predict which of them wait.
# With one rank ``dist.all_reduce(x)`` cannot: NCCL launches nothing for a sum over one rank in place (``ncclLaunchOneRank`` in ``src/device/onerank.cu``, NCCL 2.28.9; read, not run), so that line shows a collective only on several GPUs.

import time

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gpu import gpu_times_ms, needs_gpus, repeats, worlds
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, describe, name_rows, subplots
from ddplab.runtime.clock import now

SIZE, BUSY_MS = 4096, 20


def timers(product, count):
    """Milliseconds by a host clock that does not wait, by one that does, and by events."""

    def queue():
        for _ in range(count):
            product()

    began = now()
    queue()
    returned = time.perf_counter()
    return 1e3 * (returned - began), 1e3 * (now() - began), gpu_times_ms({"": queue}, 5)[""]


# %%
# Each of these is a line of somebody's training loop.


def calls(here):
    x = torch.rand(512, 512, device=here)
    pageable = torch.rand(512, 512)
    pinned = torch.rand(512, 512).pin_memory()
    weight = nn.Parameter(torch.ones(512, device=here))
    weight.grad = torch.ones(512, device=here)
    return {
        "x + 1": lambda: x + 1,
        "x.sum().item()": lambda: x.sum().item(),
        "if x.sum() > 0": lambda: bool(x.sum() > 0),
        "print(x[0, 0])": lambda: str(x[0, 0]),
        "x.nonzero()": lambda: x.nonzero(),
        "x[x > 0.5]": lambda: x[x > 0.5],
        "torch.where(x > 0.5, x, 0)": lambda: torch.where(x > 0.5, x, 0),
        "x.cpu()": lambda: x.cpu(),
        "x.to('cpu', non_blocking=True)": lambda: x.to("cpu", non_blocking=True),
        "pageable.to(gpu)": lambda: pageable.to(here),
        "pinned.to(gpu)": lambda: pinned.to(here),
        "pinned.to(gpu, non_blocking=True)": lambda: pinned.to(here, non_blocking=True),
        "clip_grad_norm_": lambda: nn.utils.clip_grad_norm_([weight], 1.0),
        "dist.all_reduce(x)": lambda: dist.all_reduce(x),
        "dist.barrier()": lambda: dist.barrier(),
        "torch.cuda.synchronize()": lambda: torch.cuda.synchronize(),
    }


def worker():
    here = device()
    a, b = (torch.rand(SIZE, SIZE, device=here) for _ in range(2))

    def product():
        return a @ b

    count = repeats(product, BUSY_MS)
    returned_ms, waited_ms, events_ms = timers(product, count)
    shares = {}
    for name, call in calls(here).items():
        call()  # the first time may load a kernel or make a connection
        took = []
        for _ in range(3):
            now()
            for _ in range(count):
                product()
            began = time.perf_counter()
            call()
            took.append(1e3 * (time.perf_counter() - began))
        now()
        shares[name] = sorted(took)[1] / events_ms
    return count, returned_ms, waited_ms, events_ms, shares


# %%
# Run it
# ------

gpus = needs_gpus()
results = {ranks: launch(worker, ranks, quiet=True)[0] for ranks in worlds(gpus)}
for ranks, (count, returned_ms, waited_ms, events_ms, shares) in results.items():
    print(f"{ranks} rank{'s' * (ranks > 1)}: {count} products of {SIZE} × {SIZE}")
    print(f"  host, not waiting {returned_ms:8.2f} ms")
    print(f"  host, waiting     {waited_ms:8.2f} ms")
    print(f"  events            {events_ms:8.2f} ms")
    for name, share in shares.items():
        print(f"  {name:34} {share:6.1%} of the work {'WAITS' if share > 0.5 else ''}")

# %%

# drawing
fig, ax = subplots(height_in=3.6)
describe(fig, "For each call, how long the host waited as a share of the work that was queued")
count, returned_ms, waited_ms, events_ms, shares = results[max(results)]
for row, share in enumerate(shares.values()):
    ax.barh(row, share, color=ACCENT if share > 0.5 else FAINT, ec=INK, lw=0.6)
name_rows(ax, list(shares))
ax.set(xlabel="time until the call returns ÷ work that the GPU had")
ax.set_title(f"Which calls wait for the GPU, {max(results)} rank(s)")

# %%
# Takeaway
# --------

waits = [name for name, share in shares.items() if share > 0.5]
wrong = waited_ms / returned_ms
print(f"A timer without synchronization shows 1/{wrong:.1f} of what the GPU took.")
print(f"{len(waits)} of {len(shares)} calls wait:", ", ".join(waits) or "none")
record("ms", returned=returned_ms, waited=waited_ms, events=events_ms)
record(waits=len(waits), of=len(shares))

# %%
# Change it: predict, then run
# ----------------------------
# Set ``BUSY_MS`` to 200. Which shares stay near 100 %, and which calls that took no time now do?
# The queue of kernels is finite: once it is full, every call waits.
#
# What this does not mean
# -----------------------
# That a call that waits is wrong: reading the loss every hundredth step costs little.
# A call that waits in every step takes from the host the time that it needs to stay ahead.
#
# Say it aloud
# ------------
# "The host queues kernels and runs ahead, so a timer without synchronization measures launches and not the work.
# A call that needs a value on the host, such as ``.item()``, waits until the GPU is there.
# Reading the loss in every step shows a fault early, and costs the host its lead."
