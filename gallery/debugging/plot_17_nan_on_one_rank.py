"""
A NaN from one rank
===================

The loss is finite, and in the next step it is NaN, on all ranks: rank 0's log shows no batch that could have caused it.
It comes from another rank's batch, through the gradients, and one step earlier.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-nan-on-one-rank
"""

# %%
# The broken program
# ------------------
# In step 3 rank 1 reads a sample with a zero where the model takes a logarithm.

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_weights, gap


def all_finite(loss):
    finite = loss.isfinite().float()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)  # all ranks decide the same
    return bool(finite)


def watch(reports, bucket):
    # What this rank alone has computed: the bucket before its all-reduce.
    if not bucket.buffer().isfinite().all():
        reports.append("not finite before the all-reduce")
    return default_hooks.allreduce_hook(None, bucket)


def worker(check, bad=0.0):
    torch.manual_seed(0)
    model, reports = DDP(nn.Linear(4, 1).to(device())), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.register_comm_hook(reports, watch)
    torch.manual_seed(dist.get_rank())
    losses, found = [], []
    for step in range(1, 6):
        reports.clear()
        x = torch.rand(8, 4) + 0.5
        if step == 3 and dist.get_rank() == 1:
            x[5, 2] = bad
        loss = (model(x.log().to(device())) - 1).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        if check is None or check(loss):
            loss.backward()
            optimizer.step()
        found += [f"step {step}: {text}" for text in reports]
    return losses, flat_weights(model), found


def show(results):
    for rank, (losses, _, _) in enumerate(results):
        print(f"rank {rank} │ loss " + "".join(f"{loss:8.3f}" for loss in losses))


# %%
# What every rank logs
# --------------------

broken = launch(worker, 3, None, quiet=True)
show(broken)
for results in (broken, launch(worker, 3, None, -1.0, quiet=True)):  # an inf, then a NaN
    for rank, (losses, weights, found) in enumerate(results):
        finite = [loss < float("inf") for loss in losses]
        assert finite == [True, True, rank != 1, False, False]
        assert not weights.isfinite().any()
        assert found[0].startswith("step 3" if rank == 1 else "step 4")

# %%
# Rank 1's loss is infinite in step 3; its gradient goes into the mean, so every rank's weights are NaN after that step, and so is every loss from step 4 on.
# Ranks agree with each other throughout, so comparing ranks finds nothing.
#
# Who was first? A communication hook sees each rank's own gradients before they are mixed.

for rank, (_, _, found) in enumerate(broken):
    print(f"rank {rank} │ {found[0]}")

# %%
# The fix
# -------
# Fix the data or the model where it happens; that is the cause.
# To survive the next one, check the loss before ``backward`` and let *all* ranks skip the step; a rank that skips alone is out of step (:ref:`fault-memory-on-one-rank`).

fixed = launch(worker, 3, all_finite, quiet=True)
show(fixed)
assert gap([weights for _, weights, _ in fixed]) == 0
assert all(weights.isfinite().all() for _, weights, _ in fixed)

# %%
# How to recognize it
# -------------------
# Log the loss of *every* rank: the first that is not finite is one step before the others, and names rank and batch.
# If all ranks become NaN in the same step, no batch caused it: look at the learning rate, the precision, the scaler (:ref:`fault-overflow-on-one-rank`).
