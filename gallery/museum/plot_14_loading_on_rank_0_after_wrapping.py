"""
Loading on rank 0 after wrapping
================================

Rank 0 wrote the checkpoint, so rank 0 reads it, because DDP copies rank 0's weights to all ranks.
But it does so only in its constructor.
It serves :ref:`museum`.

Rank 0's weights reach the other ranks in the constructor and at no other time.
Keep in mind: load, then wrap, and the rank that loads is rank 0 or all.

:Level: core, 10 minutes
:Proves: museum-loading-on-rank-0-after-wrapping
"""

# %%
# A first run leaves a checkpoint; a second one resumes from it, and its two versions differ in when rank 0 loads.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights, gap

RANKS, STEPS = 2, 100


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(device())


def train(model, steps):
    """Return the loss on the data of all ranks, before the first step and after the last."""
    rank, generator = dist.get_rank(), torch.Generator().manual_seed(0)
    x = torch.randn(RANKS, 64, 4, generator=generator).to(device())
    y = x.sum(dim=2, keepdim=True).sin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    before = nn.functional.mse_loss(model.module(x), y).item()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rank]), y[rank]).backward()
        optimizer.step()
    return before, nn.functional.mse_loss(model.module(x), y).item()


def first_run():
    model = DDP(build(seed=1))
    train(model, 300)
    return {name: tensor.cpu() for name, tensor in model.module.state_dict().items()}


def wrong(net, checkpoint):
    model = DDP(net)
    if dist.get_rank() == 0:
        model.module.load_state_dict(checkpoint)
    return model


def right(net, checkpoint):
    if dist.get_rank() == 0:
        net.load_state_dict(checkpoint)
    return DDP(net)


def resume(wrap, checkpoint):
    model = wrap(build(seed=2), checkpoint)
    start = flat_weights(model)
    losses = train(model, STEPS)
    return start, flat_weights(model), losses


# %%
# The gap in weights after loading and at the end, and the loss on all data at the same two moments.

checkpoint = launch(first_run, RANKS)[0]
found, starts = {}, {}
print("       gap in weights   loss of rank 0     loss of rank 1")
for name, wrap in (("wrong", wrong), ("fixed", right)):
    start, end, losses = zip(*launch(resume, RANKS, wrap, checkpoint), strict=True)
    shown = "   ".join(f"{before:.4f} → {after:.4f}" for before, after in losses)
    print(f"{name}  {gap(start):.3f} → {gap(end):.3f}   {shown}")
    found[name], starts[name] = (gap(end), *losses[0]), torch.stack(start)
    assert abs(gap(end) - gap(start)) < 1e-4

(wrong_gap, before, after), (fixed_gap, _, fixed_after) = found.values()
assert wrong_gap > 0.1
assert fixed_gap == 0
assert after > before > fixed_after  # rank 0 unlearns
loaded = torch.cat([tensor.flatten() for tensor in checkpoint.values()])
assert torch.equal(starts["wrong"], torch.stack([loaded, flat_weights(build(seed=2))]))
assert torch.equal(starts["fixed"], torch.stack([loaded, loaded]))
record(wrong=wrong_gap, fixed=fixed_gap)
record(before=before, after=after, fixed_after=fixed_after)

# %%
# The fix
# -------
# Load before you wrap, or load on every rank.
# The constructor copies parameters and buffers, but not the optimizer's state: load that on every rank in any case.
#
# How you would have noticed
# --------------------------
# Compare a checksum of the weights over ranks right after the resume, with ``replicas_agree`` of :doc:`/labs/museum/plot_09_different_seeds`.
# Rank 0's loss starts where the first run ended, so the resume looks good; then it rises, from :measured:`loading-on-rank-0-after-wrapping.before:.4f` to :measured:`loading-on-rank-0-after-wrapping.after:.4f`, because half of each gradient comes from a replica that never loaded.
#
# Change it: predict, then run
# ----------------------------
# In ``right`` let rank 1 load in place of rank 0.
# What are the gap and the loss after wrapping?
#
# Expect: no gap, and the loss of a model that was never trained: the constructor copies rank 0's fresh weights over what rank 1 had read; the assertion on the losses fails.
#
# Say it aloud
# ------------
# "Loading on rank 0 after wrapping changes one replica only, and averaging then mixes two models.
# I load before wrapping, or on every rank.
# One reader saves the file system from many; every rank reading needs no broadcast, and also brings each its optimizer state."
