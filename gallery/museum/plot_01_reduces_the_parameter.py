"""
A hook that averages the parameter
==================================

Hand-written data parallelism gives every parameter a hook that is called when its gradient is ready.
The hook receives the parameter, and averaging what it receives looks right: equal weights on all ranks.
It serves :ref:`museum`.

What has to agree is the gradient that the optimizer will use; weights that are averaged earlier differ again after the step.
Keep in mind: check after ``step()``.

:Level: core, 8 minutes
:Proves: museum-reduces-the-parameter
"""

# %%
# The two hooks differ in one word.
# ``checksums`` is the check: one number per rank, equal exactly if the weights are.

import zlib

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap

STEPS = 40


def wrong(p):
    dist.all_reduce(p.data)
    p.data /= dist.get_world_size()


def right(p):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def checksums(model):
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, zlib.crc32(flat_weights(model).numpy().tobytes()))
    return seen


def train(average):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and the same data set on every rank
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(ranks, 16, 4).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    kept = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rank]), y[rank])
        loss.backward()
        kept.append(flat_weights(model))
        optimizer.step()
        kept.append(flat_weights(model))
    return kept, loss.item(), checksums(model)


# %%
# Weights are compared when backward has returned, and again after the step.

gaps, losses = {}, {}
print("                gap after         logged  checksums of the weights,")
print("       backward  step 1  step 40    loss  by rank")
for name, average in (("wrong", wrong), ("fixed", right)):
    kept, logged, seen = zip(*launch(train, 3, average), strict=True)
    in_turn = [gap(weights) for weights in zip(*kept, strict=True)]
    backward, first, last = in_turn[-2], in_turn[1], in_turn[-1]
    gaps[name], losses[name] = last, logged[0]
    sums = "  ".join(f"{number:08x}" for number in seen[0])
    print(f"{name} {backward:9.3g} {first:7.2g} {last:8.2g} {logged[0]:7.3f}  {sums}")
    assert not any(in_turn[::2])  # after a backward all are equal, with either hook
    assert last <= first  # the gap does not grow
    assert {after == 0 for after in in_turn[1::2]} == {name == "fixed"}
    assert (len(set(seen[0])) == 1) == (name == "fixed")

assert abs(losses["wrong"] - losses["fixed"]) < 0.01
record(wrong=gaps["wrong"], fixed=gaps["fixed"])
record(loss_wrong=losses["wrong"], loss_fixed=losses["fixed"])

# %%
# The fix
# -------
# Reduce ``p.grad``.
# Averaging the weights during backward closes the gap that the last step left, and the next step opens it again, because it applies a gradient that was never averaged.
#
# How you would have noticed
# --------------------------
# Compare a checksum of the weights over ranks every hundred steps or so, *after* ``optimizer.step()``.
# After ``backward()`` the wrong hook has just made them equal, so the same check finds nothing there.
# The loss would not have shown it: after 40 steps it is :measured:`reduces-the-parameter.loss_wrong:.3f`, and :measured:`reduces-the-parameter.loss_fixed:.3f` when fixed.
#
# Change it: predict, then run
# ----------------------------
# Set ``lr=0.01``.
# What happens to the gap of the wrong version?
#
# Expect: it shrinks with the learning rate, about tenfold: the gap is one step's difference between local gradients, and it never adds up.
#
# Say it aloud
# ------------
# "The hook averaged the parameter, so the weights agree after the backward and differ after every step.
# I reduce p.grad instead.
# Averaging weights can be a method of its own, which sends less often, but then it comes after the step and is no longer the same as one big batch."
