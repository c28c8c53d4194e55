"""
Saving without stopping
=======================

``dcp.async_save`` copies the state, returns, and writes from another thread while training goes on.
How long does a step stall, what is copied, which values are saved, and what remains when a process is killed in between?
It serves :ref:`checkpointing-async`.

An asynchronous save stages, which copies the state and stalls the step, and then writes beside the training.
What is saved is the state at the call.

:Level: deep, 20 minutes
:Proves: ckpt-async-saves-the-moment ckpt-async-stages-all ckpt-async-killed-leaves-no-metadata ckpt-dcp-overwrite-mixes
"""

# %%
# Three ways to save
# ------------------
# Rank 0 writes one file and all wait; each rank writes its share of a directory and all wait (DCP, ``torch.distributed.checkpoint``); the same in the background.
# A round saves once, after its second step, and trains on; the three ways take turns.

import copy
import os
import signal
import statistics
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import ACCENT, MUTED, describe, subplots
from ddplab.apparatus.postmortem import postmortem
from ddplab.apparatus.storages import flat_state, same_state, tensors_in
from ddplab.runtime.clock import now

ROUNDS, STEPS, SIDE, MIB = 5, 5, 1024, 2**20


def torch_save(state, path, group):
    if dist.get_rank() == 0:
        with open(path, "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
    dist.barrier()


def dcp_save(state, path, group):
    dcp.save(state, checkpoint_id=path)


def async_save(state, path, group):
    return dcp.async_save(state, checkpoint_id=path, process_group=group)


def train_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, SIDE, device=device())).square().mean().backward()
    optimizer.step()


def timed(function, *args):
    dist.barrier()
    began = now()
    value = function(*args)
    return 1e3 * (now() - began), value


def build():
    torch.manual_seed(0)
    layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()))
    return model, torch.optim.Adam(model.parameters())


def state_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def train(folder):
    model, optimizer = build()
    group, rows = dist.new_group(backend="gloo"), {}
    for i in range(ROUNDS):
        for save in (torch_save, dcp_save, async_save):
            times = [timed(train_step, model, optimizer)[0] for _ in range(2)]
            state, path = state_of(model, optimizer), f"{folder}/{save.__name__}-{i}"
            stall, future = timed(save, state, path, group)
            times += [timed(train_step, model, optimizer)[0] for _ in range(STEPS - 2)]
            wait = timed(future.result)[0] if future else 0  # before the next save
            row = [*times, stall, sum(times) + stall + wait]
            rows.setdefault(save.__name__, []).append(row)
    return rows


with tempfile.TemporaryDirectory() as folder:
    rows_of_0, _ = launch(train, 2, folder, quiet=True)
median = {}  # over the rounds, without the first
for way, rows in rows_of_0.items():
    median[way] = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
print("medians, ms    stall of the call    steps before / after    whole round")
for way, (*times, stall, whole) in median.items():
    before, after = statistics.mean(times[:2]), statistics.mean(times[2:])
    print(f"{way:12} {stall:16.1f} {before:17.1f} / {after:5.1f} {whole:14.1f}")
    record("ms", **{f"{way}_stall": stall, f"{way}_after": after, f"{way}_round": whole})
record("ms", before=before)
record(shorter=median["dcp_save"][-2] / median["async_save"][-2])

# %%

# drawing
fig, axes = subplots(1, 3, height_in=2.6, sharey=True)
describe(fig, "Time of five steps for three ways to save, with the stall of the saving call")
for ax, (way, (*times, stall, _)) in zip(axes, median.items(), strict=True):
    ax.bar(range(STEPS), times, color=MUTED, label="step")
    ax.bar(1, stall, bottom=times[1], color=ACCENT, hatch="///", ec="w", label="stall")
    ax.set_title(way, fontsize=9.5)
    ax.set(xlabel="step", xticks=range(STEPS))
axes[0].set_ylabel("median, ms")
axes[0].legend(fontsize=8.5)

# %%
# What is copied, and which values are saved
# ------------------------------------------
# Before it returns, ``async_save`` *stages*: it copies every tensor of the state dict to memory that training does not touch.
# Here the optimizer steps once more before anything is written.


def saved_late(folder):
    class Late(dcp.DefaultSavePlanner):
        def finish_plan(self, plan):
            assert stepped.wait(60)
            return super().finish_plan(plan)

    model, optimizer = build()
    train_step(model, optimizer)
    state, stepped = state_of(model, optimizer), threading.Event()
    called, group = copy.deepcopy(state), dist.new_group(backend="gloo")
    future = dcp.async_save(state, checkpoint_id=folder, planner=Late(), process_group=group)
    train_step(model, optimizer)
    stepped.set()
    future.result()
    current = state_of(model, optimizer)
    found = copy.deepcopy(current)
    dcp.load(found, checkpoint_id=folder)
    is_of = [same_state(flat_state(found), flat_state(one)) for one in (called, current)]

    staged = DefaultStager(StagingOptions(False, False, False, False)).stage(state)
    pairs = list(zip(tensors_in(state), tensors_in(staged), strict=True))
    copied = sum(b.nbytes for a, b in pairs if a.data_ptr() != b.data_ptr())
    written = Path(folder, f"__{dist.get_rank()}_0.distcp").stat().st_size
    return (sum(a.nbytes for a, _ in pairs), copied, written), is_of


