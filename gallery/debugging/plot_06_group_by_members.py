"""
``new_group`` called by its members only
========================================

A subgroup works for days; then someone adds a second group, and the program hangs where that one is created.
A typical cause: only ranks 1 and 2 need the first group, so the call is under ``if rank in members:``.
It serves :ref:`faults`.

:Level: evidence, 10 minutes
:Proves: fault-group-by-members
"""

# %%
# Ranks 1 and 2 create their own group and use it; later all ranks create a group of all.
# Each rank prints the names of its groups.

from datetime import timedelta

import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.apparatus.postmortem import postmortem, report
from ddplab.runtime.needs import ON_CPU

MEMBERS = [1, 2]
SHORT = timedelta(seconds=1)  # by default 30 minutes


def train():
    dist.barrier()  # stands for a few thousand steps of all ranks


def wrong():
    rank, seen = dist.get_rank(), []
    try:
        if rank in MEMBERS:
            pair = dist.new_group(MEMBERS, backend="gloo")
            total = torch.ones(1)
            dist.all_reduce(total, group=pair)
            seen.append(f"group {pair.group_name}: sum {total.item():.0f}")
        train()
        everyone = dist.new_group(backend="gloo", timeout=SHORT)
        seen.append(f"group {everyone.group_name} of all")
    except RuntimeError as error:  # kept, because rank 0's end would end the store, too
        seen.append(f"{type(error).__name__}: {error}")
    return "; ".join(seen)


endings = postmortem(wrong, 3, env=ON_CPU)
print(report(endings))
first, *others = [e.value for e in endings]
assert first.startswith("DistStoreError: wait timeout after 1000ms, keys: ")
assert "//1//" in first
for seen in others:
    assert seen.startswith("group 1: sum 2; DistStoreError: wait timeout after 1000ms")
    assert "//2//" in seen

# %%
# Groups are numbered, and the number is the prefix of their keys in the store, where ranks leave their addresses.
# Ranks 1 and 2 have counted one more group: they look for rank 0 under number 2, and rank 0 looks for rank 2 under number 1.
# What each asks for is in its key, ``/…/<group>/…/<rank>``.
#
# Ask for the place
# -----------------
# In torch 2.13 ``new_group`` does not wait for ranks that are not members, so the first call works by luck.
# ``TORCH_DIST_INIT_BARRIER=1`` makes each ``new_group`` wait for all ranks (``_new_group_with_tag`` in ``distributed_c10d.py``), and the hang moves to the call that is wrong: the members wait in it while rank 0 trains.

env = {**ON_CPU, "TORCH_DIST_INIT_BARRIER": "1"}
strict = postmortem(wrong, 3, timeout_s=2, group_timeout_s=60, env=env)
print(report(strict))
assert [e.how for e in strict] == ["hung"] * 3
assert "called by train" in strict[0].where
assert all(e.where.startswith("new_group, called by wrong") for e in strict[1:])

# %%
# The run after the fix
# ---------------------
# All ranks call ``new_group`` for every group, in the same order.
# Or the group is named after its members, with ``use_local_synchronization=True``, and then only they need to call.
# Create such a group after those of all ranks: in torch 2.14 its members count it, and a later group of all hangs as above.


def right(local):
    rank = dist.get_rank()
    everyone = dist.new_group(backend="gloo")
    pair = None
    if not local or rank in MEMBERS:
        pair = dist.new_group(MEMBERS, backend="gloo", use_local_synchronization=local)
    sums = []
    for group in [pair] * (rank in MEMBERS) + [everyone]:
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        sums.append(int(total))
    return everyone.group_name, sums


for local in (False, True):
    results = launch(right, 3, local, env=ON_CPU)
    print(*results)
    assert len({name for name, _ in results}) == 1
    assert [sums for _, sums in results] == [[3], [2, 3], [2, 3]]

# %%
# The fix
# -------
# Move the call out of the ``if``; a rank that is not a member gets ``GroupMember.NON_GROUP_MEMBER`` and must not use it.
# ``dist.new_subgroups`` and ``init_device_mesh`` create regular sets of groups on all ranks.
#
# How to recognize it
# -------------------
# ``wait timeout after …ms, keys:`` with *different* group numbers on different ranks, from a line with ``new_group`` in it, or from DDP or checkpoint code that creates a group.
# Print ``group.group_name`` on every rank: it must be the same.
# If the groups that miss each other have equal sizes, there is not even an error: see :ref:`from-scratch-mesh`.
