"""
Communication hooks
===================

What may a function of yours do in place of a bucket's all-reduce, and what does compression cost in accuracy?
This lab writes a communication hook that only records and one that compresses by hand, and makes the usual mistakes.
It serves :ref:`internals-hooks`.

A communication hook replaces DDP's all-reduce: it gets a bucket and returns a future of what becomes the gradient.
Keep in mind: averaging is then the hook's task, too.

:Level: deep, 20 minutes
:Proves: comm-hook-per-bucket comm-hook-signature hook-gets-undivided-gradients
"""

# %%
# A hook gets its state and a bucket, and returns a future of a tensor as long as the bucket's buffer.
# DDP does not divide when a hook is registered: the hook computes the mean.

import textwrap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record
from ddplab.apparatus.gaps import flat_gradients


def averaged(tensor):
    """A future of the mean over ranks; dividing first keeps fp16 from overflowing."""
    work = dist.all_reduce(tensor.div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def record_buckets(calls, bucket):
    elements, parameters = bucket.buffer().numel(), len(bucket.parameters())
    calls.append((bucket.index(), elements, parameters, bucket.is_last()))
    return averaged(bucket.buffer())


def compress(dtype, bucket):
    buffer = bucket.buffer()

    def restore(future):
        return buffer.copy_(future.value())

    return averaged(buffer.to(dtype)).then(restore)


# %%
# The network's gradients span many orders of magnitude, as those of deep networks do.


def train(hook, state, steps):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device()), bucket_cap_mb=0.03)
    if hook is not None:
        model.register_comm_hook(state, hook)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(16, 64).to(device())).square().mean().backward()
    return flat_gradients(model), state


exact, _ = launch(train, 2, None, None, 2, quiet=True)[0]
once, _ = launch(train, 2, None, None, 1, quiet=True)[0]
same, calls = launch(train, 2, record_buckets, [], 2, quiet=True)[0]
assert torch.allclose(exact, same, rtol=1e-6, atol=1e-12)

# %%
# One call per bucket
# -------------------
# The calls come in the order of the buckets, which are rebuilt at the second step.

print("call  bucket  elements  parameters  last")
for i, (index, elements, parameters, is_last) in enumerate(calls):
    print(f"{i:4}  {index:6}  {elements:8}  {parameters:10}{'   yes' * is_last}")
assert sum(elements for _, elements, _, _ in calls) == 2 * exact.numel()
assert [index for index, *_ in calls] == [0, *range(len(calls) - 1)]  # in their order

# %%
# Compression by hand
# -------------------
# The buffer is cast, reduced in two bytes per element, and cast back.

errors = {}
print(f"{'sent as':10} bytes per rank's gradient  median relative error  became zero")
for dtype in (torch.float16, torch.bfloat16):
    lossy, _ = launch(train, 2, compress, dtype, 2, quiet=True)[0]
    errors[dtype] = (lossy - exact).abs() / exact.abs()
    vanished = ((lossy == 0) & (exact != 0)).float().mean().item()
    name, nbytes = str(dtype).removeprefix("torch."), exact.numel() * dtype.itemsize
    print(f"{name:10} {nbytes:25}  {errors[dtype].median():21.1e}  {vanished:11.1%}")
    record("%", **{f"{name}_zero": 100 * vanished})
print(f"{'float32':10} {exact.numel() * 4:25}  {0:21}  {0:11.1%}")

# %%
# Elements are grouped by the magnitude of their exact gradient, half a decade per group.
# A line is the median error of a group; the band contains eight of ten of its elements.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, subplots

fig, ax = subplots(height_in=3.2)
group = (2 * exact.abs().log10()).floor()
groups = [g for g in group.unique() if (group == g).sum() >= 50]
x = [10 ** (g.item() / 2 + 0.25) for g in groups]
looks = (ACCENT, "o-"), (INK, "s--")
for (dtype, error), (color, line) in zip(errors.items(), looks, strict=True):
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    low, middle, high = torch.stack([error[group == g].quantile(quantiles) for g in groups]).T
    ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
    ax.plot(x, middle, line, color=color, ms=4)
    name = str(dtype).removeprefix("torch.")
    ax.text(x[-1] * 1.3, middle[-1], name, color=color, va="center", weight="bold")
ax.set(xscale="log", yscale="log", ylabel="relative error", xlabel="exact gradient, magnitude")
ax.set_xlim(right=ax.get_xlim()[1] * 5)
ax.axvline(2**-14, color=MUTED, lw=1, ls=":")
ax.text(2**-14, 1, " smallest normal float16", fontsize=8.5, va="center")
ax.set_title("bfloat16's error is similar everywhere, float16 loses small gradients")

# %%
# The usual mistakes
# ------------------
# The first two are caught at registration, because DDP reads the hook's signature; the others appear in backward, or never.


def mistakes():
    def second_argument_renamed(state, grad_bucket):
        return averaged(grad_bucket.buffer())

    def other_annotation(state, bucket) -> torch.Tensor:
        return averaged(bucket.buffer())

    def returns_a_tensor(state, bucket):
        return averaged(bucket.buffer()).wait()

    def returns_nothing(state, bucket):
        averaged(bucket.buffer()).wait()

    def forgets_to_divide(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    return locals()


outcomes = {}
for name, hook in mistakes().items():
    try:
        gradient, _ = launch(train, 2, hook, None, 1, quiet=True)[0]
        outcome = f"no error; gradient is {gradient.norm() / once.norm():.2f} times the mean"
    except LaunchError as error:
        outcome = str(error).splitlines()[-1].removeprefix(f"rank {error.rank} ")
    outcomes[name] = outcome
    print(f"{name}:\n{textwrap.indent(textwrap.fill(outcome, 84), '    ')}")
assert "KeyError: 'bucket'" in outcomes["second_argument_renamed"]
assert "ValueError: Communication hook: return annotation" in outcomes["other_annotation"]
assert torch.allclose(gradient, 2 * once, rtol=1e-6, atol=1e-12)  # of the last one, the sum

# %%
# What to notice
# --------------
# - The hook is called once per bucket, and what its future holds becomes the gradient: forget to divide, and every gradient is the sum.
# - The two half-size types lose accuracy in different ways.
#   ``bfloat16`` loses digits everywhere, and most where the ranks' gradients nearly cancel (the far left); ``float16`` keeps more digits, until it turns :measured:`comm-hooks.float16_zero:.0f` of these gradients into zero.
# - A misnamed argument gives a bare ``KeyError: 'bucket'``; a hook without a ``return`` crashes torch 2.13 with a segmentation fault.
#
# What this does not mean
# -----------------------
# That compression makes your training faster: casting costs time too, and it pays off only on a link that is slower than the casts (not measured here).
#
# Change it: predict, then run
# ----------------------------
# In ``train`` scale the loss before the backward: ``.square().mean().mul(2**10).backward()``.
# What becomes of the gradients that ``float16`` turned into zero, and of the error of ``bfloat16``?
#
# Expect: no gradient becomes zero any more, and the error of bfloat16 does not change: a factor moves numbers into the range of float16, and adds no digit to bfloat16.
#
# Say it aloud
# ------------
# "A hook sees each bucket before it leaves, so it can cast it, compress it or only record it, and it must return a future and divide by itself.
# Half-size types halve the bytes.
# float16 pays with range, bfloat16 with digits, and both with the time of two casts."
