"""
A rank is killed
================

Three ranks fail within a few milliseconds with tracebacks about the network, and someone starts to look for a bad cable.
A typical cause: the machine runs out of memory, and the kernel's OOM killer ends one process with ``SIGKILL``, in the middle of a step.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-killed-rank
"""

# %%
# Here rank 2 kills itself in step 5.

import os
import re
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import launch, record
from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem, report


def train(killed_rank, timeout_s=60):
    group = gloo_group()  # on every machine: the texts below are gloo's
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shorten(group, timeout_s)  # all are ready to train
    for step in range(8):
        if step == 5 and dist.get_rank() == killed_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return f"after {step + 1} steps"


endings = postmortem(train, 4, 2)
print(report(endings))
assert [e.how for e in endings] == ["raised", "raised", "died", "raised"]
assert endings[2].error == "was killed by SIGKILL"
assert endings[2].printed == ""
survivors = [e for e in endings if e.how == "raised"]
assert all(re.search("Connection (closed|reset) by peer", e.error) for e in survivors)
assert all("backward" in e.where for e in survivors)

# %%
# Who is the cause?
# -----------------
# The dead rank reports nothing: no traceback, no output, no exit handler.
# The others are in the same ``backward`` and report a broken connection: a *consequence*.
# Whether the message is ``closed`` or ``reset``, and which rank is first, changes from run to run.
# So do not go by the time; go by the message.


def root_cause(endings):
    silent = [e for e in endings if e.how == "died"]
    spoke = [e for e in endings if e.how == "raised" and "by peer" not in e.error]
    return (spoke + silent)[0]


cause = root_cause(endings)
print(f"rank {cause.rank} is the cause: it {cause.error}")
record(survivors=len(survivors), cause=cause.rank)
assert cause.rank == 2

# %%
# It spreads
# ----------
# gloo's ring connects neighbors only, and rank 0 is not a neighbor of rank 2.
# What it noticed was the end of rank 1 or 3.
# Here the survivors catch the error and stay, like a program whose ``except`` cleans up:


def caught(killed_rank):
    try:
        return train(killed_rank, timeout_s=3)
    except RuntimeError as error:
        heard = re.search("Timed out|Connection (closed|reset) by peer", str(error))
        return heard[0] if heard else str(error)


staying = postmortem(caught, 4, 2)
print(report(staying))
assert staying[0].value == "Timed out"
assert all("by peer" in staying[neighbour].value for neighbour in (1, 3))

# %%
# The run after the fix
# ---------------------
# No rank is killed.

results = launch(train, 4, None)
print(*results, sep="\n")
assert results == ["after 8 steps"] * 4

# %%
# The fix
# -------
# Find out who sent the signal, on the machine of that rank.
# ``dmesg`` or ``journalctl -k`` names a process that the kernel's OOM killer ended; in a container or a Slurm job the limit is that of a control group, and ``oom_kill`` in its ``memory.events`` is the counter.
# Then use less host memory on that rank: fewer data loader workers, no list that grows, no whole checkpoint on every rank at once.
# Until then, checkpoints and ``torchrun --max-restarts`` limit the damage.
#
# How to recognize it
# -------------------
# The launcher knows the exit code: ``exitcode: -9``, which is ``SIGKILL``; a Python error is 1, an abort in C++ -6.
# All ranks that report anything report ``Connection closed by peer`` or ``reset by peer``, and one is silent.
# With two machines see :ref:`setup-network-faults`.
