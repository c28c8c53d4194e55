"""
The memory ledger
=================

How many bytes does training need on one rank, before a single activation is stored?
This lab predicts them from the number of parameters, lets the ranks train, and adds up what they really hold.
It serves :ref:`idea-memory`.

Training keeps several numbers for each parameter: itself, its gradient, what the optimizer remembers, and under DDP its place in a bucket.
Keep in mind: every rank pays all of it, whatever the number of ranks.

:Level: core, 15 minutes
:Proves: memory-ledger-exact
"""

# %%
# A float32 number takes four bytes, and the ledger counts how many such numbers each parameter needs.
# Adam counts its steps in one more number per parameter *tensor*.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
CASES = {  # optimizer, its options, states per parameter; ranks, gradients as views
    "SGD, one process": (SGD, {}, 0, 1, False),
    "SGD, DDP": (SGD, {}, 0, 2, False),
    "momentum, DDP": (SGD, {"momentum": 0.9}, 1, 2, False),
    "Adam, one process": (ADAM, {}, 2, 1, False),
    "Adam, DDP": (ADAM, {}, 2, 2, False),
    "Adam, DDP, views": (ADAM, {}, 2, 2, True),
}


def predict(parameters, tensors, kind, options, states, ranks, views):
    """Bytes of parameters, gradients, buckets and states; with views, the gradients lie in the buckets."""
    buckets = 4 * parameters * (ranks > 1 and not views)
    state = 4 * parameters * states + 4 * tensors * (kind is ADAM)
    return [4 * parameters, 4 * parameters, buckets, state]


# %%
# The measurement asks each tensor for its storage, and counts a storage once, however many tensors share it.
# A communication hook sees the buckets.


def note_and_average(seen, bucket):
    seen.append(bucket.buffer())
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def worker(kind, options, states, ranks, views):
    net = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 512), nn.Linear(512, 10))
    model, buckets = net.to(device()), []
    if ranks > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=views)
        model.register_comm_hook(buckets, note_and_average)
    parameters = list(net.parameters())
    optimizer = kind(parameters, **options)
    for _ in range(3):  # the second forward rebuilds the buckets
        buckets.clear()
        optimizer.zero_grad()
        model(torch.randn(8, 256, device=device())).square().mean().backward()
        optimizer.step()

    state = [t for entry in optimizer.state.values() for t in entry.values() if t is not None]
    gradients = [p.grad for p in parameters]
    ledger, counted = [], set()
    for tensors in (parameters, gradients, buckets, state):
        storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        ledger.append(sum(storages[at] for at in storages.keys() - counted))
        counted |= storages.keys()
    return ledger, sum(p.numel() for p in parameters), len(parameters)


# %%
# Predicted and measured
# ----------------------
# In bytes, on every rank, and without a tolerance.

per_parameter = {}
print(f"{'bytes of':17} parameters  gradients    buckets     states      total  predicted")
for name, case in CASES.items():
    results = launch(worker, case[-2], *case, up_to=2)
    ledger, parameters, tensors = results[0]
    plan = predict(parameters, tensors, *case)
    columns = *ledger, sum(ledger), sum(plan)
    print(f"{name:17}" + "".join(f"{nbytes:11,}" for nbytes in columns))
    assert all(measured == plan for measured, _, _ in results)
    per_parameter[name] = [round(nbytes / parameters) for nbytes in ledger]
record(parameters=parameters, tensors=tensors)
of_adam = [sum(row) for name, row in per_parameter.items() if name.startswith("Adam")]
assert of_adam == [16, 20, 16]
for name, case in ("alone", "one process"), ("ddp", "DDP"), ("views", "DDP, views"):
    record("bytes", **{name: sum(per_parameter[f"Adam, {case}"])})

# %%
# Seven billion parameters
# ------------------------
# Computed, not measured: the bytes per parameter, times seven billion.
# The steps that Adam counts are left out; they are four bytes per tensor.

gib = 7e9 / 2**30
for name, nbytes in per_parameter.items():
    print(f"{name:17} {sum(nbytes):2} bytes/parameter {sum(nbytes) * gib:6.1f} GiB (computed)")
record("GiB", ddp_7b=sum(per_parameter["Adam, DDP"]) * gib)
record("GiB", views_7b=sum(per_parameter["Adam, DDP, views"]) * gib)

# %%
# A box is one float32 number per parameter.

# drawing
from ddplab.apparatus.plotting import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    describe,
    label,
    name_rows,
    subplots,
)

fig, ax = subplots(height_in=3.6)
describe(fig, "Bytes per parameter in six cases, in boxes of four bytes")
LOOKS = (MUTED, ""), (FAINT, ""), (ACCENT, "////"), (FAINT, "....")
for row, (name, entries) in enumerate(per_parameter.items()):
    left = 0
    gradients = "in buckets" if "views" in name else "gradients"
    labels = "parameters", gradients, "buckets", "state"
    for nbytes, (color, hatch), what in zip(entries, LOOKS, labels, strict=True):
        for _ in range(nbytes // 4):
            ax.barh(row, 4, left=left, color=color, hatch=hatch, edgecolor=INK, lw=0.6)
            box = {"facecolor": FAINT, "edgecolor": "none", "pad": 1.5}
            label(ax, left + 2, row, what, fontsize=8, bbox=box)
            left += 4
    ax.text(left + 0.3, row, f"{left} bytes, {left * gib:.0f} GiB", va="center")
name_rows(ax, list(CASES))
ax.set(xlim=(0, 27), xticks=range(0, 21, 4), xlabel="bytes per parameter (measured)")
top = ax.secondary_xaxis("top", functions=(lambda x: x * gib, lambda x: x / gib))
top.set_xticks(range(0, 141, 20))
top.set_xlabel("GiB for seven billion parameters (computed)")
ax.set_title("DDP adds one number per parameter, and views save it", pad=10)

# %%
# What to notice
# --------------
# - Adam needs :measured:`memory-ledger.alone` per parameter in one process and :measured:`memory-ledger.ddp` under DDP: the buckets are a second copy of the gradients.
# - With ``gradient_as_bucket_view=True`` it is :measured:`memory-ledger.views` again: each ``.grad`` is a view into its bucket.
# - The number of ranks is not in the formula: DDP divides the batch, but nothing in this ledger.
#
# What this does not mean
# -----------------------
# That a rank needs no more than this: activations, temporary tensors of the optimizer, and what the allocator and the communication library keep come on top.
#
# Change it: predict, then run
# ----------------------------
# Pass ``bucket_cap_mb=1`` to ``DistributedDataParallel``.
# Which column of the first table changes?
#
# Expect: none; a smaller cap cuts the same bytes into more buckets, and every prediction still holds to the byte.
#
# Say it aloud
# ------------
# "Per float32 parameter Adam holds four numbers, and DDP a fifth, because a bucket is a second copy of the gradient.
# With gradient_as_bucket_view the gradient lies in the bucket and the fifth is gone.
# In return the gradient is a view, which must not be detached in place."
