"""
A process group, made by hand
=============================

What happens between ``init_process_group`` and its return, and who waits there for whom?
This lab takes the call apart: the variables, the store, the addresses, the group.
Then it makes the same group in four ways, makes one rank late, and leaves one out.
It serves :ref:`setup-process-group`.

Ranks find each other through a store: each writes where it listens and reads where the others do.
Keep in mind: the call returns when the last rank has come, so a late rank is everybody's wait.

:Level: core, 20 minutes
:Proves: setup-store-get-waits setup-init-methods-agree setup-init-waits-for-all setup-missing-rank-times-out
"""

import datetime
import os
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ddplab import launch, record
from ddplab.apparatus.plotting import INK, MUTED, RANK_COLORS, subplots

# %%
# What a rank knows at first
# --------------------------
# With ``init=False``, ``launch`` does what a launcher does and no more: it starts processes and sets variables.
# A process group does not exist yet.


def report():
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"]
    variables = (f"{name}={os.environ[name]}" for name in names)
    print(*variables, f" group: {dist.is_initialized()}")


_ = launch(report, 2, init=False)

# %%
# Step one: a store
# -----------------
# A store is a small table of keys and values that all ranks can read and write; rank 0 holds it, here over TCP.
# ``get`` waits until somebody has set the key, or raises when the store's timeout is over, and a rendezvous needs no other synchronization.
# Without the last lines of ``meet_at_a_store`` rank 0 can end and take the store with it before rank 1 has read (``Failed to recv, got 0 bytes``).


def store_of_two():
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    return rank, dist.TCPStore("127.0.0.1", port, world_size=2, is_master=rank == 0)


def meet_at_a_store():
    rank, store = store_of_two()
    start_s = set_s = time.monotonic()  # one clock for all ranks of a machine
    if rank == 0:
        time.sleep(0.3)  # rank 1 asks before there is an answer
        set_s = time.monotonic()
        store.set("greeting", "hello from rank 0")
    text, got_s = store.get("greeting").decode(), time.monotonic()
    print(f"{text!r} after {got_s - start_s:.1f} s")
    if rank == 1:
        store.set("read", "by rank 1")
    else:
        store.get("read")  # the rank that holds the store must not exit before the others
    return set_s if rank == 0 else got_s


set_s, got_s = launch(meet_at_a_store, 2, init=False)
assert set_s < got_s


def ask_in_vain():
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 1, is_master=True)
    store.set_timeout(datetime.timedelta(seconds=0.2))
    try:
        store.get("greeting")
    except dist.DistStoreError:
        return "nobody set it in time"


assert launch(ask_in_vain, 1, init=False, quiet=True) == ["nobody set it in time"]

# %%
# Step two: a group
# -----------------
# Given the store, a rank and a world size, ``init_process_group`` needs no variable.
# gloo writes into the store at which address each rank listens, reads those of the others, and connects all ranks.
# The value is private to gloo; its bytes 22 to 25 are the address (seen in torch 2.13).


def group_from_a_store():
    rank, store = store_of_two()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 0:
        for key in sorted(store.list_keys()):
            value = store.get(key)
            address = socket.inet_ntoa(value[22:26])
            print(f"key {key!r}: {len(value)} bytes, a rank that listens at {address}")
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
    rank, port = int(os.environ["RANK"]), os.environ["MASTER_PORT"]
    size = int(os.environ["WORLD_SIZE"])
    options = {"rank": rank, "world_size": size}
    if way == "env://":
        options = {}
    elif way == "store=":
        options["store"] = dist.FileStore(path, size)
    else:
        options["init_method"] = way + (f"127.0.0.1:{port}" if way == "tcp://" else path)
    dist.init_process_group("gloo", **options)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    return total.item()


for way in ["env://", "tcp://", "file://", "store="]:
    with tempfile.TemporaryDirectory() as folder:
        results = launch(sum_of_ranks, 2, way, f"{folder}/meeting", init=False)
        of_three = launch(sum_of_ranks, 3, way, f"{folder}/of three", init=False)
    print(f"{way:8} every rank has {results}")
    assert (results, of_three) == ([3, 3], [6, 6, 6])

