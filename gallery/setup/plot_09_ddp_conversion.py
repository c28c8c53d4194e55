"""
DDP conversion: a program to read
=================================

You have a program that trains on one device. Which lines must change so that it trains on many, and what is each of them for?
This is a code-reading lab: two short programs, the differences between them, and what happens without each changed line.
It serves :ref:`setup-conversion`; the exercise :ref:`setup-exercise` has you write such a program yourself.

Concept goal
------------
You can convert a training loop, name the purpose of each changed line, and say which of them fail silently when forgotten.
What is transformed: one process that reads every batch becomes *p* processes that each read a *p*-th of it.
The number that matters: the global batch, ranks × batch per rank. It does not change, and neither do the losses.

Mental model
------------
Think of one exam with many graders.
Before, one teacher grades the whole pile; now each takes every *p*-th sheet.
They grade by the same key (equal weights), agree on who takes what (the sampler), average what they learned (the backward), and one of them writes the report (rank 0).

Runnable starter
----------------
The program for one device, which draws its batches in an order that depends on the epoch:

.. literalinclude:: /../gallery/recipes/single_device.py

And what changes:

.. code-diff:: /../gallery/recipes/single_device.py /../gallery/recipes/converted_ddp.py

:Level: core, 25 minutes
:Proves: conversion-same-losses
"""

import contextlib
import io
import sys
import tempfile

import torch

from ddplab import launch
from ddplab.apparatus.plotting import ACCENT, INK, name_rows, subplots
from ddplab.apparatus.recipes import FOLDER
from ddplab.runtime.needs import ON_CPU

SINGLE = (FOLDER / "single_device.py").read_text()
CONVERTED = (FOLDER / "converted_ddp.py").read_text()


def program(text, path):
    """Run the program, in a rank that has the variables of torchrun and no process group."""
    sys.argv = ["program.py", path]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue().splitlines()


def run(text, ranks):
    """What each rank printed, and the weights that were saved, end to end."""
    with tempfile.TemporaryDirectory() as folder:
        path, options = f"{folder}/model.pt", {"init": False, "quiet": True, "env": ON_CPU}
        printed = launch(program, ranks, text, path, **options)
        weights = torch.load(path, map_location="cpu")
    return printed, torch.cat([w.flatten() for w in weights.values()])


(alone,), single_weights = run(SINGLE, 1)
losses = {"one device": [float(line.split()[-1]) for line in alone]}
gaps = {"one device": 0.0}  # how far the saved weights are from those of one device
for name, ranks in (("1 rank", 1), ("2 ranks", 2), ("4 ranks", 4)):
    (rank0, *others), weights = run(CONVERTED, ranks)
    losses[name] = [float(line.split()[-1]) for line in rank0]
    gaps[name] = (weights - single_weights).abs().max().item()
    assert not any(others)
print(f"{'':12}" + "".join(f"{name:>12}" for name in losses))
for epoch, each in enumerate(zip(*losses.values(), strict=True)):
    print(f"loss {epoch:<7}" + "".join(f"{loss:12.6f}" for loss in each))
    assert max(each) - min(each) < 2e-6
print("weights off " + "".join(f"{gap:12.0e}" for gap in gaps.values()))
gap = gaps["2 ranks"]
assert max(gaps.values()) < 1e-5
assert losses["one device"][0] > 2 * losses["one device"][-1]  # it learns

# %%
# Block by block
# --------------
# **Device.**
# Each process drives one GPU, the one with its *local* rank: its number on this machine, not in the job.
#
# **init_process_group.**
# The processes find each other through the variables that ``torchrun`` sets, and wait until all are there.
#
# **Wrapper.**
# DDP copies rank 0's weights to all ranks and hooks into the backward.
# It comes after ``.to(device)``, and the loop calls ``ddp``, not ``model``.
#
# **Sampler.**
# ``DistributedSampler`` draws one order and deals it in turns.
# ``set_epoch`` takes the place of ``order.manual_seed``: it makes a new order, and the same one on all ranks.
#
# **Batch.**
# The loader counts per rank, so ``BATCH // ranks`` keeps the global batch, and with it the meaning of ``lr``.
#
# **Loss.**
# Each rank knows the mean over its own share; ``all_reduce`` adds these up, and the division makes them a mean.
# That is only for the report: the gradients were averaged in the backward.
#
# **Rank 0.**
# One rank prints and saves; the others have the same weights.
# The weights of ``model`` are saved, so the file fits the program for one device.
#
# **Exit.**
# The barrier keeps the ranks together until the file is written.
# ``del ddp`` comes before ``destroy_process_group``, because the wrapper also holds the group.
#
# What did *not* change: the model, the loss, ``backward()``, ``step()``, and ``zero_grad()``.
#
# Without each line
# -----------------
# Every edit below runs to the end without an error.

