"""
Damaged checkpoints
===================

A file was cut, a bit of it has flipped, somebody else wrote it, or it is of another model.
What does ``torch.load`` say, what does ``CheckpointManager`` say, and with what do the ranks go on?
It serves :ref:`checkpointing-safe`.
"""

# %%
# Three ways to spoil a file
# --------------------------
# Two ranks save steps 1 and 2; then something happens to the file of step 2.

import hashlib
import tempfile
import textwrap
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.checkpoint import CheckpointError, CheckpointManager


def network(hidden=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 1))


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
    def __reduce__(self):
        return print, ("    (this line was printed by a checkpoint)",)


def replace_by_a_hostile_one(path):
    """Who can write a file can write a checksum, too."""
    torch.save({"objects": {"model": Hostile()}}, path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes() + f"\nsha256 {checksum}\n".encode())


# %%
# What ``torch.load`` says
# ------------------------
# The longest of its messages are cut here to their first sentence.

folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "step-00000002.pt")
spoiled, before = {}, network()[0].weight[0, 0].item()
launch(save_twice, 2, folder.name)
whole = path.read_bytes()
for spoil in (cut, flip_one_bit, replace_by_a_hostile_one):
    path.write_bytes(whole)
    spoil(path)
    spoiled[spoil] = path.read_bytes()
    try:
        after = torch.load(path)["objects"]["model"]["0.weight"][0, 0].item()
        said = f"loads; the first weight, {before:.3g}, is now {after:.3g}"
    except Exception as error:
        said = f"{type(error).__name__}: {error}".split(". ")[0].replace(folder.name, "…")
    print(f"{spoil.__name__.replace('_', ' ')}\n    {said[:90]}")
assert abs(after) > 1e30  # in silence
assert "Weights only load failed" in said
record(before=before, after=f"{after:.1e}")

# %%
# The hostile file with ``weights_only=False``, which stood in many scripts until torch 2.6 made ``True`` the default:

_ = torch.load(path, weights_only=False)

# %%
# What the manager says
# ---------------------
# On each of two ranks, with a new model.


def resume(folder, hidden=32):
    model = DDP(network(hidden).to(device()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = (
                f"resumes at step {CheckpointManager(folder).load({'model': model})['step']}"
            )
        except CheckpointError as error:
            said = str(error)
    return [str(warning.message) for warning in caught] + [said]


def show(title, hidden=32):
    print(title)
    for rank, lines in enumerate(launch(resume, 2, folder.name, hidden, quiet=True)):
        for text in lines:
            text = text.replace(folder.name, "…")
            print(
                textwrap.fill(
                    text, 84, initial_indent=f"  rank {rank} │ ", subsequent_indent=" " * 11
                )
            )
    return text


ends = {}
for spoil, content in spoiled.items():
    path.write_bytes(content)
    ends[spoil] = show(spoil.__name__.replace("_", " "))
assert ends[cut] == ends[flip_one_bit] == "resumes at step 1"
assert "refused: it needs builtins.print" in ends[replace_by_a_hostile_one]

# %%
# A good file and another model: the manager compares before it loads anything, so the model is as it was.

path.write_bytes(whole)
said = show("a model of 48 instead of 32", hidden=48)
assert "nothing was loaded" in said
folder.cleanup()

# %%
# What to notice
# --------------
#
# - One bit made :measured:`damaged-checkpoints.after` of :measured:`damaged-checkpoints.before:.4f`, and ``torch.load`` gave it back without a word.
# - A torn or corrupt file is an accident: the manager warns, on rank 0, and takes the one before it on all ranks.
# - A file that wants to run code is no accident: the manager stops, and you look. ``load(step=1)`` is there when you have.
#
# What this does not mean
# -----------------------
#
# That a checksum keeps anybody out. It finds accidents; whoever can write into the folder can compute one.
# Against that, only the rights on the folder help, and loading nothing but tensors and plain values.
