"""
Three flight records, one verdict
=================================

A run hangs, nobody raises, and every rank is in some collective.
Each rank's flight recorder has what the rank issued; side by side, the records name the first collective that is not the same on all ranks, and the line that issued it.
It serves :ref:`debugging-tools`.

A flight record lists what a rank issued; ranks match collectives by their place in that order.
Look for the first place where the lists differ: what differs later follows from it.

:Level: deep, 15 minutes
:Proves: tool-flight-comparator tool-analyser-needs-members
"""

# %%
# A common guard: a rank whose loss is not finite skips the step.
# But the others do not know, and the next thing that the rank does is the broadcast at the start of its next step.
# ``dump_when_stuck`` writes a rank's record when it has issued nothing new for half a second, because gloo has no watchdog to do it.

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem
from ddplab.cli.flight import report_dumps
from ddplab.flight import compare, dump_when_stuck, read_dumps, write_dump
from ddplab.runtime.torch_private import flight_trace


def train(folder, guard):
    rank, group = dist.get_rank(), gloo_group()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DDP(net, process_group=group)
    shorten(group, 2.5)  # all are ready to train
    with dump_when_stuck(folder, after_s=0.5):
        for step in range(6):
            stop = torch.zeros(1)
            dist.broadcast(stop, src=0, group=group)  # has rank 0 been asked to stop?
            batch = torch.randn(4, 8)
            if rank == 1 and step == 3:
                batch[0, 0] = torch.inf  # a broken sample
            loss = model(batch).square().mean()
            if not guard(loss, group):
                continue
            loss.backward()
    return step


def alone(loss, group):
    return loss.isfinite()


def run(folder, guard):
    endings = postmortem(train, 3, folder, guard)
    for ending in endings:
        print(f"rank {ending.rank} {ending.how}", f"in {ending.where}" * bool(ending.where))
    return [e.how for e in endings]


# %%
# All three hang until their timeout, two in ``backward()`` and one in the broadcast, and no message gives more.

folder = tempfile.TemporaryDirectory()
assert run(folder.name, alone) == ["raised"] * 3

# %%
# The verdict of ``ddplab diagnose --dump DIR``, which needs no torch and runs no code from the dumps.

report_dumps(folder.name)
found = compare(read_dumps(folder.name))
assert (found.kind, found.ranks, found.differs) == ("mismatch", (1,), ("operation",))
assert [side.call.operation for side in found.sides] == ["all_reduce", "broadcast"]
lines, first = inspect.getsourcelines(train)
for side, call in zip(found.sides, ("loss.backward()", "dist.broadcast(stop"), strict=True):
    assert call in lines[int(side.call.place.split(":")[1].split()[0]) - first]

# %%
# torch's own analyzer, ``torchfrtrace``, reads the same files.
# It fails on gloo's records as torch writes them (torch 2.13), because they do not name the members of a group.
# ``write_dump`` adds the members, and then it works, so both tools can read one file.
# (Up to torch 2.11 the analyzer compares records of NCCL only, and reports that for gloo's.)
# It compares all ranks with the one whose file it reads first, so its "culprit" may be any rank: read both sides.


def analyse(folder):
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder]
    command += ["--prefix", "rank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    reasons = ("KeyError", "error msg", "AssertionError", "missing ranks")
    lines = (done.stdout + done.stderr).splitlines()
    return next(line for line in lines if line.startswith(reasons))


def in_both_ways(raw, full):
    if dist.get_rank() == 0:  # and rank 1 does not come
        dist.all_reduce(torch.ones(1), async_op=True)
    Path(raw, f"rank{dist.get_rank()}").write_bytes(flight_trace())
    write_dump(full)


with tempfile.TemporaryDirectory() as raw, tempfile.TemporaryDirectory() as full:
    postmortem(in_both_ways, 2, raw, full)
    as_written, missing = analyse(raw), analyse(full)
with_members = analyse(folder.name)
print("as torch writes it:", as_written)
print("by write_dump:", *with_members.removeprefix("error msg: ").split(", "), sep="\n  ")
assert as_written.startswith("KeyError")
assert missing == "missing ranks: {1}" or "gloo != 'nccl'" in missing
assert "COLLECTIVE_TYPE_MISMATCH" in with_members or "gloo != 'nccl'" in with_members
folder.cleanup()

# %%
# The fix: decide together.


def together(loss, group):
    finite = loss.isfinite().float()
    dist.all_reduce(finite, dist.ReduceOp.MIN, group=group)
    return bool(finite)


with tempfile.TemporaryDirectory() as folder:
    assert run(folder, together) == ["returned"] * 3
    report_dumps(folder)

# %%
# What it does not show
# ---------------------
# Look first where the ranks diverge; which rank is wrong, only the program shows.
# The record has no values, no reduction (sum or maximum) and no root rank, and gloo's has no send and receive.
# A rank that was killed before it could write leaves no dump: the verdict names the missing ones.
#
# Change it: predict, then run
# ----------------------------
# Give ranks 1 and 2 the broken sample: ``if rank > 0 and step == 3``.
# Which rank stands alone?
#
# Expect: rank 0, the healthy one, so the assertion fails.
#
# Say it aloud
# ------------
# "I look for the first collective that differs between the ranks' flight records.
# That gives the place, the ranks and the lines, and not who is right.
# The recorder costs some memory all the time, and saves me from having to make the hang happen again."
