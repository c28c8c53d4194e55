"""
monitored_barrier names the rank that is missing
================================================

A barrier that fails reports that some rank was missing.
``monitored_barrier`` reports which one: rank 0 waits for a message from one rank after the other, and names the first that does not come, or all of them.
It serves :ref:`debugging-tools`.

A plain barrier knows that somebody is missing; a monitored one has rank 0 ask each rank in turn.
So the names are in rank 0's log, and rank 0 has to be there.

:Level: core, 10 minutes
:Proves: tool-monitored-barrier
"""

# %%
# Four ranks; 1 and 3 never come, as if they were stuck in their data.

import datetime

import torch.distributed as dist

from ddplab.apparatus.postmortem import postmortem


def barrier(kind):
    dist.barrier()  # its timeout bounds the making of a group, too: all ranks come to it together
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    if dist.get_rank() in (1, 3):
        return
    if kind == "barrier":
        dist.barrier(group=group)
    else:
        timeout = datetime.timedelta(seconds=3)
        dist.monitored_barrier(group, timeout=timeout, wait_all_ranks=kind == "all")


def show(endings):
    for ending in endings:
        words = ending.error.split("\n")[0].replace("RuntimeError: ", "").split("] ", 1)
        print(
            f"rank {ending.rank}: {words[-1] if ending.error else 'never comes, prints nothing'}"[
                :95
            ]
        )


endings = postmortem(barrier, 4, "barrier")
show(endings)
assert [e.how for e in endings] == ["raised", "returned", "raised", "returned"]
assert all("rank" not in e.error.lower() for e in endings)

# %%
# The plain barrier names no rank.
# Now ``monitored_barrier``.

endings = postmortem(barrier, 4, "first")
show(endings)
assert "Rank 1 failed to pass monitoredBarrier in 3000 ms" in endings[0].error
assert "Please check rank 0 logs" in endings[2].error

# %%
# Rank 0 names the first rank that it waited for in vain, and gives up: rank 3 is also missing, but not named.
# Rank 2 was there, and its message shows where to look: in rank 0's log.
#
# With ``wait_all_ranks=True`` rank 0 waits for all of them.

endings = postmortem(barrier, 4, "all")
show(endings)
assert "Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms" in endings[0].error

# %%
# When to reach for it
# --------------------
# Put it where a step begins while you look for a hang, with a timeout that is longer than a healthy step, and remove it afterward.
# It contacts the ranks one after the other, so with many ranks it costs more than a barrier.
#
# What it does not show
# ---------------------
# Where the missing rank is: get its own stack (``py-spy``, ``faulthandler``).
# And it works on gloo only. Beside an NCCL group, create a gloo group for it: ``dist.new_group(backend="gloo")``, on all ranks.
#
# Change it: predict, then run
# ----------------------------
# Let rank 0 miss the monitored barriers: ``in ((1, 3) if kind == "barrier" else (0, 3))``.
# Who names whom?
#
# Expect: nobody; ranks 1 and 2 report that they were there, and the assertion fails.
#
# Say it aloud
# ------------
# "While I look for a hang, ``monitored_barrier`` stands where a step begins, and I read rank 0's log.
# Beside NCCL it needs a gloo group.
# It names the missing ranks, and costs a round through rank 0 in every step."
