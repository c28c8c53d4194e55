"""
A second backward over one forward
==================================

One forward, two losses: to look at their gradients separately, you call ``backward(retain_graph=True)`` for the first and ``backward()`` for the second.
On one process the gradients add up; with DDP only the first is shared.
It serves :ref:`museum`.

DDP reduces in the first backward after a forward; a second backward over the same graph adds to ``.grad`` on this rank only.
Keep in mind: one forward, one backward.

:Level: core, 8 minutes
:Proves: museum-backward-twice
"""

# %%
# The second loss is a penalty on large outputs.
# ``clip_grad_norm_`` returns the norm that it found, which many loops log anyway.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap

STEPS = 40


def wrong(task, penalty):
    task.backward(retain_graph=True)
    penalty.backward()


def right(task, penalty):
    (task + penalty).backward()


def losses_of(out, y):
    return nn.functional.mse_loss(out, y), 0.1 * out.square().mean()


def by_hand(net, x, y, shared):
    """Mean gradient of the ranks' tasks, and of their penalties or of this rank's alone."""

    def mean_gradient(which, ranks):
        loss = sum(losses_of(net(x[at]), y[at])[which] for at in ranks) / len(ranks)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, net.parameters())])

    every = range(len(x))
    penalties_of = every if shared else [dist.get_rank()]
    return mean_gradient(0, every) + mean_gradient(1, penalties_of)


def train(backward):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(ranks, 16, 4).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    expected = by_hand(net, x, y, shared=backward is right)
    weights, gradients, norms, losses = [], [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        task, penalty = losses_of(model(x[rank]), y[rank])
        backward(task, penalty)
        gradients.append(flat_gradients(model))
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        weights.append(flat_weights(model))
        losses.append(task.item())
    return weights, norms[0], losses[-1], (gradients[0], expected.cpu())


# %%
# The gap starts small, because most of the gradient comes from the task; nothing closes it again.

gaps, logged = {}, {}
print("           gap after     logged  norm of the first gradient,")
print("        step 1  step 40    loss  by rank")
for name, backward in (("wrong", wrong), ("fixed", right)):
    weights, norms, losses, pairs = zip(*launch(train, 3, backward), strict=True)
    first, *_, gaps[name] = (gap(at_once) for at_once in zip(*weights, strict=True))
    logged[name] = losses[0]
    by_rank = "  ".join(f"{norm:.4f}" for norm in norms)
    print(f"{name} {first:8.2g} {gaps[name]:8.2g} {losses[0]:7.3f}  {by_rank}")
    assert (first == 0) == (gaps[name] == 0) == (name == "fixed")
    assert len(set(norms)) == (1 if name == "fixed" else 3)
    for gradient, expected in pairs:
        torch.testing.assert_close(gradient, expected)

record(**gaps, logged_wrong=logged["wrong"], logged_fixed=logged["fixed"])

# %%
# The fix
# -------
# Add the losses and call ``backward()`` once.
# The first backward has reduced what it computed, and DDP then reduces nothing more; what the second adds to ``.grad`` stays on its rank.
# If each loss needs its own backward, give it its own forward right before.
#
# How you would have noticed
# --------------------------
# Log the gradient norm of *every* rank instead of rank 0's: after DDP's backward the norms are equal to the last digit, or something is wrong.
# The loss curve ends at :measured:`backward-twice.logged_wrong:.3f` instead of :measured:`backward-twice.logged_fixed:.3f`, which looks plausible.
#
# Change it: predict, then run
# ----------------------------
# In ``wrong`` swap the two losses, so that the penalty's backward comes first.
# Is the gap smaller or larger?
#
# Expect: much larger, from the first step on: now the small penalty is shared, and the task's gradient stays local; the comparison with the gradient by hand fails.
#
# Say it aloud
# ------------
# "retain_graph with two backwards works on one process; under DDP only the first is averaged.
# I add the losses, or give each backward a forward of its own.
# The sum is free, but hides the two gradients from me; a second forward shows them and costs its time again."
