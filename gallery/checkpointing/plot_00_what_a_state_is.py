"""
What a state is
===============

Two ranks in the middle of an epoch: what does the next step depend on, entry by entry?
How many bytes does each entry have, and is it the same on every rank?
It serves :ref:`checkpointing-state`.

A state is everything that the next step reads and an earlier step wrote.
An entry is either equal on all ranks, so that one may write it, or a rank's own, so that each must.

:Level: core, 15 minutes
:Proves: ckpt-adam-is-twice-the-model
"""

# %%
# The run
# -------
# A network with BatchNorm, AdamW, a schedule, a scaler, a shuffled data set, and noise that each rank draws for itself.

import pickle
import random
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.plotting import ACCENT, MUTED, describe, subplots
from ddplab.apparatus.storages import tensors_in
from ddplab.checkpoint import CheckpointManager

RANKS, STEPS, WIDTH = 2, 5, 128


def build():
    torch.manual_seed(0)
    layers = nn.Linear(32, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)
    model = DDP(nn.Sequential(*layers).to(device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        "scaler": torch.amp.GradScaler(device().type, init_scale=1024.0),
        "order": torch.Generator().manual_seed(7),  # shuffles the same way on all ranks
        "position": {"epoch": 2, "batch": 0},
        "config": {"width": WIDTH, "lr": 1e-3},
    }


def train(state, steps):
    for _ in range(steps):
        torch.rand(1, generator=state["order"])
        noise = random.random() + np.random.rand()
        loss = (state["model"](torch.randn(16, 32).to(device())) - noise).square().mean()
        state["optimizer"].zero_grad()
        state["scaler"].scale(loss).backward()
        state["scaler"].step(state["optimizer"])
        state["scaler"].update()
        state["scheduler"].step()
        state["position"]["batch"] += 1


# %%
# Every rank lists the entries of its own run, and the script compares them.
# In the table, bytes are those of the tensors; for an entry without tensors, those of its pickle.


def entries(state):
    model = state["model"].module
    return {
        "parameters": [p.detach() for p in model.parameters()],
        "buffers": list(model.buffers()),
        **{name: state[name].state_dict() for name in ("optimizer", "scheduler", "scaler")},
        "order of the data": state["order"].get_state(),
        "position": state["position"],
        "configuration": state["config"],
        "generator: torch": torch.get_rng_state(),
        "generator: python": random.getstate(),
        "generator: numpy": np.random.get_state(),
    }


def size_and_content(value):
    tensors = tensors_in(value)
    content = [t.tolist() for t in tensors] or pickle.dumps(value)
    return sum(t.nbytes for t in tensors) or len(content), content


def worker(folder):
    state = build()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(100 + dist.get_rank())
    train(state, STEPS)
    path = CheckpointManager(folder).save(state, STEPS)
    found = {name: size_and_content(entry) for name, entry in entries(state).items()}
    return found, path.stat().st_size


with tempfile.TemporaryDirectory() as folder:
    (first, file_bytes), (second, _) = launch(worker, RANKS, folder)
same = {name: first[name][1] == second[name][1] for name in first}
print(f"{'entry':20}{'bytes':>8}   on the ranks")
for name, (size, _) in first.items():
    print(f"{name:20}{size:8,}   {'the same' if same[name] else 'each its own'}")
print(f"{'the file':20}{file_bytes:8,}   {RANKS} ranks' generators, and its index")

sizes = {name: size for name, (size, _) in first.items()}
generators = [name for name in sizes if "generator" in name]
assert [name for name in same if not same[name]] == ["buffers", *generators]
assert file_bytes > sum(sizes.values()) + sizes["generator: torch"]  # of the second rank

# %%
# The rule of two
# ---------------
# Adam keeps two moments of each parameter, so its state is twice the parameters, and a count of steps for each tensor.
# The checkpoint of a float32 model is three times the size of the model, for any number of ranks.

count = sizes["optimizer"] - 2 * sizes["parameters"]
print(f"optimizer = 2 × {sizes['parameters']:,} + {count}")
assert count == 4 * 6  # six tensors have a step count of four bytes each
kept, of_parameters = (
    [torch.tensor(one).shape for one in first[name][1]] for name in ("optimizer", "parameters")
)
assert kept == [each for shape in of_parameters for each in (torch.Size([]), shape, shape)]
rest = sum(sizes[n] for n in sizes if n not in ("parameters", "buffers", "optimizer"))
record("bytes", file=file_bytes, parameters=sizes["parameters"], rest=rest)
record("bytes", generators=sum(sizes[n] for n in generators))

# %%

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "Bytes of each entry of the checkpoint, on a logarithmic axis")
for n in sorted(sizes, key=sizes.get):
    color, hatch = (ACCENT, "") if same[n] else (MUTED, "///")
    ax.barh(n, sizes[n], color=color, hatch=hatch, edgecolor="white")
ax.set(xscale="log", xlim=(10, None), xlabel="bytes; hatched: each rank has its own")

# %%
# What to notice
# --------------
#
# - Nearly all bytes are the same on every rank, so one rank writes them.
# - What differs is BatchNorm's averages, since each rank saw different data, and the generators. The file has rank 0's averages; DDP copies those to all ranks before the next forward anyway.
# - Everything that is neither model nor optimizer takes :measured:`what-a-state-is.rest:,`, of which a rank's generators take :measured:`what-a-state-is.generators:,`.
# - What is easily forgotten is small, so size is no reason to leave it out.
#
# What this does not mean
# -----------------------
#
# That this list is complete for your run: a moving average of weights, error feedback of a compression hook, and a loader that prefetches are state as well.
# Ask of each object: does the next step read what an earlier step wrote into it?
#
# Change it: predict, then run
# ----------------------------
# Replace AdamW by ``torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)``.
# How large is the optimizer's state?
#
# Expect: one copy of the parameters and no counts, so the assertion of the rule of two fails.
#
# Say it aloud
# ------------
# "A checkpoint holds what the next step reads: parameters, optimizer, schedule, scaler, position in the data, each rank's random numbers.
# What is easily forgotten is small.
# Saving all of it costs few bytes; saving less is simpler, and resumes another run."
