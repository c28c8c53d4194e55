"""
Damaged checkpoints
===================

A file was cut short, one of its bits has flipped, somebody else wrote it, or it belongs to another model.
What does ``torch.load`` report, what does ``CheckpointManager`` report, and which step do the ranks resume from?
It serves :ref:`checkpointing-safe`.

A checksum finds out whether a file was damaged, and a loader that takes only data refuses code.
All ranks must get the same answer, or they resume from different steps.

:Level: deep, 15 minutes
:Proves: ckpt-flipped-bit-loads-silently ckpt-weights-only-runs-nothing ckpt-misfit-loads-nothing
"""

# %%
# Three ways to damage a file
# ---------------------------
# Two ranks save steps 1 and 2; then something happens to the file of step 2.

import hashlib
import os
import tempfile
import textwrap
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.checkpoint import CheckpointError, CheckpointManager

folder = tempfile.TemporaryDirectory()
path, trap = (Path(folder.name, name) for name in ("step-00000002.pt", "trap"))


def network(outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, outputs))


def save_twice(folder):
    model = DDP(network().to(device()))
    for step in (1, 2):
        CheckpointManager(folder).save({"model": model}, step)


def cut(path):
    path.write_bytes(path.read_bytes()[:2000])


def flip_one_bit(path):
    """The highest bit of the exponent of the first weight."""
    content, first = bytearray(path.read_bytes()), network()[0].weight[0, :4].tolist()
    content[content.index(torch.tensor(first).numpy().tobytes()) + 3] ^= 0b0100_0000
    path.write_bytes(content)


class Hostile:
    """Makes a folder when it is loaded; it could do anything else."""

    def __reduce__(self):
        return os.mkdir, (str(trap),)


def replace_by_a_hostile_one(path):
    """Whoever can write a file can also write a checksum."""
    torch.save({"objects": {"model": Hostile()}}, path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes() + f"\nsha256 {checksum}\n".encode())


# %%
# What ``torch.load`` reports
# ---------------------------
# The longest messages are cut here to their first sentence.

damaged, before = {}, network()[0].weight[0, 0].item()
launch(save_twice, 2, folder.name)
whole = path.read_bytes()
for damage in (cut, flip_one_bit, replace_by_a_hostile_one):
    path.write_bytes(whole)
    damage(path)
    damaged[damage] = path.read_bytes()
    try:
        after = torch.load(path)["objects"]["model"]["0.weight"][0, 0].item()
        message = f"loads; the first weight, {before:.3g}, is now {after:.3g}"
    except Exception as error:
        message = f"{type(error).__name__}: {error}".split(". ")[0].replace(folder.name, "…")
    print(f"{damage.__name__.replace('_', ' ')}\n    {message[:90]}")
assert abs(after) > 1e30  # and no error
assert "Weights only load failed" in message
record(before=before, after=f"{after:.1e}")

# %%
# The hostile file with ``weights_only=False``, which was the default until torch 2.6:

assert not trap.exists()
torch.load(path, weights_only=False)
print("a folder was made by loading a checkpoint:", trap.is_dir())
trap.rmdir()

# %%
# What the manager reports
# ------------------------
# On each of two ranks, with a new model.


def unchanged(model, outputs):
    """The tensors that are as they were built."""
    built = network(outputs, seed=1).state_dict()
    return [n for n, t in model.state_dict().items() if torch.equal(t.cpu(), built[n])]


def resume(folder, outputs):
    model = DDP(network(outputs, seed=1).to(device()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            step = CheckpointManager(folder).load({"model": model})["step"]
            message = f"resumes at step {step}"
        except CheckpointError as error:
            message = str(error)
            assert len(unchanged(model.module, outputs)) == 4  # all
    return [str(warning.message) for warning in caught] + [message]


def show(title, outputs=1):
    """What both ranks report; returns what each said last."""
    print(title)
    ranks = launch(resume, 2, folder.name, outputs, quiet=True)
    for rank, messages in enumerate(ranks):
        for text in messages:
            text, first = text.replace(folder.name, "…"), f"  rank {rank} │ "
            print(textwrap.fill(text, 84, initial_indent=first, subsequent_indent=" " * 11))
    return [messages[-1] for messages in ranks]


ends = {}
for damage, content in damaged.items():
    path.write_bytes(content)
    ends[damage] = show(damage.__name__.replace("_", " "))
assert ends[cut] == ends[flip_one_bit] == ["resumes at step 1"] * 2
for text in ends[replace_by_a_hostile_one]:
    assert "refused: it needs posix.mkdir" in text
assert not trap.exists()

# %%
# A good file and another model: ``load_state_dict`` has loaded the layer that fits before it raises.
# The manager compares before it loads anything, so the model stays as it was.

path.write_bytes(whole)
other = network(outputs=2, seed=1)
try:
    other.load_state_dict(torch.load(path)["objects"]["model"])
except RuntimeError:
    print("load_state_dict raises; unchanged:", *unchanged(other, 2))
assert unchanged(other, 2) == ["2.weight", "2.bias"]
for text in show("the manager, and a model with 2 outputs instead of 1", outputs=2):
    assert "nothing was loaded" in text
    assert "2.bias float32 (1,) instead of float32 (2,)" in text
folder.cleanup()

# %%
# What to notice
# --------------
#
# - One bit turned :measured:`damaged-checkpoints.before:.4f` into :measured:`damaged-checkpoints.after`, and ``torch.load`` returned it without a warning.
# - A truncated or corrupt file is an accident: the manager warns, on rank 0, and loads the previous one on all ranks.
# - A file that wants to run code is not an accident: the manager refuses it, so that you look. After that, use ``load(step=1)``.
#
# What this does not mean
# -----------------------
#
# That a checksum keeps anybody out. It finds accidents; whoever can write to the folder can compute one.
# Against that, only the permissions of the folder help, and loading nothing but tensors and plain values.
#
# Change it: predict, then run
# ----------------------------
# Save only one step: ``for step in (2,):``.
# What do the ranks do when all they have is damaged?
#
# Expect: ``load`` returns ``None``, as for an empty folder, and this lab stops with a ``TypeError``.
#
# Say it aloud
# ------------
# "``torch.load`` does not notice a flipped bit, so I compare a checksum first.
# Damage is an accident, so all ranks fall back; code is not, so they refuse.
# Falling back keeps the job running and loses steps; refusing needs a person."
