"""
Memory of gradient views, through a step
========================================

What does ``gradient_as_bucket_view=True`` save, at which moment, and what undoes it?
This lab predicts the bytes of gradients and buckets at every moment of a step, counts the storages that exist, and compares to the byte.
It serves :ref:`performance-memory`; :doc:`/labs/idea/plot_03_memory_ledger` has the whole ledger of a rank, between steps.

By default each gradient exists twice, in ``.grad`` and in its bucket; with views both are one storage.
Count storages, not tensors: with views only the gradient just computed has a second one.

:Level: core, 15 minutes
:Proves: perf-views-peak perf-views-overwrite
"""

# %%
# The count
# ---------
# A storage is counted once, however many tensors share it: that distinguishes a view from a copy.
# The moments: before the backward, each gradient as it becomes ready, and the return of ``backward()``.
# A communication hook shows the buckets; they are collected from the second step on, when they no longer change.

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.apparatus.storages import storage_bytes

WIDTHS, STEPS = [256, 1024, 512, 512, 64], 4
CASES = {  # gradients as views, set_to_none of zero_grad
    "default": (False, True),
    "views": (True, True),
    "views, kept": (True, False),
    "default, kept": (False, False),
}


def worker(views, set_to_none):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    model = nn.Sequential(*layers).to(device())
    ddp = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters, buckets, moments = list(model.parameters()), {}, []

    def seen(_, bucket):
        buckets[bucket.index()] = bucket.buffer()
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def note(name, nbytes=0):
        held = storage_bytes([*buckets.values(), *(p.grad for p in parameters)])
        moments.append((name, nbytes, held))

    ddp.register_comm_hook(None, seen)
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda p: note("ready", p.nbytes))
    for step in range(STEPS):
        if step <= 1:
            buckets.clear()
        loss = ddp(torch.randn(8, WIDTHS[0], device=device())).square().mean()
        if step >= 2:
            moments.clear()
            note("before")
        loss.backward()
        note("returned")
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return moments


# %%
# The prediction
# --------------
# All buckets together hold :math:`G` bytes, one gradient each.
# By default a gradient is a tensor of its own, there from the moment it is ready until ``zero_grad`` drops it.
# With views it also starts as a tensor of its own; then DDP copies it into its bucket, drops it, and makes ``.grad`` a view.
# So ``.grad`` is one extra tensor at a time, unless ``set_to_none=False`` keeps the views and autograd adds into the bucket.


def predict(moments, views, set_to_none):
    total = sum(nbytes for _, nbytes, _ in moments)
    fresh, expected = 0, []
    for name, nbytes, _ in moments:
        fresh += nbytes
        if not set_to_none:
            extra = 0 if views else total  # the gradients of the last step, set to zero
        elif views:
            extra = nbytes  # this one, until it is copied into the bucket
        else:
            extra = fresh  # this one and all before it
        expected.append(total + (0 if name == "returned" and views else extra))
    return expected


measured = {}
print("bytes of gradients   before the                   backward     predicted")
print("and buckets            backward    at most        returns      to the byte")
for name, case in CASES.items():
    ranks = launch(worker, 2, *case, quiet=True)
    for moments in ranks:
        assert predict(moments, *case) == [nbytes for _, _, nbytes in moments]
    measured[name] = moments = [nbytes for _, _, nbytes in ranks[0]]
    print(f"{name:15} {moments[0]:15,} {max(moments):10,} {moments[-1]:14,}      yes")
gradients = sum(nbytes for _, nbytes, _ in ranks[0])
largest = max(nbytes for _, nbytes, _ in ranks[0])
record("MiB", gradients=gradients / 2**20, largest=largest / 2**20)
record("MiB", **{f"most_{n}": max(measured[n]) / 2**20 for n in ("default", "views")})
assert max(measured["default"]) - measured["views"][-1] == gradients
assert max(measured["views"]) == gradients + largest

# %%
# Each line is one case; the model has two parameters per layer, so eight gradients.

# drawing
fig, ax = subplots(height_in=3.2)
describe(fig, "Bytes of gradients and buckets through one backward, in four cases")
looks = (INK, "-", "o"), (ACCENT, "-", "s"), (ACCENT, ":", "^"), (MUTED, "--", "v")
for (name, moments), (color, line, mark) in zip(measured.items(), looks, strict=True):
    mib = [nbytes / 2**20 for nbytes in moments]
    ax.plot(range(len(mib)), mib, line, marker=mark, ms=4, color=color)
    above = 0.15 if name in ("default, kept", "views") else -0.45
    ax.text(len(mib) - 0.9, mib[-1] + above, name, color=color)
texts = ["before", *(f"ready {i}" for i in range(1, len(mib) - 1)), "returned"]
ax.set_xticks(range(len(mib)), texts, rotation=30)
top = 1.1 * ax.get_ylim()[1]  # room for a name above the highest line
ax.set(xlim=(-0.3, len(mib) + 1.2), ylim=(0, top), ylabel="MiB")
ax.set_title("Views stay near one copy of the gradients, the default grows to two")

# %%
# A view that you keep is overwritten
# -----------------------------------
# A tensor that was ``.grad`` in the last step still shares the bucket's storage.


def keep_one(views):
    ddp = DistributedDataParallel(nn.Linear(2, 1).to(device()), gradient_as_bucket_view=views)
    kept = []
    for scale in (1.0, 1.0, 3.0):  # the second step has the buckets that stay
        ddp.zero_grad()
        ddp(torch.full((1, 2), scale, device=device())).sum().backward()
        kept.append(ddp.module.weight.grad)  # wrong with views: keep a clone
    return kept[1].tolist(), kept[2].tolist()


for views in (False, True):
    (second, third), _ = launch(keep_one, 2, views, quiet=True)
    values = f"kept from step 2, where it was 1: {second[0][0]}   step 3: {third[0][0]}"
    print(f"views {views!s:5}  {values}")
    assert (second == third) == views

# %%
# What to notice
# --------------
#
# - The gradients take :measured:`memory-of-views.gradients:.2f`; gradients and buckets together grow to :measured:`memory-of-views.most_default:.2f` by default and to :measured:`memory-of-views.most_views:.2f` with views.
# - Views save one copy of all gradients, but the peak falls by less: the largest fresh gradient (:measured:`memory-of-views.largest:.2f`) exists twice.
# - With ``set_to_none=False`` views never leave the bucket; without views that is the worst case, with both copies at all times.
#
# What this does not mean
# -----------------------
#
# That the peak of the *step* falls by the same amount: at the start of a backward the activations are still there, at its end the gradients, and which is higher depends on your batch.
# The operator that computes a gradient writes it to a tensor of its own in every case; it is counted here only while ``.grad`` holds it.
#
# Change it: predict, then run
# ----------------------------
# Set ``WIDTHS`` to ``[256, 4096, 64]``: one weight has most of the bytes.
# How much do views lower the peak?
#
# Expect: little, because that weight's gradient exists twice; between steps they still save a whole copy.
#
# Say it aloud
# ------------
# "Views save one copy of all gradients between steps, and less at the peak.
# A tensor that was ``.grad`` is overwritten by the next step.
# So they buy memory, and take away gradients that you could keep without a clone."
