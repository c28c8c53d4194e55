"""
One rank is late
================

The job dies while rank 0 still prepares the data, and rank 0 itself complains about the others.
It is written this way: rank 0 downloads or tokenizes, and the other ranks wait for it in a barrier.
It serves :ref:`faults`.
"""

# %%
# The group's timeout is one second here instead of 30 minutes, and the preparation takes two.

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.labs.postmortem import postmortem, report


def wrong():
    # On every machine a gloo group, whose timeout raises; NCCL's would end the process.
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        time.sleep(2)  # prepares the data
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
# The ranks that wait are punctual; their time is up first, and they fail.
# (If one is a little faster, the other hears of its end before its own time is up, and says so.)
# Rank 0 finishes its work, enters the barrier and finds nobody: it says ``closed by peer`` and points at the ranks that it kept waiting.
# A barrier counts like any other collective: the group's timeout is its patience.
#
# The run after the fix
# ---------------------
# A group of its own for the slow phase, with the patience which that phase needs; the training keeps its short timeout.


def right():
    short = dist.new_group(backend="gloo", timeout=timedelta(seconds=1))
    patient = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    if dist.get_rank() == 0:
        time.sleep(2)
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
# If it has to be inside, give that phase a patient group as above; gloo works beside NCCL, and its barrier occupies no GPU.
# A long timeout for everything also works, and hides every real hang for as long.
#
# How to recognize it
# -------------------
# ``Timed out waiting …ms`` on several ranks, and the number is exactly the group's timeout.
# The rank that has *another* message, or is still busy, is the late one: look into its output, not into its error.
# A missing collective (:doc:`plot_04_missing_collective`) looks alike at first; a longer timeout heals lateness and never a missing call.
