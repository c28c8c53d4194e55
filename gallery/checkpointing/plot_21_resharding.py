"""
Another world size, another wrapper
===================================

A checkpoint that DCP wrote with W ranks is read with W′, from DDP into FSDP2 and back.
This lab fills the whole matrix, compares bit for bit, and shows who writes which bytes and what is lost without an error.
It serves :ref:`checkpointing-reshard`.

DCP stores a tensor's name and shape, and which piece of it lies in which file.
A reader asks for the pieces that it needs, so names have to agree and world sizes do not.

:Level: deep, 20 minutes
:Proves: ckpt-dcp-reshards ckpt-dcp-to-one-file ckpt-dcp-one-value-per-name ckpt-ddp-fsdp2-names
"""

# %%
# Names that do not depend on the wrapper
# ---------------------------------------
# ``get_state_dict`` names weights *and* Adam's moments by the module that they belong to, without ``module.`` and without parameter numbers.
# Under such a name DCP stores the shape, and which piece lies where in which file; a reader asks for the pieces that it needs.

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions as Options
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import FAINT, INK, MUTED, RANK_COLORS, describe, subplots
from ddplab.apparatus.storages import flat_state, same_state, tensors_in
from ddplab.runtime.needs import a_gpu_each

WRAPPERS, WRITERS, READERS = ("DDP", "FSDP2"), (1, 2, 3, 4), (1, 2, 3)


def build(wrapper, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5)).to(device())
    if wrapper != "bare":
        model = DistributedDataParallel(model) if wrapper == "DDP" else fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def state_of(model, optimizer, whole=False):
    state = get_state_dict(model, optimizer, options=Options(full_state_dict=whole))
    return dict(zip(("model", "optimizer"), state, strict=True))


def write(folder):
    for wrapper in WRAPPERS:
        model, optimizer = build(wrapper, seed=0)
        own = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 7, generator=own).to(device())
            model(x).square().mean().backward()
            optimizer.step()
        name = f"{wrapper} {dist.get_world_size()}"
        dcp.save(state_of(model, optimizer), checkpoint_id=f"{folder}/{name}")
        whole = state_of(model, optimizer, whole=True)
        if dist.get_rank() == 0:
            torch.save(whole, f"{folder}/{name}.pt")


# %%
# Sizes are odd on purpose: 13 rows and 5 rows over 4 ranks leave some ranks with fewer rows, and one with none.
# A reader's tensors are set to -1 before each load, so nothing is equal by chance.


def read(folder):
    equal = {}
    for into in WRAPPERS:
        model, optimizer = build(into, seed=99)
        for path in sorted(p for p in Path(folder).iterdir() if p.is_dir()):
            state = state_of(model, optimizer)  # a fresh one: set_state_dict renames in it
            for value in tensors_in(state):
                value.detach().fill_(-1)
            dcp.load(state, checkpoint_id=path)
            weights, moments = state["model"], state["optimizer"]
            set_state_dict(
                model, optimizer, model_state_dict=weights, optim_state_dict=moments
            )
            found = flat_state(state_of(model, optimizer, whole=True))
            wanted = flat_state(torch.load(f"{path}.pt"))
            equal[path.name, into] = same_state(found, wanted)
    return equal


store = tempfile.TemporaryDirectory()
own = a_gpu_each(max(WRITERS))  # FSDP2 takes no GPU that ranks share
cells = {}
for world in WRITERS:
    launch(write, world, store.name, quiet=True, env=own)
for world in READERS:
    results = launch(read, world, store.name, quiet=True, env=own)
    for saved, into in results[0]:
        cells[saved, f"{into} {world}"] = all(r[saved, into] for r in results)

saved = [f"{wrapper} {world}" for wrapper in WRAPPERS for world in WRITERS]
reads = [f"{wrapper} {world}" for wrapper in WRAPPERS for world in READERS]
print("saved by ↓ read by → " + " ".join(f"{side:8}" for side in reads))
for side in saved:
    marks = ("equal" if cells[side, into] else "DIFFERS" for into in reads)
    print(f"{side:21}" + " ".join(f"{mark:8}" for mark in marks))
assert len(cells) == len(saved) * len(reads)
assert all(cells.values())
record(cells=len(cells), equal=sum(cells.values()))

# %%
# Who writes what
# ---------------
# DDP's tensors are the same on every rank, so each is written once, by the rank that has the fewest bytes so far.
# FSDP2's shards are written by the ranks that hold them, and each shard is an entry of its own.

entries, rows = {}, {}
for side in saved:
    path = Path(store.name, side)
    metadata = dcp.FileSystemReader(path).read_metadata()
    entries[side] = len(metadata.storage_data)
    rows[side] = metadata.state_dict_metadata["model.0.weight"].chunks
    shares = [(path / f"__{rank}_0.distcp").stat().st_size for rank in range(int(side[-1]))]
    print(f"{side:8}{entries[side]:4} entries, bytes by rank {shares}")
assert entries["DDP 1"] == entries["DDP 4"] < entries["FSDP2 4"]
dcp_to_torch_save(Path(store.name, "FSDP2 4"), f"{store.name}/converted.pt")
files = (f"{store.name}/converted.pt", f"{store.name}/FSDP2 4.pt")
converted, wanted = (flat_state(torch.load(file, weights_only=True)) for file in files)
assert same_state(converted, wanted)
print("one file made of FSDP2 4 by dcp_to_torch_save: equal")

