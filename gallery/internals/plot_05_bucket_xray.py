"""
Buckets under the X-ray
=======================

Which gradients travel together, and can you predict that before you run?
This lab predicts DDP's buckets from the sizes of the parameters, and then reads them back.
It serves :ref:`internals-buckets` and :ref:`internals-rebuild`.

A bucket is a list of gradients that travel in one all-reduce; it closes when it has reached its cap.
Keep in mind: sizes and order decide everything, so the buckets can be computed before the run.

:Level: core, 20 minutes
:Proves: buckets-greedy first-backward-one-bucket rebuild-second-forward
"""

import torch
from matplotlib.colors import to_rgba
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign
from ddplab.runtime.torch_private import ddp_facts

# %%
# Three models
# ------------
# A few large tensors, many small ones, and blocks whose modules are not registered in the order in which they are used.
# ``nn.TransformerEncoderLayer`` registers both of its norms last, but uses one of them in the middle.


def mlp():
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)]), (4, 512)


def convnet():
    layers = [(nn.Conv2d(96, 96, 3), nn.BatchNorm2d(96), nn.ReLU()) for _ in range(20)]
    return nn.Sequential(*[nn.Sequential(*block) for block in layers]), (2, 96, 42, 42)


def transformer():
    layer = nn.TransformerEncoderLayer(256, 4, 768, batch_first=True)
    return nn.TransformerEncoder(layer, 6), (2, 8, 256)


# %%
# Read the buckets
# ----------------
# A communication hook sees every bucket as it is launched, with the parameters in it.
# This one notes their positions in the order of registration, and reduces as DDP would.
# Hooks on the parameters note the order in which gradients become ready.


def worker(build, bucket_cap_mb):
    torch.manual_seed(0)
    model, shape = build()
    ddp = DistributedDataParallel(model.to(device()), bucket_cap_mb=bucket_cap_mb)
    place = {parameter: i for i, parameter in enumerate(ddp.parameters())}
    ready, buckets = [], []

    def note_bucket(_, bucket):
        buckets[-1].append([place[parameter] for parameter in bucket.parameters()])
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, note_bucket)
    for parameter in place:
        parameter.register_post_accumulate_grad_hook(lambda p: ready[-1].append(place[p]))
    for _ in range(3):
        ready.append([])
        buckets.append([])
        ddp(torch.randn(shape, device=device())).square().mean().backward()
    return [parameter.nbytes for parameter in place], ready, buckets, ddp_facts(ddp)


# %%
# Predict, then compare
# ---------------------
# At construction there is one bucket, in order of registration.
# From the second iteration on, buckets are filled in the order of the first backward.
# ``assign`` applies the rule: a bucket closes as soon as it reaches its cap.


def predict(sizes, order, bucket_cap_mb):
    cap = DEFAULT_CAP_BYTES if bucket_cap_mb is None else int(bucket_cap_mb * MIB)
    first_cap = DEFAULT_FIRST_CAP_BYTES if bucket_cap_mb is None else cap
    buckets = assign([sizes[i] for i in order], cap, first_cap)
    return [[order[position] for position in bucket] for bucket in buckets]


print("model        tensors   MiB   cap in MiB   buckets   MiB in each, as launched")
for build in (mlp, convnet, transformer):
    for cap in (None, 1, 4):
        for sizes, ready, (first, *later), _ in launch(worker, 2, build, cap, quiet=True):
            assert first == [list(range(len(sizes)))]
            assert later == [predict(sizes, ready[0], cap)] * 2
        mib = [sum(sizes[i] for i in bucket) / MIB for bucket in later[0]]
        model = f"{build.__name__:11}{len(sizes):9}{sum(mib):6.1f}"
        each = " ".join(f"{size:.3g}" for size in mib[:6]) + " …" * (len(mib) > 6)
        print(f"{model}{cap or 'default':>13}{len(mib):10}   {each}")

# %%
# Look at one
# -----------
# The transformer again, with a cap of 4 MiB: each row is a bucket, filled from the left, and each box is a tensor.
# The number in a box, and its shade, is the layer that the tensor belongs to.

CAP = 4
sizes, _, (first, second, _), log = launch(worker, 2, transformer, CAP, quiet=True)[0]
in_each = [sum(sizes[i] for i in bucket) for bucket in second]
record(unit="bucket", before=len(first))
record(unit="buckets", after=len(second))
record(unit="MiB", model=sum(sizes) / MIB, largest=max(in_each) / MIB)

# %%
# Above, the one bucket of the first iteration; below, those of the later ones, in the order in which they leave.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, label, subplots

layers = [int(name.split(".")[1]) for name, _ in transformer()[0].named_parameters()]


def draw(ax, buckets):
    for row, bucket in enumerate(buckets):
        filled = 0.0
        for i in bucket:
            box, shade = sizes[i] / MIB, to_rgba(ACCENT, 0.08 + 0.1 * layers[i])
            ax.barh(row, box, 0.7, filled, color=shade, edgecolor=INK, lw=0.5)
            if box > 0.4:  # the others are too thin for a number
                label(ax, filled + 0.06, row, layers[i], ha="left")
            filled += box
    ax.set(ylabel="bucket", yticks=range(len(buckets)), ylim=(len(buckets) - 0.4, -0.6))


fig, axes = subplots(2, 1, height_in=3.4, sharex=True, height_ratios=[1, len(second)])
draw(axes[0], first)
draw(axes[1], second)
axes[0].set_title("Iteration 0: one bucket, in order of registration")
axes[1].set_title("Later: in the order in which gradients become ready")
axes[1].axvline(CAP, color=INK, ls="--", lw=1)
axes[1].text(CAP + 0.5, len(second) - 1, f"cap: {CAP} MiB", va="center")
axes[1].set(xlabel="bytes in the bucket (MiB)")

# %%
# DDP writes the same numbers into its log: the sizes at construction, and those after the rebuild.

for name in ("bucket_cap_bytes", "bucket_sizes", "rebuilt_bucket_sizes"):
    print(f"{name:22}{log[name]}")
assert log["rebuilt_bucket_sizes"] == ", ".join(map(str, in_each))

# %%
# What to notice
# --------------
# * Before the rebuild (:measured:`bucket-xray.before`) there is nothing to overlap.
#   The rebuild at the second forward makes :measured:`bucket-xray.after`.
# * A bucket closes *after* the tensor that reaches the cap, so the largest holds :measured:`bucket-xray.largest:.2f`.
# * By default the first bucket closes at 1 MiB, so that communication starts early.
#   An explicit ``bucket_cap_mb`` gives that up: the first bucket has the same cap as all others.
# * The convnet with a cap of 1 MiB ends with a bucket of a few hundred bytes: one bias, at the cost of an all-reduce.
# * The last layer fills the first bucket, because its gradients are ready first.
#
# What this does not mean
# -----------------------
# ``bucket_cap_mb`` is not an upper bound: a tensor is never split, so an embedding of 200 MiB travels whole.
# Nor is one bucket per layer a goal; which cap is fastest depends on the link.
#
# Change it: predict, then run
# ----------------------------
# In the loop over caps replace the 4 by 25, which is the default of ``bucket_cap_mb``.
# Are the buckets those of the row *default*?
#
# Expect: no, every model then has one bucket, where the default makes two; an explicit cap also counts for the first bucket, which by default closes at 1 MiB.
#
# Say it aloud
# ------------
# "Buckets are filled in the order in which gradients become ready, and a bucket closes as soon as it has reached its cap.
# A tensor is never split, so a large embedding travels whole.
# Small buckets leave early and pay a latency each; large ones pay it once, and leave late."
