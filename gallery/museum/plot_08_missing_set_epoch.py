"""
The same epoch again
====================

A ``DataLoader`` with ``shuffle=True`` draws a new order in every epoch without being asked, and ``DistributedSampler(shuffle=True)`` looks like its twin.
But it draws its order from a seed and an epoch number, and changes neither by itself.
It serves :ref:`museum`.

``DistributedSampler`` draws its order from a seed and an epoch number, so that ranks agree without a message.
Keep in mind: nobody but you changes the number.

:Level: core, 8 minutes
:Proves: museum-missing-set-epoch
"""

# %%
# The two loops differ in one line.

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddplab import device, launch, record

RANKS, SAMPLES, BATCH, EPOCHS = 2, 64, 4, 20


def worker(set_epoch):
    torch.manual_seed(0)  # the same weights and the same data set on every rank
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    x = torch.randn(SAMPLES, 4)
    data = TensorDataset(torch.arange(SAMPLES), x, x.sum(dim=1, keepdim=True).sin())
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    sampler = DistributedSampler(data, shuffle=True)
    loader, seen, losses = DataLoader(data, BATCH, sampler=sampler), [], []
    for epoch in range(EPOCHS):
        if set_epoch:
            sampler.set_epoch(epoch)  # the line that is missing
        for numbers, x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(device())), y.to(device()))
            loss.backward()
            optimizer.step()
            seen.append(numbers)
            losses.append(loss.item())
    order = torch.stack(seen).view(EPOCHS, -1, BATCH)  # sample numbers by epoch and batch
    return order, sum(losses[-len(loader) :]) / len(loader)


# %%
# The table shows how much of an epoch repeats the previous one, how much of the data a rank ever sees, and with how many others a sample ever shares a global batch.


def habits(name, set_epoch):
    (order, loss), (other, _) = launch(worker, RANKS, set_epoch)
    print(f"{name}: rank 0's first batch, by epoch", *order[:3, 0].tolist(), "…")
    repeated = (order[1:] == order[:-1]).all(dim=2).double().mean().item()
    batches = torch.cat([order, other], dim=2).flatten(0, 1)  # of both ranks
    met = batches[(batches == 0).any(dim=1)].unique().numel() - 1
    orders = [len(of_rank.unique(dim=0)) for of_rank in (order, other)]
    return repeated, order.unique().numel() / SAMPLES, met, loss, orders


wrong, fixed = habits("wrong", set_epoch=False), habits("fixed", set_epoch=True)
print(f"{'':31} wrong  fixed")
print(f"{'batches as in the last epoch':31} {wrong[0]:5.0%}  {fixed[0]:5.0%}")
print(f"{'data that rank 0 ever sees':31} {wrong[1]:5.0%}  {fixed[1]:5.0%}")
print(f"{'samples that sample 0 ever met':31} {wrong[2]:5}  {fixed[2]:5}")
print(f"{'loss in the last epoch, rank 0':31} {wrong[3]:5.3f}  {fixed[3]:5.3f}")
assert wrong[:3] == (1, 1 / RANKS, RANKS * BATCH - 1)
assert fixed[:2] == (0, 1)
assert wrong[4] == [1] * RANKS  # different epochs, on each rank
assert fixed[4] == [EPOCHS] * RANKS
record("%", wrong=100 * wrong[0], fixed=100 * fixed[0], share=100 * wrong[1])
record(met=wrong[2], fixed_met=fixed[2], loss=wrong[3], fixed_loss=fixed[3])

# %%
# The fix
# -------
# Call ``sampler.set_epoch(epoch)`` at the start of every epoch, before the loader is iterated.
#
# How you would have noticed
# --------------------------
# Keep the sample numbers of each epoch's first batch, and assert that they differ from the last epoch's.
# The loss curve does not show it: here it ends at :measured:`missing-set-epoch.loss:.3f` without the call and at :measured:`missing-set-epoch.fixed_loss:.3f` with it.
#
# Change it: predict, then run
# ----------------------------
# Replace ``sampler.set_epoch(epoch)`` by ``sampler.set_epoch(epoch % 2)``.
# Does the check below, that first batches differ from the last epoch's, find it?
#
# Expect: no, no batch repeats from one epoch to the next; yet rank 0 never sees a part of the data, which the second row shows, and the assertion on it fails.
#
# Say it aloud
# ------------
# "Without set_epoch every epoch has the same order, each rank keeps the same share, and the loss curve does not tell.
# I call it before the loader is iterated.
# A seed and a number need no communication at all; the price is that every rank has to keep the number right."
