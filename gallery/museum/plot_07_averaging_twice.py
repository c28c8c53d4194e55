"""
A second division
=================

Hand-written data parallelism divides by the world size, and the line stays when DDP is added.
DDP already divides, so the gradient is too small by that factor, on all ranks.
It serves :ref:`museum`.

DDP divides by the number of ranks; whoever divides again trains with a smaller gradient.
Keep in mind: ranks that agree prove nothing about the scale.

:Level: core, 12 minutes
:Proves: museum-averaging-twice
"""

# %%
# The program is the same on any number of ranks, so the right answer is what it gives on one.
# In float64 a real difference is easy to distinguish from rounding.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap

RANKS, STEPS = 4, 20


def wrong(loss):
    (loss / dist.get_world_size()).backward()


def right(loss):
    loss.backward()


def train(make_optimizer, backward):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    model = DDP(net.to(device()))
    optimizer = make_optimizer(model.parameters())
    x = torch.randn(64, 4, dtype=torch.float64).to(device())
    y = x.sum(dim=1, keepdim=True).sin()
    mine = slice(rank * 64 // ranks, (rank + 1) * 64 // ranks)
    gradients = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(nn.functional.mse_loss(model(x[mine]), y[mine]))
        gradients.append(flat_gradients(model))
        optimizer.step()
    with torch.no_grad():
        loss = nn.functional.mse_loss(net(x), y).item()
    return flat_weights(model), gradients[0], loss


# %%
# *Off by* is the largest difference between any weight and that of the single process.

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam with L2": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
}
off, losses = {}, {}
print("                    first gradient  gap between            loss after")
print("                   ÷ one process's        ranks   off by    20 steps")
for name, make in OPTIMIZERS.items():
    [(answer, of_one, _)] = launch(train, 1, make, right, up_to=RANKS)
    for how, backward in (("wrong", wrong), ("fixed", right)):
        weights, firsts, (loss, *_) = zip(*launch(train, RANKS, make, backward), strict=True)
        ratio, between = (firsts[0].norm() / of_one.norm()).item(), gap(weights)
        off[name, how], losses[name, how] = gap([weights[0], answer]), loss
        row = f"{ratio:15.2f} {between:12.0f} {off[name, how]:8.1g} {loss:11.4f}"
        print(f"{name:12} {how} {row}")
        assert between == 0
        torch.testing.assert_close(firsts[0], of_one / (RANKS if how == "wrong" else 1))
        assert (off[name, how] < 1e-12) == (how == "fixed")

assert off["SGD", "wrong"] > 1e-2
assert off["AdamW", "wrong"] < 1e-5 * off["SGD", "wrong"]
record(wrong=off["SGD", "wrong"], fixed=off["SGD", "fixed"], adamw=off["AdamW", "wrong"])
record(loss_wrong=losses["SGD", "wrong"], loss_fixed=losses["SGD", "fixed"])
record(loss_adamw=losses["AdamW", "wrong"], loss_adamw_fixed=losses["AdamW", "fixed"])

# %%
# The fix
# -------
# Delete the division by the world size.
# Divide by the number of *micro-batches* if you accumulate: DDP does not know about those.
#
# How you would have noticed
# --------------------------
# Comparing ranks does not help: they agree bit for bit.
# Compare the norm of the first gradient with that of one process on the same global batch: here it is a quarter, on four ranks.
# Under SGD the loss falls as if the learning rate were too small, to :measured:`averaging-twice.loss_wrong:.3f` instead of :measured:`averaging-twice.loss_fixed:.3f`, so people raise the learning rate, and the line stays.
# Under AdamW it is :measured:`averaging-twice.loss_adamw:.4f`, and :measured:`averaging-twice.loss_adamw_fixed:.4f` when fixed: Adam divides the gradient by its own size, so a constant factor almost cancels, unless something with a different scale is added, such as L2 decay in the gradient.
#
# Change it: predict, then run
# ----------------------------
# In *Adam with L2* set ``weight_decay=0.0``.
# How far from one process is the wrong version then?
#
# Expect: as little as under AdamW: without the decay everything in the gradient has the same wrong factor, and Adam divides by it.
#
# Say it aloud
# ------------
# "DDP already returns the mean, so a division that is left over makes the gradient too small by the world size, on all ranks alike.
# Under SGD that is a smaller learning rate, under Adam almost nothing.
# An optimizer that ignores the scale forgives the fault, and for the same reason hides it."
