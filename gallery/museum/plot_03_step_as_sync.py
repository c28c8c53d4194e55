"""
The optimizer step taken for the sync
=====================================

Some texts claim that ranks synchronize in ``optimizer.step()``.
If you believe that, you accumulate *all* micro-batches under ``no_sync`` and let the step do the rest.
It serves :ref:`museum`.

``optimizer.step()`` is arithmetic on this rank; nothing in it communicates.
Keep in mind: a step of the optimizer without a collective before it is a step of this rank alone.

:Level: core, 10 minutes
:Proves: museum-step-as-sync
"""

# %%
# In the right version the last micro-batch leaves ``no_sync``: its backward reduces the sum of all.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap
from ddplab.runtime.torch_private import flight_records

STEPS, MICRO = 40, 4


def loss_of(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y) / MICRO


def wrong(model, optimizer, batches):
    with model.no_sync():
        for batch in batches:
            loss_of(model, batch).backward()
    optimizer.step()  # "synchronizes"


def right(model, optimizer, batches):
    with model.no_sync():
        for batch in batches[:-1]:
            loss_of(model, batch).backward()
    loss_of(model, batches[-1]).backward()  # synchronizes
    optimizer.step()


def train(one_step):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(ranks, MICRO, 4, 4).to(device())
    y = x.sum(dim=-1, keepdim=True).sin()
    batches, weights = list(zip(x[rank], y[rank], strict=True)), []
    seen = []  # how many collectives there were, before and after each step of the optimizer
    optimizer.register_step_pre_hook(lambda *_: seen.append(len(flight_records())))
    optimizer.register_step_post_hook(lambda *_: seen.append(len(flight_records())))
    for _ in range(STEPS):
        optimizer.zero_grad()
        one_step(model, optimizer, batches)
        weights.append(flat_weights(model))
    assert seen[::2] == seen[1::2]  # a step sends nothing, in either version
    issued = sum(entry.operation == "all_reduce" for entry in flight_records()) // STEPS
    with torch.no_grad():  # the loss that this rank logs, and the loss on all ranks' data
        own, every = (nn.functional.mse_loss(model.module(x[at]), y[at]) for at in (rank, ...))
    return weights, issued, own.item(), every.item()


# %%
# The logged loss is that of rank 0 on its own data.

found = {}
print("       all-reduces     gap after     logged  loss on all data,")
print("          per step  step 1  step 40    loss  by rank")
for name, one_step in (("wrong", wrong), ("fixed", right)):
    weights, issued, own, every = zip(*launch(train, 3, one_step), strict=True)
    first, *_, last = gaps = [gap(at_once) for at_once in zip(*weights, strict=True)]
    by_rank = "  ".join(f"{loss:.3f}" for loss in every)
    print(f"{name} {issued[0]:12} {first:7.2g} {last:8.2g} {own[0]:7.3f}  {by_rank}")
    found[name] = last, own[0], min(every)
    assert set(issued) == {1 if name == "fixed" else 0}
    assert {at_step == 0 for at_step in gaps} == {name == "fixed"}

assert found["wrong"][1] < found["fixed"][1]  # the logged curve looks better ...
assert found["wrong"][2] > found["fixed"][2]  # ... and no rank has learned as much
for name, (last, own, every) in found.items():
    record(**{name: last, f"logged_{name}": own, f"best_{name}": every})

# %%
# The fix
# -------
# Leave ``no_sync`` for the last micro-batch: its backward reduces what all of them have accumulated.
# ``optimizer.step()`` is local arithmetic, and sends nothing in either version.
#
# How you would have noticed
# --------------------------
# Count the collectives of one optimizer step: none means that nothing was shared.
# Do not rely on the logged loss: each rank fits its own data, so the wrong curve ends *lower*, at :measured:`step-as-sync.logged_wrong:.3f` instead of :measured:`step-as-sync.logged_fixed:.3f`.
# On the data of all ranks the best of them has :measured:`step-as-sync.best_wrong:.3f`, against :measured:`step-as-sync.best_fixed:.3f`.
#
# Change it: predict, then run
# ----------------------------
# In ``wrong``, after the step, average the weights: ``for p in model.parameters(): dist.all_reduce(p.data.div_(dist.get_world_size()))``.
# Does it now end where the fixed version does?
#
# Expect: yes, with no gap and the same losses, for one all-reduce per parameter: SGD with momentum is linear in the gradient; the assertion on the number of all-reduces fails.
#
# Say it aloud
# ------------
# "Ranks synchronize in the backward, so the last micro-batch has to leave no_sync.
# If all of them stay inside, each rank trains its own model, and its own loss even looks better.
# Averaging weights after the step would do for plain SGD; with Adam it is another method, and it gives up the overlap with the backward."
