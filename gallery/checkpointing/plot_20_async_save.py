"""
Saving without stopping
=======================

``dcp.async_save`` copies the state, returns, and writes from another thread while training goes on.
How long does a step stall, what is copied, which values are saved, and what is left when a process is killed in between?
It serves :ref:`checkpointing-async`.
"""

# %%
# Three ways to save
# ------------------
# Rank 0 writes one file and all wait; all ranks write a share of a directory and wait (DCP, ``torch.distributed.checkpoint``); the same in the background.
# A round saves once, after its second step, and trains on; the ways take turns.

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
from ddplab.labs.plotting import ACCENT, MUTED, describe, subplots
from ddplab.labs.postmortem import postmortem
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


def train(folder):
    torch.manual_seed(0)
    layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()))
    optimizer = torch.optim.Adam(model.parameters())
    group, rows = dist.new_group(backend="gloo"), {}
    for i in range(ROUNDS):
        for save in (torch_save, dcp_save, async_save):
            times = [timed(train_step, model, optimizer)[0] for _ in range(2)]
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            called, path = (
                layers[0].weight.detach().cpu().clone(),
                f"{folder}/{save.__name__}-{i}",
            )
            stall, future = timed(save, state, path, group)
            times += [timed(train_step, model, optimizer)[0] for _ in range(STEPS - 2)]
            wait = timed(future.result)[0] if future else 0  # before the next save
            rows.setdefault(save.__name__, []).append(
                [*times, stall, sum(times) + stall + wait]
            )
    found = {"model": {"0.weight": torch.zeros(SIDE, SIDE)}}
    dcp.load(found, checkpoint_id=path)  # the last one is that of async_save
    saved, now = found["model"]["0.weight"], layers[0].weight.detach().cpu()
    staged = DefaultStager(StagingOptions(False, False, False, False)).stage(state)
    pairs = list(zip(tensors(state), tensors(staged), strict=True))
    copied = sum(b.nbytes for a, b in pairs if a.data_ptr() != b.data_ptr())
    written = Path(path, f"__{dist.get_rank()}_0.distcp").stat().st_size
    nbytes = sum(a.nbytes for a, _ in pairs), copied, written
    return rows, nbytes, (torch.equal(saved, called), torch.equal(saved, now))


def tensors(value):
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    return [value] if torch.is_tensor(value) else []


with tempfile.TemporaryDirectory() as folder:
    ranks = launch(train, 2, folder, quiet=True)
median = {  # over the rounds, without the first
    way: [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    for way, rows in ranks[0][0].items()
}
print("medians, ms    stall of the call    steps before / after    whole round")
for way, (*times, stall, whole) in median.items():
    before, after = statistics.mean(times[:2]), statistics.mean(times[2:])
    print(f"{way:12} {stall:16.1f} {before:17.1f} / {after:5.1f} {whole:14.1f}")
    record("ms", **{f"{way}_stall": stall, f"{way}_after": after, f"{way}_round": whole})
record("ms", before=before)
record(shorter=median["dcp_save"][-2] / median["async_save"][-2])

# %%
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
# The optimizer has stepped three times before the load.

for rank, (_, nbytes, (as_called, as_now)) in enumerate(ranks):
    sizes = "state {:.1f} MiB  staged {:.1f} MiB  written {:.1f} MiB".format(
        *(n / MIB for n in nbytes)
    )
    print(f"rank {rank}  {sizes}  saved: as called {as_called}, as now {as_now}")
    assert (nbytes[1] == nbytes[0], as_called, as_now) == (True, True, False)
record("MiB", staged=nbytes[1] / MIB, written=nbytes[2] / MIB)

# %%
# Killed in between
# -----------------
# Step 1 has been saved.
# Rank 1 is killed after ``async_save`` of step 2 has returned and before it has written its share: in a new directory, then over step 1.


def content(step):
    return {"a": torch.full((1000,), float(step)), "b": torch.full((1000,), float(step))}


def killed(path):
    class Dies(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            returned.wait(20)
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write_data(plan, planner)

    group, returned = dist.new_group(backend="gloo"), threading.Event()
    future = dcp.async_save(content(2), storage_writer=Dies(path), process_group=group)
    returned.set()
    future.result()


def load(path):
    found = content(0)
    try:
        dcp.load(found, checkpoint_id=path)
    except dcp.api.CheckpointException as error:  # not an Exception
        last = str(error).splitlines()[-1]  # behind the tracebacks of all ranks
        found, *why = last.removeprefix("AssertionError: ").split(
            "; "
        )  # before torch 2.13 no why
        reason = why[0].removeprefix("global metadata read failed: ") if why else found
        return f"refused: {reason}".replace(path, "…")
    return "  ".join(f"{name} of step {value[0]:.0f}" for name, value in found.items())


with tempfile.TemporaryDirectory() as folder:
    old, new = f"{folder}/step-1", f"{folder}/step-2"
    launch(lambda: dcp.save(content(1), checkpoint_id=old) and None, 2, quiet=True)
    said = []
    for what, target, read in (
        ("killed in a new one", new, new),
        ("the old one, then", None, old),
        ("killed over the old", old, old),
    ):
        if target:
            assert [e.how for e in postmortem(killed, 2, target)] == ["raised", "died"]
        said.append(launch(load, 2, read, quiet=True)[0])
        print(f"{what:20} {', '.join(sorted(os.listdir(read)))}\n{'':20} {said[-1]}")
assert said[0].startswith("refused")
assert said[1:] == ["a of step 1  b of step 1", "a of step 2  b of step 1"]

# %%
# What to notice
# --------------
#
# - The call stalls for the copy, :measured:`async-save.async_save_stall:.0f` here, and no longer for the disk, :measured:`async-save.dcp_save_stall:.0f`.
#   The steps behind it may pay a part: writing takes processor time, too.
# - Every rank stages *all* of a DDP model's state, and writes a share of it.
# - A directory without ``.metadata`` is no checkpoint, and torch says so; one that was written over may be a mixture, and nothing says so.
#
# What this does not mean
# -----------------------
#
# That a GPU stalls as long: there the copy goes to the host, and pinned memory matters (not run).
