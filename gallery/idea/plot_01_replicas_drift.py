"""
Replicas drift
==============

What keeps copies of a model equal when each trains on its own data?
Four ranks start with equal weights and train, once by themselves and once with averaged gradients.
It serves :ref:`idea-split` and :ref:`idea-replicated`.

A replica is a function of where it started and of every gradient that was applied to it since.
Keep in mind: equal start and equal gradients give equal weights; whatever breaks one of the two is never repaired.

:Level: core, 12 minutes
:Proves: replicas-drift-without-sync averaged-gradients-keep-replicas-equal
"""

# %%
# The averaging is the three lines under ``if average``: ``all_reduce`` leaves the sum over all ranks on each of them, in place, and a division makes it the mean.
# With ``shards=False`` every rank trains on rank 0's shard, as a control.

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record

RANKS, STEPS, SHARD = 4, 60, 16


def flat(model):
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


def worker(shards, average):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and the same data set on every rank
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(ranks, SHARD, 4).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    shard = rank if shards else 0

    weights = [flat(model)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[shard]), y[shard]).backward()
        if average:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= ranks
        optimizer.step()
        weights.append(flat(model))
    return torch.stack(weights), nn.functional.mse_loss(model(x), y).item()


# %%
# The gap is the largest difference between any two ranks, over all weights.
# Zero means equal bit for bit.

runs = {
    "own shard, no sync": launch(worker, RANKS, True, False),
    "own shard, averaged": launch(worker, RANKS, True, True),
    "same data, no sync": launch(worker, RANKS, False, False),
}
gaps = {}
print(f"{'gap between ranks after':25} 1 step  {STEPS} steps   loss on all data, by rank")
for name, results in runs.items():
    low, high = torch.stack([weights for weights, _ in results]).aminmax(dim=0)
    gaps[name] = (high - low).amax(dim=1)
    losses = "  ".join(f"{loss:.3f}" for _, loss in results)
    print(f"{name:25} {gaps[name][1]:6.4f}  {gaps[name][-1]:8.4f}   {losses}")

drift, averaged, same_data = gaps.values()
assert drift[0] == 0
by_step = torch.stack([weights for weights, _ in runs["own shard, no sync"]], dim=1)
assert all(len(at_step.unique(dim=0)) == RANKS for at_step in by_step[1:])  # no two are equal
assert not averaged.any()
assert not same_data.any()
record(after_one_step=drift[1].item(), without_sync=drift[-1].item())
record(averaged=averaged[-1].item(), same_data=same_data[-1].item())
alone = [loss for _, loss in runs["own shard, no sync"]]
together = runs["own shard, averaged"][0][1]
assert together < min(alone)
record(loss_averaged=together, loss_alone_best=min(alone))

# %%
# On the right is the weight that ends furthest apart, as each rank holds it.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, RANK_COLORS, describe, subplots

fig, (left, right) = subplots(1, 2, height_in=3.2)
describe(fig, "The gap between replicas over the steps, and the paths of one of their weights")
steps = range(STEPS + 1)
left.plot(steps, drift, "--", color=INK)
left.plot(steps, averaged, color=ACCENT)
left.text(STEPS, drift[-1] * 1.02, "no sync", ha="right", va="bottom")
left.text(STEPS, 0.03, "averaged: 0", ha="right", va="bottom", color=ACCENT, weight="bold")
left.set(xlabel="training step", ylabel="gap between replicas", ylim=(None, drift.max() * 1.1))
left.set_title("Without a sync the gap grows")

paths = torch.stack([weights for weights, _ in runs["own shard, no sync"]])
widest = (paths.amax(dim=0) - paths.amin(dim=0))[-1].argmax()
for rank, path in enumerate(paths[:, :, widest]):
    right.plot(steps, path, "--", color=RANK_COLORS[rank], lw=1.4)
    right.text(STEPS + 1, path[-1], f"rank {rank}", color=RANK_COLORS[rank], va="center")
path = runs["own shard, averaged"][0][0][:, widest]
right.plot(steps, path, color=ACCENT, lw=2.4)
right.text(STEPS + 1, path[-1], "averaged", color=ACCENT, va="center", weight="bold")
right.set(xlabel="training step", ylabel="value of the weight", xlim=(0, STEPS * 1.35))
right.set_xticks(range(0, STEPS + 1, 20))
right.set_title("One weight takes four paths")

# %%
# What to notice
# --------------
# - One step without a sync is enough to drift, and nothing pulls the replicas together again: after the last step they are :measured:`replicas-drift.without_sync:.2f` apart.
# - With averaged gradients the gap is exactly :measured:`replicas-drift.averaged`, not just small: equal weights, minus an equal step, are equal weights.
#   No weight was ever sent.
# - The data drives them apart: four ranks that see the same samples stay equal without any communication.
# - Unsynchronized replicas are four models, each trained on a quarter of the data.
#   On all data the best of them has a loss of :measured:`replicas-drift.loss_alone_best:.3f`, the averaged one :measured:`replicas-drift.loss_averaged:.3f`.
#
# What this does not mean
# -----------------------
# That this loop is as fast as DDP: it sends one message per parameter tensor, and only once backward is over.
#
# Change it: predict, then run
# ----------------------------
# Replace ``torch.manual_seed(0)`` by ``torch.manual_seed(rank)``, so that each rank starts with weights of its own.
# What does the gap of *own shard, averaged* do over the steps: close, stay, or grow?
#
# Expect: it stays what it was at the start, because averaged gradients move all replicas alike and pull none of them together; the assertion on the first gap fails after the table.
#
# Say it aloud
# ------------
# "Replicas stay equal because they start equal and apply the same averaged gradient; nobody ever sends a weight.
# That is cheap, one all-reduce of the gradients per step, and nothing checks it: a replica that once differs stays different."
