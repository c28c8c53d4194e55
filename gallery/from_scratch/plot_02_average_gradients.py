"""
Average the gradients
=====================

What turns three trainings into one?
Stage 3 of the class adds the averaging, as a method that you call after ``backward()``: one all-reduce per parameter.
It serves :ref:`from-scratch-average`.

Data-parallel training is one more line: after the backward, each gradient becomes the mean over all ranks.
Keep in mind: equal gradients in equal optimizers keep equal weights equal, bit for bit.

:Level: core, 12 minutes
"""

# %%
# The training loop is ordinary except for a single line, which the first run leaves out.
# Rank r trains on rows 16 r to 16 r + 15 of a data set that every rank can generate.

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.torch_private import flight_records
from ddplab.scratch.naive import DDP

RANKS, STEPS, SHARD = 3, 20, 16


def data():
    x = torch.randn(RANKS * SHARD, 4, generator=torch.Generator().manual_seed(1))
    return x.to(device()), x.sum(dim=1, keepdim=True).sin().to(device())


def train(sync):
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (whole.split(SHARD)[dist.get_rank()] for whole in data())
    before = len(flight_records())
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if sync:
            model.sync_gradients()
        optimizer.step()
    return flat_weights(net), len(flight_records()) - before


drifted, _ = zip(*launch(train, RANKS, False), strict=True)
together, collectives = zip(*launch(train, RANKS, True), strict=True)
print(f"after {STEPS} steps on {RANKS} ranks   gap between ranks")
print(f"without sync_gradients()     {gap(drifted):.4f}")
print(f"with sync_gradients()        {gap(together):g}")
assert gap(drifted) > 0
assert gap(together) == 0
record(without_sync=gap(drifted), with_sync=gap(together))

# %%
# Is it the right gradient?
# -------------------------
# It should be the gradient of the whole batch, which any single process can compute.


def one_gradient():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device())
    x, y = data()
    nn.functional.mse_loss(net(x), y).backward()
    whole_batch = flat_gradients(net)
    net.zero_grad()
    model, shard = DDP(net), dist.get_rank()
    nn.functional.mse_loss(model(x.split(SHARD)[shard]), y.split(SHARD)[shard]).backward()
    own_shard = flat_gradients(net)
    model.sync_gradients()
    return whole_batch, own_shard, flat_gradients(net)


whole_batch, own_shard, averaged = launch(one_gradient, RANKS)[1]
print(f"{'rank 1':30} furthest from the whole batch's gradient")
print(f"{'gradient of its own shard':30} {gap([own_shard, whole_batch]):.1e}")
print(f"{'after sync_gradients()':30} {gap([averaged, whole_batch]):.1e}")
print(f"{'largest element':30} {whole_batch.abs().max():.1e}")
torch.testing.assert_close(averaged, whole_batch)
assert gap([own_shard, whole_batch]) > 1000 * gap([averaged, whole_batch])

# %%
# What does it cost?
# ------------------
# The flight recorder counts: as many all-reduces per step as the model has parameter tensors.

per_step = collectives[0] / STEPS
print(f"{per_step:g} all-reduces per step, for 4 parameter tensors")
assert per_step == 4
record("all-reduces", per_step=int(per_step))

# %%
# What to notice
# --------------
# - With the one line the gap is :measured:`average-gradients.with_sync`, bit for bit; without it, :measured:`average-gradients.without_sync:.2f` after 20 steps.
# - The replicas not only agree, they agree on the right thing: the gradient of the whole batch, within rounding.
# - ``step()`` sent nothing: the count is that of the calls in ``sync_gradients``.
#
# What this does not mean
# -----------------------
# That this is DDP.
# If you forget the line, you train three models without an error; and there are as many messages as tensors, sent only when backward is over.
#
# Change it: predict, then run
# ----------------------------
# In ``train`` call ``model.sync_gradients()`` twice.
# What happens to the gap, and what to the number of all-reduces?
#
# Expect: the gap stays zero, because the mean of equal numbers is that number, and the all-reduces double; the assertion on their number fails.
#
# Say it aloud
# ------------
# "After the backward I all-reduce every gradient and divide by the world size; then each rank takes the same step.
# No weight is ever sent.
# It is one line that is easy to read and easy to forget, and it sends a message per tensor while nothing else computes."
