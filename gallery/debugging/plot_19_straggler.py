"""
One slow rank
=============

Every step takes too long, on every rank, and every rank's profile shows the time in ``backward``.
Each rank waits for the slowest there, so the step time shows that some rank is slow, but not which one.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
"""

# %%
# The broken program
# ------------------
# Rank 1 reads its batches from a slow disk, here a sleep of 0.2 s.
# Each step is timed at three points: the batch is there, the forward is done, the last bucket is launched; the rest is waiting and the all-reduce.

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record

STEPS = 6


def worker(slow):
    rank, marks = dist.get_rank(), {}
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device()))

    def hook(state, bucket):
        if bucket.is_last():
            marks["launched"] = time.perf_counter()
        future = dist.all_reduce(
            bucket.buffer() / dist.get_world_size(), async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    rows = []
    for _ in range(STEPS):
        start = time.perf_counter()
        if rank in slow:
            time.sleep(0.2)  # the data loader
        x = torch.randn(8, 64).to(device())
        loss = model(x).square().mean()
        model.zero_grad()
        loss.backward()
        next(model.parameters()).grad.sum().item()  # on a GPU: wait for it
        end = time.perf_counter()
        rows.append((end - start, marks["launched"] - start, end - marks["launched"]))
    # The median of the steps after the first, in ms.
    return [1e3 * sorted(column)[len(column) // 2] for column in zip(*rows[1:], strict=True)]


# %%
# What every rank measures
# ------------------------


def show(results):
    print("          step    own work    waiting, all-reduce   (ms)")
    for rank, (step, own, rest) in enumerate(results):
        print(f"rank {rank} │ {step:6.1f} {own:10.1f} {rest:14.1f}")


broken = launch(worker, 3, [1], quiet=True)
show(broken)
steps, own, rest = (list(column) for column in zip(*broken, strict=True))
assert min(steps) > 190  # all ranks, though only one sleeps
assert own.index(max(own)) == 1
assert rest.index(min(rest)) == 1

# %%
# The step takes equally long everywhere; *own work* differs, and the slow rank is the one that waits least.
# Take the time before the collective; it needs no extra synchronization.
# On a GPU the host's clock means little, because kernels run later: record ``torch.cuda.Event`` at the same places.
#
# The fix
# -------
# Give rank 1 the same work, here a disk like the others'.

fixed = launch(worker, 3, [], quiet=True)
show(fixed)
assert max(step for step, _, _ in fixed) < min(steps)
record("ms", broken=max(steps), fixed=max(step for step, _, _ in fixed))

# %%
# How to recognize it
# -------------------
# Compare over ranks what each does *before* its last bucket is launched, not the step and not ``backward``.
# If one rank stands out in every step, look at its machine: clocks, temperature, disk, another job, its share of the data.
# If it is a different rank in every step, look at the batches: different lengths, a data loader with too few workers.
