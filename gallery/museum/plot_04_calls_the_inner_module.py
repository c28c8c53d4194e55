"""
A forward around the wrapper
============================

The model has a method besides ``forward``, and DDP has no such attribute: ``'DistributedDataParallel' object has no attribute 'loss'``.
The obvious answer is to add ``.module``, and then the program runs.
It serves :ref:`museum`.

DDP's work begins in the wrapper's forward; a call of ``.module`` goes around it.
Keep in mind: train through the wrapper, and use ``.module`` for what needs no gradient.

:Level: core, 8 minutes
:Proves: museum-calls-the-inner-module module-bypasses-ddp
"""

# %%
# The two losses are the same number; only one of them went through the wrapper.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.torch_private import flight_records

STEPS = 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y):
        return nn.functional.mse_loss(self(x), y)


def wrong(ddp, x, y):
    return ddp.module.loss(x, y)


def right(ddp, x, y):
    return nn.functional.mse_loss(ddp(x), y)


def train(loss_of):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ddp = DDP(Model().to(device()))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.02)
    x = torch.randn(ranks + 1, 16, 4).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    gradients = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, x[rank], y[rank]).backward()
        gradients.append(flat_gradients(ddp))
        optimizer.step()
    issued = sum(entry.operation == "all_reduce" for entry in flight_records())
    with torch.no_grad():
        held_out = ddp.module.loss(x[-1], y[-1])  # without a backward, .module is right
    return gradients[0], flat_weights(ddp), held_out.item(), issued


# %%
# At the end every rank evaluates the same held-out batch.

gaps, losses = {}, {}
print("             gap in             loss on one held-out batch,")
print("       gradient 1  weights 40  by rank")
for name, loss_of in (("wrong", wrong), ("fixed", right)):
    gradient, weights, losses[name], issued = zip(*launch(train, 3, loss_of), strict=True)
    gaps[name] = gap(weights)
    by_rank = "  ".join(f"{loss:.4f}" for loss in losses[name])
    print(f"{name} {gap(gradient):11.2g} {gaps[name]:11.2g}  {by_rank}")
    assert (gap(gradient) == 0) == (gaps[name] == 0) == (name == "fixed")
    assert len(set(losses[name])) == (1 if name == "fixed" else 3)
    assert set(issued) == {STEPS if name == "fixed" else 0}  # all-reduces, on every rank

record(**gaps, lowest=min(losses["wrong"]), highest=max(losses["wrong"]))

# %%
# The fix
# -------
# Call the wrapper: everything that the training loop needs goes through ``ddp(...)``, and so into ``forward``.
# ``.module`` is for what needs no gradient: evaluating, generating, saving.
#
# How you would have noticed
# --------------------------
# Let all ranks evaluate the same batch, and print the losses.
# Equal models give equal numbers; here they are between :measured:`calls-the-inner-module.lowest:.3f` and :measured:`calls-the-inner-module.highest:.3f`.
# An evaluation on rank 0 alone shows one of them, and it looks like any other.
#
# Change it: predict, then run
# ----------------------------
# In ``wrong`` add a forward of the wrapper that contributes nothing: ``return ddp.module.loss(x, y) + 0 * ddp(x).sum()``.
# Are the gradients averaged?
#
# Expect: yes, both gaps are zero: the hooks sit on the parameters, and the wrapper's forward prepares them for whatever the backward brings; the assertion that the wrong version differs fails.
#
# Say it aloud
# ------------
# "A loss that goes through ddp.module is never prepared for reduction, so each rank trains alone and no error comes.
# I let forward compute what the loop needs, and call the wrapper.
# Reaching into .module is shorter to write, and it leaves the one path on which DDP does anything."
