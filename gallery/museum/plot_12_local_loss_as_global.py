"""
A local loss taken for the global one
=====================================

``loss.item()`` looks like the loss of the step, and with one process it was.
Under DDP it is that of this rank's samples, so each rank decides separately on what depends on it, such as a learning rate or an early stop.
It serves :ref:`museum`.

A rank's loss is a number of this rank; a decision that all have to make alike needs a number that all share.
Keep in mind: reduce first, then decide.

:Level: core, 10 minutes
:Proves: museum-local-loss-as-global
"""

# %%
# The scheduler halves the learning rate when its metric has not improved for some epochs; the two versions differ in the metric.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap

RANKS, EPOCHS, SAMPLES, BATCH = 3, 40, 64, 16


def wrong(loss):
    return loss


def right(loss):
    dist.all_reduce(loss)
    return loss / RANKS


def train(metric_of):
    torch.manual_seed(0)  # the same weights and the same data on every rank
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    data = torch.randn(RANKS, SAMPLES, 4)
    target = data.sum(dim=2, keepdim=True).sin() + 0.3 * torch.randn(RANKS, SAMPLES, 1)
    rank = dist.get_rank()
    x, y = data[rank].to(device()), target[rank].to(device())
    order = torch.Generator().manual_seed(rank)

    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler, history = ReduceLROnPlateau(optimizer, factor=0.5, patience=2), []
    for _ in range(EPOCHS):
        loss_of_epoch = torch.zeros((), device=device())
        for batch in torch.randperm(SAMPLES, generator=order).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            loss_of_epoch += loss.detach() * BATCH / SAMPLES
        metric = metric_of(loss_of_epoch)
        scheduler.step(metric)
        history.append((metric.item(), optimizer.param_groups[0]["lr"]))
    return history, flat_weights(net)


# %%
# The shards are drawn from one distribution, so the ranks' losses differ only by chance.

found = {}
for name, metric_of in ("wrong", wrong), ("fixed", right):
    histories, weights = zip(*launch(train, RANKS, metric_of), strict=True)
    print(f"{name}: gap in weights at the end {gap(weights):.3f}")
    for rank, history in enumerate(histories):
        losses, rates = zip(*history, strict=True)
        cut = next(epoch for epoch, rate in enumerate(rates) if rate < rates[0])
        shown = f"rate cut first in epoch {cut}, {rates[-1]:.4f} at the end"
        print(f"  rank {rank}: metric {losses[-1]:.3f}, {shown}")
    found[name] = gap(weights), [history[-1] for history in histories]  # loss, rate

(wrong_gap, local), (fixed_gap, reduced) = found.values()
assert len({rate for _, rate in local}) > 1
assert wrong_gap > 0.01
assert len(set(reduced)) == 1
assert fixed_gap == 0
record(wrong=wrong_gap, fixed=fixed_gap, lowest=min(local)[0], highest=max(local)[0])

# %%
# The fix
# -------
# All-reduce the loss before anything depends on it: one element per decision, not per step.
# An early stop needs the same, or the remaining ranks wait for the one that left.
#
# How you would have noticed
# --------------------------
# Assert now and then that the learning rate is the same on all ranks, or log the loss of each: here they end between :measured:`local-loss-as-global.lowest:.3f` and :measured:`local-loss-as-global.highest:.3f`.
# Nothing in rank 0's own curve shows that the others are different.
#
# Change it: predict, then run
# ----------------------------
# In ``right`` return the sum and not the mean: ``return loss``.
# Do the ranks still cut their rates in the same epochs?
#
# Expect: yes, and in the same epochs as with the mean: the metric is larger by the number of ranks, and the scheduler compares by ratio.
#
# Say it aloud
# ------------
# "Each rank's loss is a little different, so a scheduler or an early stop that reads it acts at different times on different ranks.
# I all-reduce the number before anything depends on it.
# That costs a small collective per decision and a wait for the slowest rank; a decision on rank 0 that is broadcast costs the same, and sees less data."
