"""
Another model on one rank
=========================

The job dies in DDP's constructor: ``Connection closed by peer`` on rank 0, whose log is the one that people read.
A typical cause: the model is built from the data (a vocabulary, a number of classes), and each rank sees only a share of the data.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-constructor-mismatch
"""

# %%
# The broken program
# ------------------
# ``SHARDS`` has the labels that each rank has read.
# In the first case rank 1's share has one more label, in the second rank 0's.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report

SHARDS = {
    "rank 1 differs": [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2]],
    "rank 0 differs": [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]],
}


def wrong(labels):
    return len(set(labels))


def right(labels):
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, labels)
    return len(set().union(*shares))


def worker(count_classes, shards):
    group = gloo_group()  # on every machine: the peers' text is gloo's own
    classes = count_classes(shards[dist.get_rank()])
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, classes).to(device()), process_group=group)
    model(torch.ones(2, 4).to(device())).sum().backward()
    return f"a model of {classes} classes"


# %%
# What every rank reports
# -----------------------

for case, shards in SHARDS.items():
    endings = postmortem(worker, 3, wrong, shards)
    print(case)
    print(report(endings))
    for e, labels in zip(endings, shards, strict=True):
        if e.rank in ([1] if case == "rank 1 differs" else [1, 2]):
            text = f"sizes [{len(labels)}, 4] appears not to match sizes of the same param in process 0"
            assert text in e.error
        else:
            assert e.lost_peer

# %%
# Each rank compares its shapes with those of *rank 0*, so the message comes from a rank that differs from rank 0, and rank 0 itself never prints it.
# Rank 0 then sends its parameters to a rank that has already left.
# A third rank that agrees with rank 0 may receive them, return from its constructor and fail in its first backward.
#
# If ranks differ in the *number* of parameters, every rank raises and names both counts: :ref:`internals-constructor`.
#
# The fix
# -------
# Build the model from what all ranks agree on: here the union of all labels, in a real program the configuration or a vocabulary file that all ranks read.

for shards in SHARDS.values():
    endings = postmortem(worker, 3, right, shards)
    assert [e.how for e in endings] == ["returned"] * 3
    assert {e.value for e in endings} == {"a model of 4 classes"}
print(report(endings))

# %%
# How to recognize it
# -------------------
# Look for ``appears not to match sizes of the same param in process 0`` in the logs of *all* ranks; the line begins with the rank's number and gives the shape that this rank has.
# If one rank reports it, that rank is the odd one.
# If all ranks but 0 report it, rank 0 is.
# Equal counts pass without an error, even if class 2 is a different label on each rank: compare the vocabulary itself, not its length.
