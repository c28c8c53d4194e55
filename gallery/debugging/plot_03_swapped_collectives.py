"""
Two collectives in another order
================================

The numbers in the log are wrong, the same on all ranks, but nothing failed.
A typical cause: metrics are in a dict, each is all-reduced in a loop over it, and the ranks filled their dicts in different orders.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-swapped-collectives
"""

# %%
# Rank 1 met an example of the rare class before a common one.
# The right counts are 10 + 10 and 1 + 1.

import re

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report

COUNTS = {"common": 10.0, "rare": 1.0}
SEEN = [["common", "rare"], ["rare", "common"]]
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def count(sizes, in_order):
    gloo = gloo_group()  # on every machine: which messages meet, and their texts, are gloo's
    metrics = {name: torch.full([sizes[name]], COUNTS[name]) for name in SEEN[dist.get_rank()]}
    for name in sorted(metrics) if in_order else metrics:
        dist.all_reduce(metrics[name], group=gloo)
    return {name: metrics[name].unique().tolist() for name in COUNTS}


alike = {"common": 1, "rare": 1}
endings = postmortem(count, 2, alike, False)
print(report(endings))
assert [e.value for e in endings] == [{"common": [11.0], "rare": [11.0]}] * 2

# %%
# Collectives have no names: the first call of a rank meets the first call of the other, whatever the variables are called.
# ``DETAIL`` compares operation, number, dtype and shape, and all of these are equal:

endings = postmortem(count, 2, alike, False, env=DETAIL)
print(report(endings))
assert [e.value for e in endings] == [{"common": [11.0], "rare": [11.0]}] * 2
record(right_results=sum(e.value["rare"] == [2.0] for e in endings))

# %%
# If the shapes differ, the same mistake ends the job at once, as in :doc:`plot_01_shapes_differ`.

differing = {"common": 100, "rare": 1}
endings = postmortem(count, 2, differing, False)
print(report(endings, said=2))
assert [e.how for e in endings] == ["raised", "died"]
assert re.search("Connection (closed|reset) by peer", endings[0].error)
assert "op.preamble.length <= op.nbytes" in endings[1].printed

named = postmortem(count, 2, differing, False, env=DETAIL)
print("\nwith DETAIL:")
for e in named:
    print(f"rank {e.rank} │ {e.error.rpartition('.')[2]}")
assert [e.how for e in named] == ["raised", "raised"]
assert named[0].error.endswith("Tensor shapes: 100vs 1")

# %%
# The run after the fix
# ---------------------
# The same loop over ``sorted(metrics)``.

for sizes in (alike, differing):
    counts = launch(count, 2, sizes, True)
    print(*counts)
    assert counts == [{"common": [20.0], "rare": [2.0]}] * 2

# %%
# The fix
# -------
# Give the calls an order that does not depend on the data: a fixed list of names, ``sorted(…)``, or one stacked tensor and one all-reduce.
# The same holds for sets, for the files that ``os.listdir`` returns, and for collectives issued by two threads.
# All ranks must also have the same *names*; a rank that lacks one sends a zero.
#
# How to recognize it
# -------------------
# Silent: the sum of all metrics is right and each is wrong.
# Reduce known values once, ``rank + 10 ** index`` for metric number ``index``: a rank that receives something else is in a different order.
# The flight recorder does not help if the shapes are equal, unless you compare the *lines* that called (:ref:`internals-flight-recorder`); these are also equal if the calls are in a loop.
