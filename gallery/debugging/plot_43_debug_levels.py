"""
TORCH_DISTRIBUTED_DEBUG: what each level adds
=============================================

One variable makes torch check every collective before it runs.
This lab runs the same two faults at each level, and shows what is new in the messages, what stays hidden, and what breaks.
It serves :ref:`debugging-tools`.

``DETAIL`` asks before every collective whether all ranks are there, and whether operation, shape and dtype agree.
It compares calls, not what they mean.

:Level: core, 15 minutes
:Proves: tool-debug-detail
"""

# %%
# Two faults: one rank passes a different size, and one rank does not come.

import datetime
import os
import re
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.apparatus.gloo import gloo_group
from ddplab.apparatus.postmortem import postmortem


def another_size():
    group = gloo_group(timeout_s=5)
    dist.all_reduce(torch.ones(8 if dist.get_rank() == 2 else 4), group=group)


def missing():
    dist.barrier()  # the timeout bounds the making of the group, too: all ranks come to it together
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=3))
    dist.barrier()
    if dist.get_rank() != 2:
        dist.all_reduce(torch.ones(4), group=group)


def gist(ending):
    """The core of the message, without file names, ports and tensor options."""
    text = ending.error if ending.how == "raised" else ending.error + "; " + ending.printed
    for words in (
        r"op\.preamble\.length <= op\.nbytes\. \d+ vs \d+",
        r"Collectives differ in the following aspects: .*",
        r"Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms",
        r"Rank \d successfully reached monitoredBarrier",
        r"Connection (?:closed|reset) by peer",
        r"Timed out waiting \d+ms",
    ):
        if found := re.search(words, text):
            return re.sub(r"\s+", " ", found[0])
    return str(ending)[:70]


messages = {}
for fault in (another_size, missing):
    print(fault.__name__.replace("_", " "))
    for level in ("OFF", "INFO", "DETAIL"):
        endings = postmortem(fault, 3, env={"TORCH_DISTRIBUTED_DEBUG": level})
        found = messages[fault, level] = [gist(e) for e in endings]
        if fault is another_size:
            sizes = [set(re.findall(r"TensorShape=\[(\d+)\]", e.error)) for e in endings]
            assert sizes == [{"4", "8"} if level == "DETAIL" else set()] * 3
        for words in dict.fromkeys(found):
            ranks = ",".join(str(rank) for rank, other in enumerate(found) if other == words)
            print(f"  {level:6} rank {ranks:5} {words}")

assert "Ranks 2 failed" in messages[missing, "DETAIL"][0]
assert not any("Ranks 2" in words for words in messages[missing, "INFO"])

# %%
# ``OFF`` and ``INFO`` are alike here: ``INFO`` is about DDP. It adds the *names* of unused parameters to their error, and logs how DDP was set up.
# ``DETAIL`` wraps every process group. Before each collective it passes a ``monitored_barrier``, which names the rank that does not come, and compares a fingerprint of operation, shapes and dtypes over the ranks.
# Nobody aborts: every rank raises, and every rank names both fingerprints.
#
# Where DETAIL does not help
# --------------------------
# Two collectives of one shape in swapped order have the same fingerprint.
# And a DDP constructor on gloo does not survive it (torch 2.13).


def swapped():
    group = dist.new_group(backend="gloo")
    loss, accuracy = torch.tensor([10.0]), torch.tensor([0.5])
    for value in (loss, accuracy) if dist.get_rank() else (accuracy, loss):
        dist.all_reduce(value, group=group)
    return loss.item()


def wrap():
    group = dist.new_group(backend="gloo")
    DDP(torch.nn.Linear(2, 2), process_group=group)


for program in (swapped, wrap):
    endings = postmortem(program, 3, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    print(f"{program.__name__:8}", *(f"rank {e.rank}: {e}" for e in endings[:2]), sep="  ")
    sums = [11.0, 20.5, 20.5] if program is swapped else [None] * 3
    assert [e.value for e in endings] == sums
    assert all(e.how == ("returned" if program is swapped else "died") for e in endings)

# %%
# The sum of the losses is 30: both ranks have a different number, and get no error.
#
# TORCH_CPP_LOG_LEVEL=INFO
# ------------------------
# The other switch: the C++ side logs what it does, first of all who listens and connects where.
# It is read when torch is imported, so it has to stand in the environment of the process; most of c10d's lines also need ``TORCH_DISTRIBUTED_DEBUG=INFO``.

PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=0, world_size=1)
dist.destroy_process_group()
"""
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
command = [sys.executable, "-c", PROGRAM.format(port=port)]
environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
lines = [line for line in done.stderr.splitlines() if "[c10d" in line]
print(f"{len(lines)} lines of c10d", *(f"  {line[:88]}" for line in lines[:4]), sep="\n")
assert any("The server has started on port" in line for line in lines)

# %%
# When to reach for it
# --------------------
# ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` for a run that fails early and costs little: every collective waits for every rank, so it is slow, and it hides faults of timing.
# ``INFO`` when DDP complains about unused parameters.
# ``TORCH_CPP_LOG_LEVEL=INFO`` when ranks do not find each other.
#
# Change it: predict, then run
# ----------------------------
# In ``another_size`` reduce ``torch.ones(4, dtype=torch.float64 if dist.get_rank() == 2 else None)``.
# What does each level print?
#
# Expect: ``OFF`` and ``INFO`` the same as before, since gloo counts bytes; ``DETAIL`` names dtypes, and the assertion on shapes fails.
#
# Say it aloud
# ------------
# "``INFO`` adds names to DDP's errors; ``DETAIL`` checks each collective before it runs, so a mismatch raises on every rank.
# Swapped collectives of one shape pass.
# It buys the name of the fault with a barrier before every collective, which hides faults of timing."