# %%
# On the right, the rows of one weight as the files hold them: to read the first of three shards, a rank needs two files of four.

# drawing
fig, (grid, bars) = subplots(1, 2, height_in=3.0, width_ratios=(1, 1.15))
describe(fig, "Saved against read, all equal; rows of one weight in the files of 1 to 4 ranks")
middle = {"ha": "center", "va": "center", "color": INK}
for (side, into), equal in cells.items():
    at = reads.index(into), saved.index(side)
    grid.bar(at[0], 0.9, 0.9, at[1] - 0.45, color=FAINT if equal else MUTED)
    grid.text(*at, "=" if equal else "≠", fontsize=12, **middle)
grid.invert_yaxis()
grid.set_xticks(range(len(reads)), reads, rotation=90)
grid.set_yticks(range(len(saved)), saved)
grid.set(xlabel="read by", ylabel="saved by")
for world in WRITERS:
    for rank, chunk in enumerate(rows[f"FSDP2 {world}"]):
        first, count = chunk.offsets[0], chunk.sizes[0]
        bars.barh(world, count, left=first, color=RANK_COLORS[rank], ec=FAINT)
        bars.text(first + count / 2, world, rank, bbox={"color": FAINT, "pad": 2.5}, **middle)
bars.set(xlabel="row of 0.weight", ylabel="ranks that saved (FSDP2)", yticks=WRITERS)
bars.set_title("number: the rank whose file holds it", fontsize=9.5)

# %%
# What does not survive
# ---------------------
# Values that differ between ranks under one name count as the same thing: one of them is saved.
# With one name per rank all values are kept, but a new rank finds none.


def own_values(folder):
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank).get_state()
    state = {"rng": generator, "rank": rank, f"rng of {rank}": generator}
    dcp.save(state, checkpoint_id=folder)
    found = {name: torch.zeros_like(generator) for name in state} | {"rank": -1}
    dcp.load(found, checkpoint_id=folder)
    return generator, *found.values()


def own_value_of_a_new_rank(folder):
    rank = dist.get_rank()
    try:
        dcp.load({f"rng of {rank}": torch.get_rng_state()}, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:
        return str(error).strip().splitlines()[-1]


with tempfile.TemporaryDirectory() as folder:
    results = launch(own_values, 2, folder, quiet=True)
    before, after, of_rank, named = zip(*results, strict=True)
    for rank, value in enumerate(after):
        whose = [r for r in (0, 1) if torch.equal(value, before[r])]
        print(f"rank {rank} saved its own generator and loads that of rank {whose[0]}")
    message = launch(own_value_of_a_new_rank, 3, folder, quiet=True)[2]
    print("rank 2 of 3:", message)
assert torch.equal(*after)
assert not torch.equal(*before)
assert of_rank in ((0, 0), (1, 1))
assert all(map(torch.equal, named, before))
assert "Missing key in checkpoint state_dict: rng of 2" in message
store.cleanup()

# %%
# The wrapper's own names
# -----------------------
# ``state_dict()`` of the wrapper has other names for DDP, so a load into FSDP2 does not find them.


def names(folder):
    through, direct = {}, {}
    for wrapper in ("bare", *WRAPPERS):
        model, optimizer = build(wrapper, seed=0)
        through[wrapper] = sorted(flat_state(state_of(model, optimizer)))
        direct[wrapper] = sorted(model.state_dict())
    dcp.save({"model": build("DDP", seed=0)[0].state_dict()}, checkpoint_id=folder)
    try:
        dcp.load({"model": build("FSDP2", seed=0)[0].state_dict()}, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:
        return through, direct, str(error).strip().splitlines()[-1]


with tempfile.TemporaryDirectory() as folder:
    ranks = launch(names, 2, folder, quiet=True, env=own)
for through, direct, message in ranks:
    assert through["bare"] == through["DDP"] == through["FSDP2"]
    assert "optimizer state 0.weight exp_avg " in through["DDP"]
    assert direct["bare"] == direct["FSDP2"]
    assert direct["DDP"] == [f"module.{name}" for name in direct["bare"]]
    assert "Missing key in checkpoint state_dict: model.0." in message
print("wrapper  state_dict()         get_state_dict(): the last of the names")
for wrapper, listed in direct.items():
    print(f"{wrapper:8} {listed[-1]:20} {through[wrapper][-1].replace(' ', '.')[:-1]}")
print(f"saved from DDP, loaded into FSDP2: {message}")

# %%
# What to notice
# --------------
#
# - :measured:`resharding.equal` of :measured:`resharding.cells` cells are equal bit for bit, weights and Adam's moments, in every direction.
# - The number of ranks is nowhere in the content: a reader names what it has, and gets the pieces that cover it.
# - A generator, a position in the data, or anything else that each rank has for itself is not a piece of anything; DCP keeps one, without a warning.
#
# What this does not mean
# -----------------------
#
# That training continues bit for bit with another number of ranks: the batch is divided differently, and sums have another order.
#
# Change it: predict, then run
# ----------------------------
# Let ``READERS`` end in 6 in place of 3; the last layer has five rows.
# Which cells differ?
#
# Expect: none.
#
# Say it aloud
# ------------
# "DCP saves pieces under module names, so two ranks of DDP can load what four of FSDP saved.
# A rank's generator is no such piece and needs its own name.
# Ranks write in parallel, and the price is a directory that only DCP reads, or a conversion."