with tempfile.TemporaryDirectory() as folder:
    ranks = launch(saved_late, 2, folder, quiet=True)
    stored = dcp.FileSystemReader(folder).read_metadata().storage_data
assert len({index.fqn for index in stored}) == len(stored)  # each tensor is written once
for rank, (nbytes, (as_called, as_now)) in enumerate(ranks):
    words = zip(("state", "staged", "written"), nbytes, strict=True)
    sizes = "  ".join(f"{word} {n / MIB:.1f} MiB" for word, n in words)
    print(f"rank {rank}  {sizes}  saved: as called {as_called}, as now {as_now}")
    assert (nbytes[1] == nbytes[0], as_called, as_now) == (True, True, False)
record("MiB", staged=nbytes[1] / MIB, written=nbytes[2] / MIB)

# %%
# Killed in between
# -----------------
# Step 1 has been saved.
# Rank 1 is killed after ``async_save`` of step 2 has returned and before it has written its share: first into a new directory, then over step 1.
# At last the same in ``dcp.save``, which leaves what ``async_save`` leaves.


def content(step):
    return {"a": torch.full((1000,), float(step)), "b": torch.full((1000,), float(step))}


def killed(path, blocking=False):
    class Dies(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            assert returned.wait(60)
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write_data(plan, planner)

    group, returned = dist.new_group(backend="gloo"), threading.Event()
    if blocking:
        returned.set()
        dcp.save(content(2), storage_writer=Dies(path))
    else:
        future = dcp.async_save(content(2), storage_writer=Dies(path), process_group=group)
        returned.set()
        future.result()


def load(path):
    found = content(0)
    try:
        dcp.load(found, checkpoint_id=path)
    except dcp.api.CheckpointException as error:  # not an Exception
        last = str(error).splitlines()[-1]  # after the tracebacks of all ranks
        causes = last.removeprefix("AssertionError: ").split("; ")  # before torch 2.13, one
        reason = causes[len(causes) > 1].removeprefix("global metadata read failed: ")
        return f"refused: {reason}".replace(path, "…")
    return "  ".join(f"{name} of step {value[0]:.0f}" for name, value in found.items())


with tempfile.TemporaryDirectory() as folder:
    old, new = f"{folder}/step-1", f"{folder}/step-2"
    launch(lambda: dcp.save(content(1), checkpoint_id=old) and None, 2, quiet=True)
    cases = {"killed in a new one": (new, new), "the old one, then": (None, old)}
    cases["killed over the old"], results = (old, old), []
    for what, (target, read) in cases.items():
        if target:
            assert [e.how for e in postmortem(killed, 2, target)] == ["raised", "died"]
        result, of_rank_1 = launch(load, 2, read, quiet=True)
        assert result == of_rank_1
        results.append(result)
        print(f"{what:20} {', '.join(sorted(os.listdir(read)))}\n{'':20} {result}")
    blocking = f"{folder}/blocking"
    assert [e.how for e in postmortem(killed, 2, blocking, True)] == ["raised", "died"]
    results += launch(load, 2, blocking, quiet=True)  # dcp.save instead of async_save
assert results[1:3] == ["a of step 1  b of step 1", "a of step 2  b of step 1"]
for refused in (results[0], *results[3:]):
    assert refused.startswith("refused")
    assert torch.__version__ < (2, 13) or ".metadata" in refused

# %%
# What to notice
# --------------
#
# - The call stalls for the copy, :measured:`async-save.async_save_stall:.0f` here, and no longer for the disk, :measured:`async-save.dcp_save_stall:.0f`.
#   The steps after it may pay for some of that: writing also takes processor time.
# - Every rank stages *all* of a DDP model's state, and writes only its share.
# - A directory without ``.metadata`` is not a checkpoint, and torch reports that; one that was overwritten may be a mixture, and nothing reports it.
#
# What this does not mean
# -----------------------
#
# That a GPU stalls for the same time: there the copy goes to the host, and pinned memory matters (not run).
#
# Change it: predict, then run
# ----------------------------
# In ``async_save``, call ``result()`` on the future before you return it.
# Is the stall now that of ``dcp_save``?
#
# Expect: longer, since the copy comes before the same writing.
#
# Say it aloud
# ------------
# "An asynchronous save stalls for a copy of the state and writes it in the background.
# Each checkpoint gets a new directory, because one without metadata is refused and a mixture is not.
# It buys a short stall, and pays with memory for the copy and processor time in the next steps."
