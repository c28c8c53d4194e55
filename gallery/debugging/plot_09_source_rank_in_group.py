"""
A source rank that is not in the group
======================================

A broadcast inside a subgroup fails, or sends the data of the wrong rank.
A typical cause: ``src=0`` is meant as "the first of this group", but ``src`` counts in the whole job.
It serves :ref:`faults`.

:Level: evidence, 5 minutes
:Proves: fault-source-rank-in-group
"""

# %%
# Ranks 2 and 3 form a group; each rank holds its own number.
# Ranks 0 and 1 are not members but make the call anyway, as often happens in a function that all ranks run.

import torch
import torch.distributed as dist

from ddplab import device, launch, record
from ddplab.apparatus.postmortem import postmortem, report


def broadcast(members, who_calls, source):
    group = dist.new_group(members)
    dist.barrier()  # all have created the group
    mine = torch.tensor([dist.get_rank()], device=device())
    if dist.get_rank() in who_calls:
        dist.broadcast(mine, **source, group=group)
    return mine.item()


endings = postmortem(broadcast, 4, [2, 3], range(4), {"src": 0})
print(report(endings))
assert [e.how for e in endings] == ["raised"] * 4
for e in endings[:2]:
    assert "Invalid process group specified" in e.error
for e in endings[2:]:
    assert "ValueError: Global rank 0 is not part of group" in e.error

# %%
# All four fail before anything is sent, so none of them waits.
# The members name the rank; the others got ``GroupMember.NON_GROUP_MEMBER`` from ``new_group``, which is not a group for calls.
#
# The silent form
# ---------------
# Ranks 1 and 2 form the group, and the data should come from its second member, rank 2.
# ``src=1`` exists in this group; it is the *first* member.

silent = postmortem(broadcast, 3, [1, 2], [1, 2], {"src": 1})
print(report(silent))
assert [e.value for e in silent] == [0, 1, 1]
record(ranks_with_wrong_data=sum(e.value == 1 for e in silent))

# %%
# The run after the fix
# ---------------------
# ``group_src`` counts within the group.

results = launch(broadcast, 3, [1, 2], [1, 2], {"group_src": 1})
for rank, value in enumerate(results):
    print(f"rank {rank} │ has {value}")
assert results == [0, 2, 2]

# %%
# The fix
# -------
# Use ``group_src=`` (or ``group_dst=``) whenever you pass a group; ``dist.get_global_rank(group, 1)`` translates where an older torch, or another call, requires the global number.
# Call only where ``dist.get_rank(group)`` is not -1.
#
# How to recognize it
# -------------------
# ``Global rank … is not part of group`` on members, ``Invalid process group specified`` on the others: a ``ValueError`` at once, from your own line, without a timeout.
# Since rank 0 often hosts the store, the others can notice its end first, as ``DistNetworkError: Connection reset by peer``; read rank 0's output.
# The silent form shows only in the data: broadcast the source's own number once, as here.
