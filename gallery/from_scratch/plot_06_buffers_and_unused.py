"""
Buffers and unused parameters
=============================

What is still missing, now that gradients are averaged during backward?
Stage 7 copies buffers and lets the forward decide what is synchronized; stage 8 handles parameters that a step leaves out.
It serves :ref:`from-scratch-buffers` and :ref:`from-scratch-unused`.

A wrapper has to deal with what has no gradient: buffers, and parameters that a step leaves out.
Keep in mind: whatever a rank does about them, all ranks have to make the same calls.

:Level: deep, 20 minutes
"""

# %%
# Buffers
# -------
# BatchNorm's running mean is a buffer: it has no gradient, and each rank updates it from its own data.
# A hook on the BatchNorm reads it as a forward starts, after everything that the wrapper does first.

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.scratch import buffers, overlap, unused

WRAPPERS = {"overlap": overlap.DDP, "buffers": buffers.DDP, "torch": DistributedDataParallel}


def running_means(wrap):
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device())
    model, seen = wrap(net), []
    net[0].register_forward_pre_hook(lambda *_: seen.append(net[0].running_mean.cpu().clone()))
    for _ in range(5):
        x = (torch.randn(64, 4) + dist.get_rank()).to(device())
        model(x).square().mean().backward()
    return seen[-1], net[0].running_mean.cpu()


print("gap of the running mean   as forward 5 starts   as step 5 ends")
for name, wrap in WRAPPERS.items():
    start, end = (gap(means) for means in zip(*launch(running_means, 3, wrap), strict=True))
    print(f"{name:26}{start:19.3f}{end:17.3f}")
    record(**{f"{name}_start": start, f"{name}_end": end})
    assert (start == 0) == (name != "overlap")
    assert end > 0

# %%
# The forward decides
# -------------------
# From stage 7 on, ``no_sync`` has to be in force when the forward runs, as in torch's DDP.


def gradient(wrap, around):
    torch.manual_seed(0)
    model = wrap(nn.Linear(4, 1).to(device()))
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    with model.no_sync() if around == "forward" else contextlib.nullcontext():
        loss = model(x).square().mean()
    with model.no_sync() if around == "backward" else contextlib.nullcontext():
        loss.backward()
    return flat_gradients(model)


print("gap of the gradient, with no_sync around   forward   backward")
for name, wrap in WRAPPERS.items():
    gaps = [gap(launch(gradient, 2, wrap, around)) for around in ("forward", "backward")]
    print(f"{name:40}{gaps[0]:10.2f}{gaps[1]:11.2f}")
    assert [value == 0 for value in gaps] == [name == "overlap", name != "overlap"]

# %%
# Unused parameters
# -----------------
# Rank 0 uses head a, rank 1 uses head b, and no rank uses head c.


class ThreeHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4, bias=False)
        self.a, self.b, self.c = (nn.Linear(4, 1, bias=False) for _ in "abc")

    def forward(self, x):
        return [self.a, self.b][dist.get_rank()](self.trunk(x))


def one_step(wrap, **options):
    torch.manual_seed(0)
    model = wrap(ThreeHeads().to(device()), **options)
    x = torch.full((2, 4), 1.0 + dist.get_rank()).to(device())
    try:
        model(x).mean().backward()
    except (AttributeError, RuntimeError) as error:
        print(error)
        return None
    return {name: p.grad for name, p in model.module.named_parameters()}


for name, stage in (("buffers", buffers), ("unused", unused)):
    print(f"stage {name}:")
    assert launch(one_step, 2, stage.DDP) == [None, None]

# %%
# With the flag, the class finds out at the end of backward which gradients did not come, puts zeros in their places, and launches every bucket.
# One more all-reduce, of one number per parameter, shows which parameters *any* rank used.


def like_torch():
    ours = one_step(unused.DDP, find_unused_parameters=True)
    torchs = one_step(DistributedDataParallel, find_unused_parameters=True)
    for name, grad in ours.items():
        other = torchs[name]
        assert grad is other is None or torch.equal(grad, other)
        shown = "None" if grad is None else f"norm {grad.norm():.3f}"
        print(f"{name:13} {shown:11} same as torch's")


launch(like_torch, 2)

# %%
# What to notice
# --------------
# - Buffers agree when a forward starts and differ by :measured:`buffers-and-unused.buffers_end:.2f` when the step ends: the copy belongs to the forward, not to the step.
# - The second table reverses between stages 6 and 7, because the flag is read earlier.
# - Stage 8 turns an obscure error into one that names the parameters on each rank; with the flag it does what torch does, including the ``None`` of a parameter that no rank used.
#
# What this does not mean
# -----------------------
# That ``find_unused_parameters=True`` is a safe default: it costs a collective in each step, and a branch that you forgot to use stays untrained without an error.
#
# Change it: predict, then run
# ----------------------------
# Let both ranks use head a: ``[self.a, self.a]`` in ``ThreeHeads.forward``.
# What does each wrapper leave in the gradient of head b?
#
# Expect: None, in ours as in torch's, because no rank used it; before, it was half of rank 1's gradient. The error of the stage without the flag now names head b on both ranks.
#
# Say it aloud
# ------------
# "Buffers are copied from rank 0 before a forward, and the forward also decides whether this step synchronizes.
# For unused parameters the class sends zeros and asks all ranks in one more all-reduce which parameters anybody used.
# That makes branches possible, and it costs a collective per step and hides a branch that you forgot."
