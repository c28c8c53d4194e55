"""
A device mesh that you ask by name
==================================

Once a rank has two roles (which replica, which position in it), what keeps track of the numbers?
A mesh does: it arranges the ranks along named axes, and each axis has a process group.
This lab uses a small cached mesh, ``ddplab.apparatus.mesh``, and shows what goes wrong without it.
It serves :ref:`from-scratch-mesh`.

A mesh arranges the ranks in a grid with named axes, and each row along an axis is a process group.
Keep in mind: all ranks make all groups, in the same order, and each then uses the one that it is in.

:Level: deep, 15 minutes
:Proves: mesh-one-group-per-axis ddp-averages-over-one-axis new-group-by-members-crosses
"""

# %%
# Ask by name
# -----------
# One axis first, then two.
# Every rank contributes ten to the power of its number: a sum then has a 1 in the position of each rank that is in it, with rank 0 at the right.

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.mesh import named_mesh
from ddplab.runtime.needs import ON_CPU

RANKS = 4


def who_is_in(group):
    total = torch.tensor([10 ** dist.get_rank()]).to(device())
    dist.all_reduce(total, group=group)
    return f"{total.item():04}"


def places(axes):
    mesh, found = named_mesh(**axes), []
    for axis in axes:
        ranks = dist.get_process_group_ranks(mesh.group(axis))
        place = f"{axis} {mesh.rank(axis)} of {mesh.size(axis)}"
        found.append(f"{place}: ranks {ranks}, sum {who_is_in(mesh.group(axis))}")
    return "   ".join(found)


for axes in ({"data": 4}, {"replica": 2, "data": 2}):
    for rank, answer in enumerate(launch(places, RANKS, axes)):
        print(f"rank {rank}   {answer}")

# %%
# DDP over one axis
# -----------------
# DDP averages over the group that you pass; it also accepts a one-dimensional slice of torch's own mesh, ``device_mesh=``.
# Here the gradient of each rank is its rank number.


def average(option):
    mesh = named_mesh(replica=2, data=2)
    values = {"process_group": mesh.group("data"), "device_mesh": mesh.torch_mesh["data"]}
    linear = nn.Linear(1, 1, bias=False).to(device())
    ddp = DistributedDataParallel(linear, **{k: v for k, v in values.items() if k == option})
    ddp(torch.tensor([[float(dist.get_rank())]]).to(device())).sum().backward()
    return linear.weight.grad.item()


print("gradient on rank     0     1     2     3")
for option in ("no option", "process_group", "device_mesh"):
    averages = launch(average, RANKS, option)
    print(f"{option + '=' * ('_' in option):15}", *(f"{value:5.2f}" for value in averages))
    assert averages == ([1.5] * 4 if option == "no option" else [0.5, 0.5, 2.5, 2.5])

# %%
# Why the mesh is kept
# --------------------
# ``init_device_mesh`` creates new groups on every call for axes that do not hold all ranks, each with its own sockets, and nothing frees them before the end.

TIMES = 20


def ask_again(cached):
    def resources():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]

    before, begin_s, names = resources(), time.perf_counter(), set()
    for _ in range(TIMES):
        if cached:
            group = named_mesh(replica=2, data=2).group("data")
        else:
            mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("replica", "data"))
            group = mesh.get_group("data")
        names.add(group.group_name)
    took_ms = 1e3 * (time.perf_counter() - begin_s)
    new = [now - then for now, then in zip(resources(), before, strict=True)]
    assert len(names) == (1 if cached else TIMES)
    return took_ms, new, group.group_name


columns = "ms   new files and sockets   new threads   last group's name"
print(f"rank 0 asked {TIMES} times    {columns}")
for cached in (False, True):
    took_ms, (files, threads), name = launch(ask_again, RANKS, cached)[0]
    how = "named_mesh" if cached else "init_device_mesh"
    print(f"{how:21} {took_ms:6.0f} {files:23} {threads:13} {name:>19}")
    record(**{f"{how}_files": files, f"{how}_threads": threads})

# %%
# Why every rank must ask
# -----------------------
# ``new_group`` requires every rank to create every group, in the same order.
# A group's members find each other by its number, and each rank counts the groups that *it* created.
# In the first row each pair creates only its own group, and ranks 1 and 2 are so late that the lab leaves them out.


def pair_up(how):
    rank, pairs = dist.get_rank(), ([0, 1], [2, 3])
    mine = pairs[rank // 2]
    if how == "every rank makes both":
        group = [dist.new_group(pair) for pair in pairs][rank // 2]
    elif how == "use_local_synchronization":
        group = dist.new_group(mine, use_local_synchronization=True)
    elif rank in (0, 3):
        group = dist.new_group(mine)
    else:
        return "(late)"
    return f"{dist.get_process_group_ranks(group)} {who_is_in(group)}"


print(f"{'group and sum on rank':27}{'0':13}{'1':13}{'2':13}{'3':13}".rstrip())
right = ["[0, 1] 0011"] * 2 + ["[2, 3] 1100"] * 2
crossed = ["[0, 1] 1001", "(late)", "(late)", "[2, 3] 1001"]
for how in ("only its members make it", "every rank makes both", "use_local_synchronization"):
    # NCCL would split each pair off the group of all ranks, and all ranks would have to come.
    found = launch(pair_up, RANKS, how, env=ON_CPU)
    print(f"{how:27}{''.join(f'{text:13}' for text in found)}".rstrip())
    assert found == (crossed if how == "only its members make it" else right)

# %%
# What to notice
# --------------
# - The same call, ``mesh.group("data")``, gives ranks of different rows different groups; no rank computes who its peers are.
# - With a group, DDP averages within it: each pair has its own gradients, and will have its own weights.
#   That is right only where something else keeps the replicas equal, or where they are meant to be different models.
# - Twenty meshes took :measured:`device-mesh.init_device_mesh_files` files and sockets and :measured:`device-mesh.init_device_mesh_threads` threads on rank 0; the cached one took :measured:`device-mesh.named_mesh_files` and :measured:`device-mesh.named_mesh_threads`.
# - Groups that only their members create raise no error: rank 0 holds a group of ranks 0 and 1, and adds numbers with rank 3.
#   If all four arrive at once it is a race, with that result, a hang, or by luck the correct one.
#
# What this does not mean
# -----------------------
# That plain DDP needs a mesh: over all ranks of a job, the default group is enough.
#
# Change it: predict, then run
# ----------------------------
# Pass the other axis to DDP: ``"process_group": mesh.group("replica")``.
# Which gradient does each of the four ranks get in that row?
#
# Expect: 1, 2, 1, 2: ranks 0 and 2 average with each other, and so do 1 and 3; the assertion that expects the pairs of the other axis fails.
#
# Say it aloud
# ------------
# "A mesh names the roles of a rank, and I ask for the group of an axis instead of computing peers.
# DDP averages over the group that it gets.
# Groups are not free: each holds sockets and threads until the end, so I make a mesh once and keep it."
