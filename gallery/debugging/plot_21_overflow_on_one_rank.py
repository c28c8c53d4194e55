"""
An overflow on one rank
=======================

In fp16 a gradient overflows now and then, and the scaler skips that step.
If it looks at the gradients before they are averaged, one rank skips the step and the others take it, with an infinite gradient.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-overflow-on-one-rank
"""

# %%
# The broken program
# ------------------
# Gradients are averaged by hand, so the forward runs under ``no_sync``; unscale and clip were there before.
# In step 2 rank 1 has a batch whose loss overflows.

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_weights, gap


def look(model, scaler, optimizer):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)


def average(model, scaler, optimizer):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def worker(*then):
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device().type, init_scale=1024.0)
    torch.manual_seed(dist.get_rank())
    rows = []
    for step in (1, 2, 3):
        x = torch.randn(8, 4).to(device())
        if step == 2 and dist.get_rank() == 1:
            x *= 3e4
        before = flat_weights(model)
        by_hand = model.no_sync() if average in then else contextlib.nullcontext()
        with by_hand, torch.autocast(device().type, dtype=torch.float16):
            loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        for do in then:
            do(model, scaler, optimizer)
        scaler.step(optimizer)
        scaler.update()
        same = flat_weights(model).allclose(before, rtol=0, atol=0, equal_nan=True)
        rows.append(("skipped" if same else "taken", scaler.get_scale(), flat_weights(model)))
    return rows


def show(results):
    for rank, rows in enumerate(results):
        steps = [
            f"{step:>8}, {scale:4.0f}, {weights[0]:7.4f} " for step, scale, weights in rows
        ]
        print(f"rank {rank} │" + "│".join(steps))


# %%
# After each of three steps: was it taken, the scale, and a weight.

broken = launch(worker, 2, look, average, quiet=True)
show(broken)
assert [rows[1][:2] for rows in broken] == [("taken", 1024.0), ("skipped", 512.0)]
assert [bool(rows[1][2].isfinite().all()) for rows in broken] == [False, True]

# %%
# ``unscale_`` is where the scaler looks for inf and NaN, and it remembers what it saw.
# In step 2 rank 1 saw an inf, skipped the step and halved its scale; rank 0 saw none, then got the inf in the average, and took the step.
# In step 3 it is the other way around: rank 0's NaN reaches rank 1, which had already looked.
#
# The fix
# -------
# Average first, then look; DDP's own backward averages before it returns.

for name, then in {"average by hand, then look": (average, look), "DDP": (look,)}.items():
    fixed = launch(worker, 2, *then, quiet=True)
    print(name)
    show(fixed)
    for rows in fixed:
        assert [row[:2] for row in rows] == [("taken", 1024), ("skipped", 512), ("taken", 512)]
    assert gap([rows[-1][2] for rows in fixed]) == 0

# %%
# A step that all ranks skip is not a fault: a batch is lost, the scale is halved, and ranks stay equal.
#
# How to recognize it
# -------------------
# Log ``scaler.get_scale()`` on every rank: two different numbers mean that a rank decided on gradients that the others do not have.
# Look for ``unscale_`` or ``clip_grad_norm_`` between the backward and the average, or for a loop that stays under ``no_sync`` to its end (:ref:`museum-step-as-sync`).
