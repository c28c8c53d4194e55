"""
Each rank decides for itself
============================

After some epochs the job stops making progress, though every rank runs the same program.
A typical cause: early stopping compares the validation loss of the rank's own share of the data.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-differing-branches
"""

# %%
# Stop when the validation loss has risen.
# In epoch 2 rank 1's has risen, and the others' have not.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem, report

VALIDATION = [[9, 7, 6, 5, 6], [8, 6, 7, 5, 6], [9, 8, 6, 5, 7]]  # by rank and epoch


def wrong(loss, best, group):
    return loss > best, loss


def right(loss, best, group):
    mean = torch.tensor(float(loss), device=device())
    dist.all_reduce(mean, group=group)
    mean = mean.item() / dist.get_world_size(group)
    return mean > best, mean


def train(decide, timeout_s):
    # On every machine a gloo group, whose timeout raises; NCCL's would end the process.
    group = gloo_group()
    model, best = DDP(nn.Linear(4, 1).to(device()), process_group=group), float("inf")
    shorten(group, timeout_s)  # all are ready to train
    for epoch, loss in enumerate(VALIDATION[dist.get_rank()]):
        print(f"trains epoch {epoch}")
        model(torch.ones(2, 4, device=device())).sum().backward()
        stop, loss = decide(loss, best, group)
        if stop:
            return f"stopped after epoch {epoch}"
        best = min(best, loss)
    return "trained to the end"


endings = postmortem(train, 3, wrong, 2)
print(report(endings, said=1))
assert [e.how for e in endings] == ["raised", "returned", "raised"]
assert endings[1].value == "stopped after epoch 2"
waiting = [e for e in endings if e.how == "raised"]
assert all(e.printed.splitlines()[-1] == "trains epoch 3" for e in waiting)
assert all("backward" in e.where for e in waiting)
assert any("Timed out waiting 2000ms" in e.error for e in waiting)

# %%
# Rank 1 has left the loop normally.
# The others train epoch 3, and their first backward waits for it.
#
# The run after the fix
# ---------------------
# The ranks share the number, and so the decision: an all-reduced mean is equal on all ranks, to the last bit.

results = launch(train, 3, right, 60, quiet=True)
print(*results, sep="\n")
assert results == ["stopped after epoch 4"] * 3
record(alone_after=int(endings[1].value[-1]), together_after=int(results[0][-1]))

# %%
# The fix
# -------
# Whatever decides the control flow must be equal on all ranks: all-reduce the number, or let one rank decide and broadcast the decision.
# That holds for early stopping, for a learning rate that falls on a plateau, for "skip this batch, its loss is NaN", for a time limit, for ``SIGTERM``, and for "resume if the file exists".
# If one rank's veto is enough, all-reduce a flag with ``ReduceOp.MAX``.
#
# How to recognize it
# -------------------
# The ranks' last log lines differ: one has left, or is in another phase, and the others wait in ``backward``.
# It begins at an epoch that differs from run to run, unless the seed is fixed; a missing call under ``if rank == 0:`` (:doc:`plot_04_missing_collective`) hangs at the same place each time.
