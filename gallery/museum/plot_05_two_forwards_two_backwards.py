"""
Two forwards, then two backwards
================================

Two batches and two losses: a critic sees real and generated samples, or a task has an auxiliary loss.
On one process you would run both forwards, then a backward for each loss, and that is correct there.
It serves :ref:`museum`.

One forward prepares one backward; a second backward finds nothing prepared and stays local.
Keep in mind: as many complete pairs of forward and backward as reductions, or one sum of the losses.

:Level: core, 10 minutes
:Proves: museum-two-forwards-two-backwards
"""

# %%
# A forward prepares DDP's reducer, and the next complete backward uses it up.
# Two forwards prepare it only once.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap
from ddplab.runtime.torch_private import flight_records

STEPS = 40


def wrong(model, x, y):
    first, second = mse_loss(model(x[0]), y[0]), mse_loss(model(x[1]), y[1])
    first.backward()
    second.backward()


def right(model, x, y):
    first, second = mse_loss(model(x[0]), y[0]), mse_loss(model(x[1]), y[1])
    (first + second).backward()


def in_turn(model, x, y):
    mse_loss(model(x[0]), y[0]).backward()
    mse_loss(model(x[1]), y[1]).backward()


def spread(optimizer):
    """How far the ranks' gradients are apart; call it on all ranks, before the step."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    gradient = torch.cat([p.grad.flatten() for p in parameters])
    ends = torch.stack([gradient, -gradient])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    return ends.sum(dim=0).max().item()  # the largest minus the smallest


def train(both):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(ranks, 2, 16, 4).to(device())
    y = x.sum(dim=-1, keepdim=True).sin()
    spreads = []
    optimizer.register_step_pre_hook(lambda optimizer, *_: spreads.append(spread(optimizer)))
    for _ in range(STEPS):
        before = len(flight_records())
        optimizer.zero_grad()
        both(model, x[rank], y[rank])
        issued = len(flight_records()) - before
        optimizer.step()
    return spreads[0], flat_weights(model), issued


# %%
# ``spread`` is registered on the optimizer as a hook that runs before each step.

gaps = {}
print("               gap in            all-reduces")
print("         gradient 1  weights 40     per step")
for name, both in (("wrong", wrong), ("fixed", right), ("in turn", in_turn)):
    first, weights, issued = zip(*launch(train, 3, both), strict=True)
    gaps[name] = gap(weights)
    print(f"{name:7} {first[0]:11.2g} {gaps[name]:11.2g} {issued[0]:12}")
    assert (first[0] == 0) == (gaps[name] == 0) == (name != "wrong")
    assert set(issued) == {2 if name == "in turn" else 1}

record(wrong=gaps["wrong"], fixed=gaps["fixed"], in_turn=gaps["in turn"])

# %%
# The fix
# -------
# Add the losses and call ``backward()`` once.
# If the two graphs do not fit into memory together, run forward and backward of one, then of the other: that is also correct, and costs a second round of all-reduces.
#
# How you would have noticed
# --------------------------
# Compare gradients between ranks right before the step; the hook above does it for any optimizer.
# Counting collectives does not help here: the wrong version issues as many as the right one, and then adds a local gradient to what was reduced.
#
# Change it: predict, then run
# ----------------------------
# In ``in_turn`` put the first line under ``with model.no_sync():``.
# How many all-reduces does a step make, and do the ranks agree?
#
# Expect: one, and they agree: the first gradient accumulates locally and the second backward reduces the sum; the assertion that expects two fails.
#
# Say it aloud
# ------------
# "With two forwards and then two backwards DDP reduces the first and adds the second locally, and counting collectives does not show it.
# I add the losses and call backward once.
# The sum keeps both graphs in memory at once; one after the other needs less memory, and a second round of all-reduces unless the first runs under no_sync."
