"""
Three flight records, one verdict
=================================

A run hangs, nobody raises, and every rank is in some collective.
Each rank's flight recorder knows what it issued; side by side the records name the first collective that is not the same on all ranks, and the line that issued it.
It serves :ref:`debugging-tools`.
"""

# %%
# A common guard: a rank whose loss is not finite skips the step.
# But the others do not know, and the next thing that the rank does is the broadcast at the start of its next step.
# ``dump_when_stuck`` writes a rank's record when it has issued nothing new for half a second: gloo has no watchdog that would.

import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.cli.flight import report_dumps
from ddplab.flight import compare, dump_when_stuck, read_dumps
from ddplab.labs.postmortem import postmortem


def train(folder, guard):
    rank = dist.get_rank()
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=2.5))
    torch.manual_seed(rank)
    model = DDP(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), process_group=group
    )
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
# All three hang until their timeout, two in ``backward()`` and one in the broadcast; no message says more.

folder = tempfile.TemporaryDirectory()
assert run(folder.name, alone) == ["raised"] * 3

# %%
# The verdict of ``ddplab diagnose --dump DIR``, which needs no torch and runs no code from the dumps.

report_dumps(folder.name)
parting = compare(read_dumps(folder.name))
assert (parting.kind, parting.ranks, parting.differs) == ("mismatch", (1,), ("operation",))

# %%
# torch's own analyser, ``torchfrtrace``, reads the same files.
# It stops on gloo's records as torch writes them (torch 2.13): they do not name the members of a group.
# ``write_dump`` adds the members, and then it works; so one file serves both.
# (Up to torch 2.11 the analyser compares records of NCCL only, and says so of gloo's.)
# It takes the rank whose file it reads first for the standard, so its "culprit" may be any rank: read both sides.


def analyse(folder):
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder]
    command += ["--prefix", "rank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    said = (done.stdout + done.stderr).splitlines()
    return next(
        line for line in said if line.startswith(("KeyError", "error msg", "AssertionError"))
    )


def as_torch_writes_it(folder):
    dist.all_reduce(torch.ones(1), group=dist.new_group(backend="gloo"))
    trace = torch._C._distributed_c10d._dump_fr_trace()
    (Path(folder) / f"rank{dist.get_rank()}").write_bytes(trace)


with tempfile.TemporaryDirectory() as raw:
    postmortem(as_torch_writes_it, 2, raw)
    as_written = analyse(raw)
with_members = analyse(folder.name)
print("as torch writes it:", as_written)
print("by write_dump:", *with_members.removeprefix("error msg: ").split(", "), sep="\n  ")
assert as_written.startswith("KeyError")
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
# What it does not tell
# ---------------------
# Where the ranks part is where to look first; which rank is wrong only the program tells.
# The record has no values, no reduction (sum or maximum) and no root rank, and gloo's has no send and receive.
# A rank that was killed before it could write leaves no dump: the verdict says whose is missing.
