"""
Clipping before the sync
========================

A loop that accumulates gradients still clips right after ``backward()``, where the line was before accumulation was added.
Under ``no_sync`` it clips what this rank has accumulated so far, not the gradient that ``step()`` will use.
It serves :ref:`museum`.

Clipping is not linear, so it matters whether it comes before or after the mean.
Keep in mind: clip what ``step()`` will use, once.

:Level: core, 10 minutes
:Proves: museum-clipping-before-the-sync
"""

# %%
# The two versions differ in how often one line runs.
# The right answer is the gradient of all samples in one process, clipped once.

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap

RANKS, MICRO, MAX_NORM, MAX_VALUE = 4, 4, 1.0, 0.1


def by_norm(parameters):
    return clip_grad_norm_(parameters, MAX_NORM).item()


def by_value(parameters):
    clip_grad_value_(parameters, MAX_VALUE)


def worker(clip, every_micro_batch, in_a_hook=False):
    torch.manual_seed(0)  # the same weights and the same data on every rank
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    x = torch.randn(RANKS, MICRO, 8, 4).to(device())
    y = x.sum(dim=3, keepdim=True) + 3 * torch.randn(RANKS, MICRO, 1, 1).to(device())
    nn.functional.mse_loss(net(x), y).backward()
    clip(net.parameters())
    right, norms = flat_gradients(net), []
    net.zero_grad()

    model, rank = DDP(net), dist.get_rank()
    if in_a_hook:
        for p in net.parameters():
            p.register_hook(lambda gradient: gradient.clamp(-MAX_VALUE, MAX_VALUE))
    for i in range(MICRO):
        last = i == MICRO - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(x[rank, i]), y[rank, i]) / MICRO
            loss.backward()
        if last or every_micro_batch:  # wrong in every micro-batch, right after the last
            norms.append(clip(model.parameters()))
    return flat_gradients(model), right, norms


# %%
# The error is the length of the difference from the right answer, divided by that answer's length.

found = {}
print("       gap between ranks    error   first norm found, by rank")
for name, every in ("wrong", True), ("fixed", False):
    gradients, (right, *_), norms = zip(*launch(worker, RANKS, by_norm, every), strict=True)
    error = ((gradients[0] - right).norm() / right.norm()).item()
    first = [norm for norm, *_ in norms]
    by_rank = "  ".join(f"{norm:.3f}" for norm in first)
    print(f"{name} {gap(gradients):18.0f}   {100 * error:4.1f} %   {by_rank}")
    found[name] = 100 * error
    assert gap(gradients) == 0
    assert len(set(first)) == (1 if name == "fixed" else RANKS)

assert found["wrong"] > 10
assert found["fixed"] < 1e-4
record("%", **found)

# %%
# A hook on a parameter sees this rank's gradient, too: DDP averages what the hook leaves.

for in_a_hook in (True, False):
    ranks = launch(worker, RANKS, by_value, False, in_a_hook)
    gradients, (right, *_), _ = zip(*ranks, strict=True)
    assert gap(gradients) == 0
    error = ((gradients[0] - right).norm() / right.norm()).item()
    assert error > 0.1 if in_a_hook else error < 1e-5

# %%
# The fix
# -------
# Clip once per optimizer step: after the backward that synchronizes and before ``step()``, when ``.grad`` is the mean over ranks.
#
# How you would have noticed
# --------------------------
# ``clip_grad_norm_`` returns the norm that it found: gather it, and assert that it is the same on all ranks.
# Comparing weights between ranks finds nothing, because the clipped gradients were averaged and do agree.
#
# Change it: predict, then run
# ----------------------------
# Set ``MAX_NORM`` to 100.
# How large is the error of the wrong version?
#
# Expect: zero: a limit that is never reached changes nothing, so the fault appears only in the steps whose gradients are large; the assertion that it is there fails.
#
# Say it aloud
# ------------
# "Under no_sync the gradient is this rank's own and unfinished, so clipping there cuts the wrong vector.
# I clip once, after the backward that synchronizes.
# Clipping each micro-batch would keep a single bad one small, but that is another algorithm, and its result depends on how the batch was split."
