"""
monitored_barrier names the rank that is missing
================================================

A barrier that fails says that somebody was missing.
``monitored_barrier`` says who: rank 0 waits for a word from each rank in turn, and names the first that does not come, or all of them.
It serves :ref:`debugging-tools`.
"""

# %%
# Four ranks; 1 and 3 never come, as if they were stuck in their data.

import datetime

import torch.distributed as dist

from ddplab.labs.postmortem import postmortem


def barrier(kind):
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() in (1, 3):
        return
    if kind == "barrier":
        dist.barrier(group=group)
    else:
        timeout = datetime.timedelta(seconds=0.7)
        dist.monitored_barrier(group, timeout=timeout, wait_all_ranks=kind == "all")


def show(endings):
    for ending in endings:
        words = ending.error.split("\n")[0].replace("RuntimeError: ", "").split("] ", 1)
        print(
            f"rank {ending.rank}: {words[-1] if ending.error else 'never comes, says nothing'}"[
                :95
            ]
        )


endings = postmortem(barrier, 4, "barrier")
show(endings)
assert [e.how for e in endings] == ["raised", "returned", "raised", "returned"]
assert all("rank" not in e.error.lower() for e in endings)

# %%
# The plain barrier names nobody.
# Now ``monitored_barrier``.

endings = postmortem(barrier, 4, "first")
show(endings)
assert "Rank 1 failed to pass monitoredBarrier in 700 ms" in endings[0].error
assert "Please check rank 0 logs" in endings[2].error

# %%
# Rank 0 names the first rank that it waited for in vain, and gives up: rank 3 is missing, too, and is not named.
# Rank 2 was there, and says where to look: in rank 0's log.
#
# With ``wait_all_ranks=True`` rank 0 asks all of them.

endings = postmortem(barrier, 4, "all")
show(endings)
assert "Ranks 1, 3 failed to pass monitoredBarrier in 700 ms" in endings[0].error

# %%
# When to reach for it
# --------------------
# Put it where a step begins while you look for a hang, with a timeout that is longer than a healthy step, and take it out again.
# It talks to the ranks one after the other, so it costs more than a barrier with many ranks.
#
# What it does not tell
# ---------------------
# Where the missing rank is: it has to be asked itself (``py-spy``, ``faulthandler``).
# And it works on gloo only. Beside an NCCL group make a gloo group for it: ``dist.new_group(backend="gloo")``, on all ranks.
