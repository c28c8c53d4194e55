"""
Accumulate locally
==================

A step over several micro-batches needs one averaged gradient; does each ``backward()`` have to communicate?
Stage 4 of the class adds ``no_sync()``, which keeps gradients on the rank until the last micro-batch.
It serves :ref:`from-scratch-accumulate`.

The mean over ranks of a sum is the sum of the means, so a window of micro-batches needs one averaging, at its end.
Keep in mind: within the window each rank has a gradient of its own.

:Level: core, 10 minutes
:Proves: scratch-no-sync-nests
"""

# %%
# Two loops over the same micro-batches.
# The first synchronizes after each backward, the second does nothing until the last.

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.runtime.torch_private import flight_records
from ddplab.scratch.accumulate import DDP

RANKS, MICRO_BATCHES = 3, 4


def model_and_batches():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device()))
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = torch.randn(MICRO_BATCHES, 16, 8, generator=generator).to(device())
    return model, batches


def accumulate(each_time):
    model, batches = model_and_batches()
    before, gaps = len(flight_records()), []
    for i, x in enumerate(batches):
        silent = not each_time and i + 1 < MICRO_BATCHES
        with model.no_sync() if silent else contextlib.nullcontext():
            (model(x).square().mean() / MICRO_BATCHES).backward()
            model.sync_gradients()
        gaps.append(flat_gradients(model))
    return gaps, len(flight_records()) - before


each, each_sent = zip(*launch(accumulate, RANKS, True), strict=True)
last, last_sent = zip(*launch(accumulate, RANKS, False), strict=True)
print("gap between ranks after micro-batch     1      2      3      4   all-reduces")
for name, held, sent in (
    ("synchronize each", each, each_sent),
    ("only the last", last, last_sent),
):
    gaps = [gap(gradients) for gradients in zip(*held, strict=True)]
    print(f"{name:33}" + "".join(f"{value:7.3f}" for value in gaps) + f"{sent[0]:11}")
    assert gaps[-1] == 0
difference = gap([each[0][-1], last[0][-1]])
print(f"both loops' final gradients differ by at most {difference:.1e}")
torch.testing.assert_close(each[0][-1], last[0][-1])
assert each_sent[0] == MICRO_BATCHES * last_sent[0]
record("all-reduces", each=each_sent[0], last=last_sent[0])
record(difference=difference)

# %%
# Why the results agree
# ---------------------
# Averaging is linear: the mean over ranks of a sum over micro-batches is the sum of the means.
# The first loop averages what is already averaged a second, third and fourth time, which changes nothing, since the mean of equal numbers is that number.
# Only the order of additions differs, and with it the last bits.
#
# Nested, and left by an exception
# --------------------------------
# ``no_sync`` restores the previous setting, so an inner one does not switch the outer one off, and an error inside leaves no rank without synchronization.


def how_many_are_sent():
    model, batches = model_and_batches()
    model(batches[0]).sum().backward()

    def sent():
        before = len(flight_records())
        model.sync_gradients()
        return len(flight_records()) - before

    with model.no_sync():
        with model.no_sync():
            inner = sent()
        outer = sent()
    with contextlib.suppress(ValueError), model.no_sync():
        raise ValueError("a bad batch")
    return {"inner no_sync": inner, "outer, after inner": outer, "after an exception": sent()}


for where, sent in launch(how_many_are_sent, 2)[0].items():
    print(f"{where:20} {sent} all-reduces")
    assert sent == (4 if where == "after an exception" else 0)

# %%
# What to notice
# --------------
# - One averaged gradient costs :measured:`accumulate-locally.last` instead of :measured:`accumulate-locally.each`, and the two differ in rounding only.
# - Until the last micro-batch the ranks hold different gradients: a step taken there would make them drift.
#
# What this does not mean
# -----------------------
# That torch's ``no_sync`` works like this one.
# Here it decides when ``sync_gradients()`` is called; in torch's DDP, and in the class from stage 7 on, it decides when the *forward* runs.
#
# Change it: predict, then run
# ----------------------------
# Let the last two micro-batches communicate: ``i + 2 < MICRO_BATCHES``.
# After which micro-batch do the ranks agree, and is the final gradient another one?
#
# Expect: after the third, for twice as many all-reduces, and the final gradient is the same within rounding; the assertion on the counts fails.
#
# Say it aloud
# ------------
# "Averaging is linear, so I may add up micro-batches locally and average once.
# The gradient is the same but for rounding.
# It saves all but one round of messages per step, and it costs an update: the batch is larger, and the learning rate may have to follow."
