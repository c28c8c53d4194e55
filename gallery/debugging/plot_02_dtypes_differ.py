"""
The ranks' tensors differ in dtype
==================================

The metric is absurd, or different on each rank, but nothing failed.
A typical cause: each rank takes bfloat16 if its GPU supports it, else float16, and the job got two kinds of GPU.
Or: a rank without samples creates its own ``torch.zeros(n)``, while the others computed theirs under autocast.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-dtypes-differ
"""

# %%
# Both ranks have four elements; each takes the dtype that fits its hardware.

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import launch, record
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report


def wrong(dtypes):
    gloo = gloo_group()  # on every machine: NCCL moves and adds bytes in its own way
    rank = dist.get_rank()
    scores = torch.full([4], rank + 1.0).to(dtypes[rank])
    dist.all_reduce(scores, group=gloo)
    return scores.tolist()


half = postmortem(wrong, 2, [torch.float16, torch.bfloat16])
print(report(half))
assert [e.how for e in half] == ["returned", "returned"]
assert [e.value for e in half] != [[3.0] * 4] * 2
assert half[0].value != half[1].value

# %%
# The right answer is 3 everywhere.
# gloo sent bytes, and each rank interpreted the other's two bytes in its own dtype.
#
# DDP does this to a whole model
# ------------------------------
# The constructor compares the shapes of the parameters, not their dtypes, and then sends rank 0's bytes.


def wrong_model(dtypes):
    gloo = gloo_group()
    layer = nn.Linear(2, 1, bias=False).to(dtypes[dist.get_rank()])
    nn.init.ones_(layer.weight)
    DDP(layer, process_group=gloo)
    return layer.weight.tolist()


models = postmortem(wrong_model, 2, [torch.float16, torch.bfloat16])
print(report(models))
assert [e.how for e in models] == ["returned", "returned"]
assert models[0].value == [[1.0, 1.0]] != models[1].value
record(silent_runs=sum({e.how for e in run} == {"returned"} for run in (half, models)))

# %%
# Only where the dtypes differ in *size* does a rank fail, with the same message as for tensors of different lengths.

wide = postmortem(wrong, 2, [torch.float32, torch.float64])
print(report(wide, said=2))
assert [e.how for e in wide] == ["died", "raised"]
assert "op.preamble.length <= op.nbytes" in wide[0].printed
assert re.search("Connection (closed|reset) by peer", wide[1].error)

# %%
# For collectives that you call yourself, ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` makes the silent case an error that names the dtypes.

named = postmortem(
    wrong, 2, [torch.float16, torch.bfloat16], env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
)
for e in named:
    print(f"rank {e.rank} │ {e.error.splitlines()[0].partition('ranks.')[0]}ranks. …")
    print(f"rank {e.rank} │     {e.error.rpartition('.')[2]}")
assert [e.how for e in named] == ["raised", "raised"]
assert "dtypes: Halfvs BFloat16" in named[0].error
assert "dtypes: BFloat16vs Half" in named[1].error

# %%
# The run after the fix
# ---------------------
# One dtype for what is sent, given explicitly in the call.


def right(dtypes):
    gloo = dist.new_group(backend="gloo")
    scores = torch.full([4], dist.get_rank() + 1.0).to(dtypes[dist.get_rank()])
    scores = scores.to(torch.float32)
    dist.all_reduce(scores, group=gloo)
    return scores.tolist()


sums = launch(right, 2, [torch.float16, torch.bfloat16])
print(*sums)
assert sums == [[3.0] * 4] * 2

# %%
# The fix
# -------
# Convert before the call, ``x.to(torch.float32)``, and create the results of a rank without samples with ``dtype=``.
# Decide on a dtype once, on rank 0, and broadcast the decision before the model is built.
#
# How to recognize it
# -------------------
# Silent: a sum that differs between ranks, which a correct all-reduce never produces, or that no addition explains.
# Compare the results of two ranks before you doubt the data.
# Loud: the abort of :doc:`plot_01_shapes_differ`, with two numbers of bytes of which one is twice or four times the other.
