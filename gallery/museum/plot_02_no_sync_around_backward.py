"""
A no_sync around the backward only
==================================

When you accumulate gradients over micro-batches, you know that the all-reduce happens in ``backward()``.
So you put ``no_sync`` around ``backward()``, leave the forward outside, and get the right numbers.
It serves :ref:`museum`.

The decision to reduce is made when the forward ends, so a context around the backward comes too late.
Keep in mind: this fault costs messages and changes no number.

:Level: core, 8 minutes
:Proves: museum-no-sync-around-backward
"""

# %%
# The two functions differ in one line: where the forward is.

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, gap

MICRO = 4


def no_sync_if(quiet, model):
    return model.no_sync() if quiet else contextlib.nullcontext()


def wrong(model, batches):
    for i, x in enumerate(batches):
        loss = model(x).square().mean() / len(batches)
        with no_sync_if(i + 1 < len(batches), model):
            loss.backward()


def right(model, batches):
    for i, x in enumerate(batches):
        with no_sync_if(i + 1 < len(batches), model):
            loss = model(x).square().mean() / len(batches)
            loss.backward()


def worker(accumulate):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device()))
    torch.manual_seed(1 + dist.get_rank())
    batches = [torch.randn(4, 8).to(device()) for _ in range(MICRO)]
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        accumulate(model, batches)
    issued = sum(e.count for e in seen.key_averages() if e.key == "c10d::allreduce_")
    return flat_gradients(model), issued


# %%
# The model is one bucket, so one all-reduce per optimizer step is the right count.

issued, gradients = {}, {}
print(f"{MICRO} micro-batches   all-reduces per step   gap between ranks")
for name, accumulate in (("wrong", wrong), ("fixed", right)):
    (first, issued[name]), (second, others) = launch(worker, 2, accumulate, quiet=True)
    gradients[name] = first
    between = gap([first, second])
    print(f"{name:15}   {issued[name]:20}   {between:17.3g}")
    assert between == 0
    assert others == issued[name]
apart = gap(list(gradients.values()))
print(f"largest difference between the two gradients: {apart:.0e}")

assert issued == {"wrong": MICRO, "fixed": 1}
assert apart < 1e-6
record("all-reduces", wrong=issued["wrong"], fixed=issued["fixed"])
record(apart=apart)

# %%
# The fix
# -------
# Put the forward inside as well.
# ``no_sync`` sets a flag that DDP reads at the end of the *forward*; when ``backward()`` runs, DDP has already decided that gradients are reduced.
#
# How you would have noticed
# --------------------------
# Only by counting.
# The gradients are right, so the loss curve is, and so is every comparison between ranks.
# Profile one optimizer step and count ``c10d::allreduce_``: it should be the number of buckets, however many micro-batches there are.
#
# Change it: predict, then run
# ----------------------------
# In ``wrong`` put every backward under the context: ``no_sync_if(True, model)``.
# How many all-reduces does a step make, and do the ranks still agree?
#
# Expect: as many as before, one per micro-batch, and they agree: around the backward the context has no effect at all.
#
# Say it aloud
# ------------
# "no_sync belongs around the forward as well, because DDP reads its flag there.
# Around the backward alone everything is right and nothing is saved, so only a count of all-reduces finds it.
# Counting collectives in a test takes a profiled step, and watches a cost that no loss curve shows."
