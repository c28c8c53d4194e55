"""
A process group, made by hand
=============================

What happens between ``init_process_group`` and its return, and who waits there for whom?
This lab takes the call apart: the variables, the store, the addresses, the group.
Then it makes the same group in four ways, lets a rank come late, and leaves one out.
It serves :ref:`setup-process-group`.
"""

import tempfile
from pathlib import Path

from ddplab import launch, record
from ddplab.labs.plotting import INK, MUTED, RANK_COLORS, subplots

# %%
# What a rank knows at first
# --------------------------
# With ``init=False``, ``launch`` does what a launcher does and no more: it starts processes and sets variables.
# A process group does not exist yet.


def report():
    import os

    import torch.distributed as dist

    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"]
    print(
        *(f"{name}={os.environ[name]}" for name in names), f" group: {dist.is_initialized()}"
    )


_ = launch(report, 2, init=False)

# %%
# Step one: a store
# -----------------
# A store is a small table of keys and values that all ranks can read and write; rank 0 holds it, here over TCP.
# ``get`` waits until somebody has set the key, and that is all the synchronization that a meeting needs.
# Without its last lines rank 0 can take the store away before rank 1 has read (``Failed to recv, got 0 bytes``).


def meet_at_a_store():
    import os
    import time

    import torch.distributed as dist

    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, world_size=2, is_master=rank == 0)
    start_s = time.monotonic()
    if rank == 0:
        time.sleep(0.3)  # rank 1 asks before there is an answer
        store.set("greeting", "hello from rank 0")
    text = store.get("greeting").decode()
    print(f"{text!r} after {time.monotonic() - start_s:.1f} s")
    if rank == 1:
        store.set("read", "by rank 1")
    else:
        store.get("read")  # who holds the store must not leave before the others


_ = launch(meet_at_a_store, 2, init=False)

# %%
# Step two: a group
# -----------------
# Given the store, a rank and a world size, ``init_process_group`` needs no variable.
# gloo writes into the store at which address each rank listens, reads those of the others, and connects them all.
# The value is private to gloo; its bytes 22 to 25 are the address (seen in torch 2.13).


def group_from_a_store():
    import os
    import socket

    import torch
    import torch.distributed as dist

    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, world_size=2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 0:
        for key in sorted(store.list_keys()):
            address = socket.inet_ntoa(store.get(key)[22:26])
            print(
                f"key {key!r}: {len(store.get(key))} bytes, a rank that listens at {address}"
            )
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print(f"all-reduce of 1 and 2: {total.item()}")


_ = launch(group_from_a_store, 2, init=False)

# %%
# Four ways to the same group
# ---------------------------
# ``env://`` is the default and reads the variables; ``tcp://`` and ``file://`` name the meeting point in the call.
# All three end in a store.


def sum_of_ranks(way, path):
    import os

    import torch
    import torch.distributed as dist

    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    numbers = {"rank": rank, "world_size": 2}
    if way == "env://":
        dist.init_process_group("gloo")
    elif way == "tcp://":
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", **numbers)
    elif way == "file://":
        dist.init_process_group("gloo", init_method=f"file://{path}", **numbers)
    else:
        dist.init_process_group("gloo", store=dist.FileStore(path, 2), **numbers)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    return total.item()


for way in ["env://", "tcp://", "file://", "store="]:
    with tempfile.TemporaryDirectory() as folder:
        results = launch(sum_of_ranks, 2, way, f"{folder}/meeting", init=False)
    print(f"{way:8} every rank has {results}")
    assert results == [3, 3]

# %%
# Nobody leaves before the last has come
# --------------------------------------
# Rank 2 is late by a second and a half, as a rank is that still imports or reads its data.


def enter(late_s):
    import os
    import time

    import torch.distributed as dist

    if os.environ["RANK"] == "2":
        time.sleep(late_s)
    entered_s = time.monotonic()  # one clock for all ranks of a machine
    dist.init_process_group("gloo")
    return entered_s, time.monotonic()


times = launch(enter, 3, 1.5, init=False)
first_s = min(entered_s for entered_s, _ in times)
fig, ax = subplots(height_in=1.9)
for rank, (entered_s, left_s) in enumerate(times):
    ax.barh(
        rank, left_s - entered_s, left=entered_s - first_s, height=0.5, color=RANK_COLORS[rank]
    )
    ax.text(
        entered_s - first_s + 0.03,
        rank - 0.32,
        f"rank {rank} enters",
        color=INK,
        va="bottom",
        fontsize=8,
    )
last_s = max(entered_s for entered_s, _ in times) - first_s
ax.axvline(last_s, color=MUTED, linestyle="--", linewidth=1)
ax.set(
    xlabel="seconds since the first rank entered init_process_group",
    yticks=[],
    ylim=(2.6, -0.6),
)
ax.set_title("The call returns on all ranks once the last one has entered")
waited_s = max(left_s - entered_s for entered_s, left_s in times)
assert all(left_s - first_s >= last_s for _, left_s in times)
record(unit="s", waited=waited_s)

# %%
# One rank does not come
# ----------------------
# The timeout bounds the meeting too.
# Rank 0 holds the store and can count who came; another rank only sees that nobody answers.


def alone(who):
    import datetime
    import os
    import time

    import torch.distributed as dist

    if int(os.environ["RANK"]) != who:
        return ""
    start_s = time.monotonic()
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    except dist.DistError as error:
        text = str(error).splitlines()[0].partition(" while")[0]
        return f"{type(error).__name__} after {time.monotonic() - start_s:.1f} s\n  {text}"


for who in 0, 1:
    said = launch(alone, 2, who, init=False, quiet=True, env={"TORCH_CPP_LOG_LEVEL": "FATAL"})[
        who
    ]
    print(f"only rank {who} comes: {said}")
    assert "timed out" in said.lower()

# %%
# Who removes the file
# --------------------
# A ``FileStore`` that ends counts itself out, and whoever is the last removes the file.
# Counting takes two steps, and here both ranks take them at the same moment, again and again.


def meet_and_part(folder, times):
    import torch.distributed as dist

    for i in range(times):
        store = dist.FileStore(f"{folder}/{i}", 2)
        store.set(f"rank {dist.get_rank()}", "is here")
        dist.barrier()
        del store
    dist.barrier()


with tempfile.TemporaryDirectory() as folder:
    _ = launch(meet_and_part, 2, folder, 300)
    left = len(list(Path(folder).iterdir()))
print(f"300 meetings ended well, {left} files are still there")
record(files_left=left)

# %%
# What to notice
# --------------
# * Every way ends in a store, and every store with ranks that know each other's addresses.
#   A program that cannot meet has the wrong variable, the wrong address, or a rank that did not come.
# * The first rank waited :measured:`process-group.waited:.1f` for the last one, inside of the call.
#   A rank that loads its data *before* the call makes the others wait *in* it.
# * :measured:`process-group.files_left:d` of 300 meetings that ended well left their file, because each rank saw the other
#   as the one that would remove it. A new path for each run is not only for runs that were killed.
# * With one rank missing, rank 0 says how many came; the others name the address that they could not reach.
#
# What this does not mean
# -----------------------
# NCCL does not connect at this point unless it is given ``device_id``: there, the first collective waits instead.
