"""
One rank is late
================

The job dies while rank 0 is still preparing the data, and rank 0 itself blames the others.
A typical cause: rank 0 downloads or tokenizes, and the other ranks wait for it in a barrier.
It serves :ref:`faults`.

:Level: evidence, 5 minutes
:Proves: fault-late-rank
"""

# %%
# The group's timeout is one second here instead of 30 minutes, and the preparation takes three.

import re
import time

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem, report


def wrong():
    # On every machine a gloo group, whose timeout raises; NCCL's would end the process.
    gloo = gloo_group(timeout_s=1)
    if dist.get_rank() == 0:
        time.sleep(3)  # prepares the data
        print("the data are ready")
    dist.barrier(gloo)


endings = postmortem(wrong, 3)
print(report(endings, said=1))
assert [e.how for e in endings] == ["raised"] * 3
assert endings[0].printed == "the data are ready\n"
assert re.search("Connection (closed|reset) by peer", endings[0].error)
waiting = [e for e in endings if "Timed out waiting 1000ms" in e.error]
assert waiting
assert 0 not in [e.rank for e in waiting]
record(timed_out=len(waiting), heard_of_it=3 - len(waiting))

# %%
# Who did what
# ------------
# The ranks that wait are on time; their timeout expires first, and they fail.
# (If one is a little faster, the other sees it end before its own timeout expires, and reports that.)
# Rank 0 finishes its work, enters the barrier and finds no peer: it reports ``closed by peer`` and blames the ranks that it kept waiting.
# A barrier is like any other collective: the group's timeout applies to it.
#
# The run after the fix
# ---------------------
# A separate group for the slow phase, with the timeout that this phase needs; the training keeps its short timeout.


def right():
    short, patient = gloo_group(timeout_s=1), gloo_group(timeout_s=60)
    if dist.get_rank() == 0:
        time.sleep(3)
        print("the data are ready")
    dist.barrier(patient)
    total = torch.ones(1)
    dist.all_reduce(total, group=short)
    return total.item()


assert launch(right, 3) == [3.0] * 3

# %%
# The fix
# -------
# Best, prepare the data before the job, or before ``init_process_group`` with a marker file.
# If it has to be inside, give that phase a group with a long timeout as above; gloo works beside NCCL, and its barrier occupies no GPU.
# A long timeout for everything also works, but hides every real hang for as long.
#
# How to recognize it
# -------------------
# ``Timed out waiting …ms`` on several ranks, and the number is exactly the group's timeout.
# The rank that has a *different* message, or is still busy, is the late one: look at its output, not at its error.
# A missing collective (:doc:`plot_04_missing_collective`) looks the same at first; a longer timeout fixes lateness but never a missing call.