# %%
# The call returns once the last rank has come
# --------------------------------------------
# Rank 2 is late by a second and a half, like a rank that is still importing or reading its data.


def enter(late_s):
    if os.environ["RANK"] == "2":
        time.sleep(late_s)
    entered_s = time.monotonic()
    dist.init_process_group("gloo")
    return entered_s, time.monotonic()


times = launch(enter, 3, 1.5, init=False)
first_s, last_s = (choose(entered_s for entered_s, _ in times) for choose in (min, max))
assert all(left_s >= last_s for _, left_s in times)
record(unit="s", waited=max(left_s - entered_s for entered_s, left_s in times))

# %%

# drawing
fig, ax = subplots(height_in=1.9)
for rank, (entered_s, left_s) in enumerate(times):
    start, style = entered_s - first_s, {"height": 0.5, "color": RANK_COLORS[rank]}
    ax.barh(rank, left_s - entered_s, left=start, **style)
    text = {"color": INK, "va": "bottom", "fontsize": 8}
    ax.text(start + 0.03, rank - 0.32, f"rank {rank} enters", **text)
ax.axvline(last_s - first_s, color=MUTED, linestyle="--", linewidth=1)
ax.set(xlabel="seconds since the first rank entered init_process_group", yticks=[])
ax.set_ylim(2.6, -0.6)
ax.set_title("The call returns on all ranks once the last one has entered")

# %%
# One rank does not come
# ----------------------
# The timeout limits the rendezvous too.
# Rank 0 holds the store and can count who came; another rank only sees that nobody answers.


def alone(who):
    if int(os.environ["RANK"]) != who:
        return ""
    start_s = time.monotonic()
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    except dist.DistError as error:
        text = str(error).splitlines()[0]
        return f"{type(error).__name__} after {time.monotonic() - start_s:.1f} s\n  {text}"


for who in 0, 1:
    quiet = {"quiet": True, "env": {"TORCH_CPP_LOG_LEVEL": "FATAL"}}
    message = launch(alone, 2, who, init=False, **quiet)[who]
    print(f"only rank {who} comes: {message}")
    assert ("trying to connect to (127.0.0.1," if who else "1/2 clients joined") in message

# %%
# Who removes the file
# --------------------
# A ``FileStore`` that ends removes itself from a count, and the last one removes the file.
# Counting takes two steps, and here both ranks take them at the same moment, again and again.


def meet_and_leave(folder, times):
    for i in range(times):
        store = dist.FileStore(f"{folder}/{i}", 2)
        store.set(f"rank {dist.get_rank()}", "is here")
        dist.barrier()
        del store
    dist.barrier()


with tempfile.TemporaryDirectory() as folder:
    _ = launch(meet_and_leave, 2, folder, 300)
    left = len(list(Path(folder).iterdir()))
print(f"300 meetings ended well, {left} files are still there")
record(files_left=left)

# %%
# What to notice
# --------------
# * Every way leads to a store, and every store to ranks that know each other's addresses.
#   A program that cannot meet has the wrong variable, the wrong address, or a rank that did not come.
# * The first rank waited :measured:`process-group.waited:.1f` for the last one, inside the call.
#   A rank that loads its data *before* the call makes the others wait *in* it.
# * Of 300 meetings that ended well, :measured:`process-group.files_left:d` left their file here: one stays whenever each rank expects
#   the other to remove it. So use a new path for each run, not only after runs that were killed.
# * With one rank missing, rank 0 reports how many came; the others name the address that they could not reach.
#
# What this does not mean
# -----------------------
# NCCL does not connect at this point, unless it is given ``device_id``; without it the first collective waits instead.
#
# Change it: predict, then run
# ----------------------------
# In ``alone`` wait five seconds: ``timeout=datetime.timedelta(seconds=5)``.
# Which of the two lone ranks waits longer, and how do their errors differ?
#
# Expect: rank 1, beyond the time that its message names, and it reports only that nobody answered; rank 0, which holds the store, ends soon after its time and counts who came.
#
# Say it aloud
# ------------
# "init_process_group is a rendezvous: a store on rank 0, addresses in it, then connections among all ranks.
# Every way of naming the meeting point ends in a store.
# A long timeout forgives slow starts, and lets a job with a missing rank burn its allocation before it says so."