EDITS = {
    "the backward: model(x)": ("mse_loss(ddp(", "mse_loss(model("),
    "the share: all read all": ("DistributedSampler(data)", "DistributedSampler(data, 1, 0)"),
    "the order: no set_epoch": ("sampler.set_epoch(epoch)", "pass"),
    "the batch: not divided": ("BATCH // ranks", "BATCH"),
    "the sum: no all_reduce": ("dist.all_reduce(total)", "pass"),
    "the mean: no division": ("total /= ranks", "pass"),
}
distances = {"nothing left out": gap}
print("left out                   loss of the last epoch   weights differ by")
print(f"{'nothing':27}{losses['2 ranks'][-1]:22.6f}{gap:20.0e}")
for name, (line, other) in EDITS.items():
    assert line in CONVERTED
    printed, weights = run(CONVERTED.replace(line, other), 2)
    distances[name] = (weights - single_weights).abs().max().item()
    print(f"{name:27}{printed[0][-1].split()[-1]:>22}{distances[name]:20.0e}")
wrong = [name for name, distance in distances.items() if distance > 1e-5]
assert wrong == list(EDITS)[:4]

# %%
# The distance in a figure: circles at the left are rounding, diamonds at the right are another model.

# drawing
fig, ax = subplots(height_in=2.4)
for row, distance in enumerate(distances.values()):
    rounding = distance < 1e-5
    ax.plot(distance, row, "o" if rounding else "D", color=ACCENT if rounding else INK)
    ax.annotate(f"{distance:.0e}", (distance, row), (6, -3), textcoords="offset points")
ax.set(xscale="log", xlim=(1e-8, 1))
name_rows(ax, list(distances))
ax.set_xlabel("largest difference from the weights of one device")
ax.set_title("Four forgotten lines train another model, two only misreport it")

# %%
# What to notice
# --------------
# * Both programs print the same losses; the weights differ by rounding, because a mean of means adds in another order.
# * Leaving out one of these lines raises nothing: the ranks train, the loss falls.
# * If you forget to reduce the loss, you have the right model and a wrong report; if you bypass DDP, you have a plausible report and several models.
#
# What it does not mean
# ---------------------
# * Equal losses come from an equal global batch and equal shares.
#   With BatchNorm, dropout, or a last batch that is not full, one device and many are no longer the same (:ref:`idea-equality`).
# * The two programs were not timed: this model is too small to gain from a second process.
# * A converted program is not finished: it cannot resume, nor stop on request.
#   :ref:`setup-recipe` does both.
#
# Change it: predict, then run
# ----------------------------
# Add a line to ``EDITS``: ``"the exit: no barrier": ("dist.barrier()", "pass"),``.
# Do the saved weights differ?
#
# Expect: only by rounding, as without the edit: the barrier changes no number, it keeps the other ranks from leaving while rank 0 still writes.
#
# Say it aloud
# ------------
# "Five things change. Each process takes its device and joins the group; the model is wrapped; a distributed sampler deals the data and gets the epoch; what I report is reduced over the ranks; and rank 0 alone prints and saves.
# I keep the global batch by dividing it by the world size.
# The loop itself stays, because DDP averages the gradients inside the backward.
# That keeps the result; keeping the batch per rank would keep the GPUs busier, and asks for another learning rate."
#
# Intuition notes
# ---------------
# * Keeping the batch per rank instead is just as common: the global batch then grows with the ranks, and you have to reconsider ``lr`` (:ref:`idea-batch`).
#   The official tutorial does that: `Getting started with DDP <https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html>`__.
# * A sampler and no broadcast: all ranks compute the same order from the same two numbers; see the `reference of DistributedSampler
#   <https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler>`__.
# * ``torchrun`` decides how many ranks there are; the program asks, and does not decide.
#   See `torchrun <https://docs.pytorch.org/docs/stable/elastic/run.html>`__.
#
# Further reading
# ---------------
# * :ref:`museum`: what each of these mistakes looks like during training.
# * `Distributed Data Parallel, design note <https://docs.pytorch.org/docs/stable/notes/ddp.html>`__.
# * In the source: ``torch/nn/parallel/distributed.py``, ``DistributedDataParallel.__init__``; ``torch/utils/data/distributed.py``.
