"""
Weights drawn after wrapping
============================

Seeding each rank with ``seed + rank`` is good advice, because dropout and augmentation should differ between ranks.
If you then draw weights *after* wrapping the model, to initialize it or to reset a head, each rank draws different ones.
It serves :ref:`museum`.

DDP makes weights equal once, in its constructor; what is drawn afterwards is each rank's own.
Keep in mind: initialize, then wrap.

:Level: core, 10 minutes
:Proves: museum-different-seeds
"""

# %%
# DDP's constructor copies rank 0's weights to all ranks, once; the two versions differ in which side of it they initialize.
# ``replicas_agree`` is a check for any training loop: two numbers, all-reduced.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap

RANKS, STEPS = 3, 60


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def init_weights(layer):
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)


def wrong(net):
    model = DDP(net)
    model.apply(init_weights)
    return model


def right(net):
    net.apply(init_weights)
    return DDP(net)


def replicas_agree(model):
    total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()
    high_and_low = torch.stack([total, -total])
    dist.all_reduce(high_and_low, dist.ReduceOp.MAX)
    return (high_and_low[0] == -high_and_low[1]).item()


def train(wrap, make_optimizer):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    model = wrap(net)
    x = torch.randn(RANKS, 32, 4, generator=torch.Generator().manual_seed(0)).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    optimizer = make_optimizer(model.parameters())
    weights, gradients = [flat_weights(net)], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rank]), y[rank]).backward()
        optimizer.step()
        weights.append(flat_weights(net))
        gradients.append(flat_gradients(net))
    loss = nn.functional.mse_loss(net(x), y).item()
    return weights, gradients, loss, replicas_agree(model)


# %%
# The gap between ranks: in weights, before the first step and after the last one, and in gradients, the largest of all steps.

found = {}
print("       gap in weights   in gradients   loss on all data, by rank   replicas_agree")
for name, wrap in (("wrong", wrong), ("fixed", right)):
    weights, gradients, losses, agree = zip(*launch(train, RANKS, wrap, sgd), strict=True)
    start, *_, end = gaps = [gap(at_step) for at_step in zip(*weights, strict=True)]
    between = max(map(gap, zip(*gradients, strict=True)))
    by_rank = "  ".join(f"{loss:.3f}" for loss in losses)
    print(f"{name}  {start:.3f} → {end:.3f}   {between:12.2g}   {by_rank:25}   {agree[0]}")
    found[name] = end, losses[0]
    assert between == 0
    assert max(gaps) - min(gaps) < 1e-5  # it neither grows nor shrinks
    assert (end == 0) == agree[0] == (name == "fixed")

weights, gradients, *_ = zip(*launch(train, RANKS, wrong, torch.optim.Adam), strict=True)
assert not any(map(gap, zip(*gradients, strict=True)))  # with Adam it is the same
gaps = [gap(at_step) for at_step in zip(*weights, strict=True)]
assert max(gaps) - min(gaps) < 1e-5
assert min(gaps) > 0.1

(wrong_end, wrong_loss), (fixed_end, fixed_loss) = found.values()
record(wrong=wrong_end, fixed=fixed_end, loss=wrong_loss, fixed_loss=fixed_loss)

# %%
# The fix
# -------
# Initialize, then wrap: the constructor's copy makes all ranks start from rank 0's draw.
# A hand-written loop has no such constructor, so broadcast the parameters in it, or use one seed on all ranks until the model is built.
#
# How you would have noticed
# --------------------------
# Call ``replicas_agree(model)`` after the first step, and then every few thousand steps.
# The loss gives no hint: rank 0 ends at :measured:`different-seeds.loss:.3f` instead of :measured:`different-seeds.fixed_loss:.3f`, as it might with a bad learning rate.
# Equal gradients prove nothing: here they agree bit for bit, which is why the weights stay as far apart as they started.
#
# Change it: predict, then run
# ----------------------------
# Seed all ranks alike: ``torch.manual_seed(0)`` in ``train``.
# What does the wrong version give?
#
# Expect: no gap, and the check passes: all ranks draw the same weights, so the wrong order of lines does no harm until a seed differs; the assertion that the check finds it fails.
#
# Say it aloud
# ------------
# "Weights drawn after wrapping differ between ranks if the seeds do, and averaged gradients keep that distance for ever.
# I initialize first and let the constructor copy rank 0's draw.
# One seed for all would do as well, and then dropout and augmentation draw the same on every rank, too."
