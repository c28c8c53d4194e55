"""
What the constructor does
=========================

What has happened when ``DistributedDataParallel(model)`` returns, and what has it not looked at?
This lab reads the model on every rank before and after, lists the collectives, and gives it models that differ.
It serves :ref:`internals-constructor`.

The constructor is the one moment at which DDP looks at the model: it compares shapes, then copies rank 0's state to all ranks.
Keep in mind: what is registered with the module is copied, once; everything else is yours.

:Level: core, 15 minutes
:Proves: ctor-broadcasts-state ctor-verifies-shapes
"""

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record

# %%
# Before and after
# ----------------
# Each rank fills every tensor of its model with its own rank.
# What is 0 on rank 1 afterwards has been copied from rank 0.


class Model(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.weight = nn.Parameter(torch.full((256, 256), fill))
        self.frozen = nn.Parameter(torch.full((16,), fill), requires_grad=False)
        self.register_buffer("statistic", torch.full((16,), fill))
        self.register_buffer("scratch", torch.full((16,), fill), persistent=False)
        self.plain = torch.full((16,), fill)  # an attribute that torch does not know about


def values(model, optimizer):
    named = {f"parameter {name}": tensor for name, tensor in model.named_parameters()}
    named |= {f"buffer {name}": tensor for name, tensor in model.named_buffers()}
    state = optimizer.state[model.weight]["exp_avg"]
    named |= {"attribute plain": model.plain, "optimizer state": state}
    return {name: tensor.mean().item() for name, tensor in named.items()}


def copy_state():
    rank = float(dist.get_rank())
    model = Model(rank).to(device())
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model.weight]["exp_avg"] = torch.full((16,), rank)
    before = values(model, optimizer)
    host = [torch.profiler.ProfilerActivity.CPU]  # a GPU's spans have the same names
    with torch.profiler.profile(activities=host, record_shapes=True) as profile:
        DistributedDataParallel(model)
    sent = [e for e in profile.events() if e.name.startswith(("gloo:", "nccl:"))]
    calls = [(e.name.partition(":")[2], e.input_shapes) for e in sent]
    return before, values(model, optimizer), calls


(_, rank_0, calls), (before, after, _), (_, rank_2, _) = launch(copy_state, 3, quiet=True)
print("on rank 1            before   after")
for name in before:
    whose = "its own" if after[name] else "copied from rank 0"
    print(f"{name:21}{before[name]:6.0f}{after[name]:8.0f}   {whose}")
OWN = "attribute plain", "optimizer state"
for rank, held in enumerate((rank_0, after, rank_2)):
    assert held == {name: rank * (name in OWN) for name in held}

# %%
# The collectives
# ---------------
# The profiler names what was sent: the number of parameters, then their shapes and strides, then the state itself.
# The state travels flat, one broadcast for all tensors of a type up to 250 MiB.

for name, shapes in calls:
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"{name:12}{elements:8} element{'s' * (elements > 1)}")
record(unit="collectives", collectives=len(calls))

# %%
# Shapes that differ
# ------------------
# Rank 2 of three has a layer of a different width.
# Each rank compares the shapes of rank 0 with its own, and only a rank that differs raises.
# Rank 0 goes on to send its state, and learns of the failure only when its peer is gone (gloo).


def differ():
    rank = dist.get_rank()
    model = nn.Linear(4, 5 if rank == 2 else 4)
    nn.init.constant_(model.weight, rank)
    try:
        DistributedDataParallel(model.to(device()))
        print(f"built; weights of rank {model.weight[0, 0].item():.0f}")
    except RuntimeError as error:
        print(re.search(r"params\[.*match|Connection \w+ by peer|$", str(error)).group())
        print(f"raised; weights of rank {model.weight[0, 0].item():.0f}")
        raise


failure = None
try:
    launch(differ, 3)
except LaunchError as error:
    failure = error
assert failure is not None
assert failure.rank == 2
assert "[5, 4] appears not to match" in failure.outputs[2]
assert "raised; weights of rank 2" in failure.outputs[2]

# %%
# Shapes that are not compared
# ----------------------------
# Buffers and frozen parameters are broadcast but not checked.
# Here rank 1 has a buffer of a different shape with the same number of elements; the values are copied in the order in which they lie in memory.


def differ_in_a_buffer():
    model, rank = nn.Linear(4, 4), dist.get_rank()
    values = torch.arange(6.0).view((3, 2) if rank else (2, 3)) - rank
    model.register_buffer("scale", values)
    DistributedDataParallel(model.to(device()))
    print(model.scale.tolist())
    return model.scale.flatten().tolist()


assert launch(differ_in_a_buffer, 2) == [[0, 1, 2, 3, 4, 5]] * 2

# %%
# What to notice
# --------------
# * Parameters (frozen ones too) and buffers are those of rank 0, so different seeds before the constructor do no harm.
# * The optimizer's state is not copied, nor is anything that a module holds without registering it.
# * A rank that differs raises before anything is copied to it.
#   A rank that agrees with rank 0 gets no notice: it may finish its constructor and wait in the first collective after it.
# * The check covers the parameters that require a gradient, by size and stride; it does not cover buffers.
#
# What this does not mean
# -----------------------
# Equal state at the start does not guarantee equal state later.
# After the constructor DDP never compares parameters again: a rank that changes a weight by hand stays different.
#
# Change it: predict, then run
# ----------------------------
# In ``copy_state`` pass ``init_sync=False`` to ``DistributedDataParallel``.
# What stands in the column *after*, row by row?
#
# Expect: each row keeps what rank 1 brought, parameters and buffers included; the assertion that only two rows are its own fails.
#
# Say it aloud
# ------------
# "The constructor compares the parameters' shapes over the ranks, then broadcasts rank 0's parameters and buffers, and never looks at them again.
# So seeds may differ before it, and must not matter after it.
# Skipping that copy starts a job sooner, and leaves it to you that all ranks hold the same weights."
