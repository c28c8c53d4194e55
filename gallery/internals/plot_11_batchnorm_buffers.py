"""
BatchNorm buffers
=================

When does DDP copy BatchNorm's running statistics, and whose survive?
Parameters agree on all ranks because gradients do; buffers have no gradient, so DDP copies them from rank 0.
It serves :ref:`internals-buffers`.

A buffer has no gradient, so nothing averages it; before a forward DDP copies rank 0's.
Keep in mind: equal at the start of a forward, different at its end.

:Level: deep, 15 minutes
:Proves: buffers-synced-at-forward buffers-not-synced-after-no-sync syncbn-needs-gpu
"""

# %%
# The state that is compared is one number per rank: the running mean of a BatchNorm over one feature.
# Rank 0's data has mean 1 and rank 1's has mean 3, so the mean over all data is 2.
# A forward pre-hook on the BatchNorm reads the buffer after DDP's own work at the start of a forward.

import contextlib
import inspect
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch, record

# torch 2.13 renamed the switch; the old name still works there, with a warning.
RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
SWITCH = "forward_sync_buffers" if RENAMED else "broadcast_buffers"


def worker(options, kinds):
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = nn.Sequential(nn.BatchNorm1d(1, momentum=0.3), nn.Linear(1, 1)).to(device())
    model = DistributedDataParallel(net, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    running_mean, seen = net[0].running_mean, []
    net[0].register_forward_pre_hook(lambda *_: seen.append(running_mean.item()))
    for kind in kinds:
        x = (torch.randn(256, 1) + 1 + 2 * rank).to(device())
        model.train(kind != "eval")
        if kind in ("eval", "no_grad"):
            with torch.no_grad():
                model(x)
        else:
            with model.no_sync() if kind == "no_sync" else contextlib.nullcontext():
                model(x).square().mean().backward()
            if kind == "train":
                optimizer.step()
                optimizer.zero_grad()
        seen.append(running_mean.item())
    return seen  # two numbers per forward: as it starts, as the step ends


# %%
# Eight training steps
# --------------------
# With DDP's defaults, and with the synchronization of buffers switched off.

STEPS = 8
default = launch(worker, 2, {}, ["train"] * STEPS)
off = launch(worker, 2, {SWITCH: False}, ["train"] * STEPS)

print(f"running mean     default: rank 0  rank 1     {SWITCH}=False: rank 0  rank 1")
for i in range(2 * STEPS - 4, 2 * STEPS):
    label = f"step {i // 2}, {'end' if i % 2 else 'start'}"
    on = f"{default[0][i]:16.3f} {default[1][i]:7.3f}"
    print(f"{label:15} {on} {off[0][i]:35.3f} {off[1][i]:7.3f}")
assert default[0][::2] == default[1][::2]
assert all(a != b for a, b in zip(default[0][1::2], default[1][1::2], strict=True))
record(rank_0=default[0][-1], rank_1=default[1][-1], rank_1_off=off[1][-1])

# %%
# The left panel is a zigzag: in each forward rank 1 takes a step toward its own mean, and the next forward discards that step.

# drawing
from ddplab.apparatus.plotting import MUTED, RANK_COLORS, subplots

fig, axes = subplots(1, 2, height_in=3.0, sharey=True)
at = [step + shift for step in range(STEPS) for shift in (0.05, 0.95)]
titles = "Default: reset at each forward", f"{SWITCH}=False: never"
for ax, (first, second), title in zip(axes, (default, off), titles, strict=True):
    ax.axhline(2, color=MUTED, lw=1, ls=":")
    ax.plot(at, first, "o-", color=RANK_COLORS[0], ms=4)
    ax.plot(at, second, "s--", color=RANK_COLORS[1], ms=4)
    ax.text(STEPS + 0.25, first[-1], "rank 0", color=RANK_COLORS[0], va="center")
    ax.text(STEPS + 0.25, second[-1], "rank 1", color=RANK_COLORS[1], va="center")
    ax.set_xlim(-0.2, STEPS + 1.9)
    ax.set_xticks(range(0, STEPS + 1, 2))
    ax.set_xlabel("training step")
    ax.set_title(title)
axes[0].text(0, 2.03, "mean of all data", fontsize=8.5, va="bottom")
axes[0].set_ylabel("running mean")

# %%
# Not every forward copies
# ------------------------
# After a forward under ``no_sync`` or ``torch.no_grad()``, the *next* forward copies no buffers.
# ``no_grad`` here is a forward in training mode, as used to recompute running statistics; ``eval`` changes no buffer.

KINDS = ["train", *["no_sync"] * 2, *["train"] * 2, "no_grad", *["train"] * 2, "eval", "train"]
first, second = launch(worker, 2, {}, KINDS)
starts = [a == b for a, b in zip(first[::2], second[::2], strict=True)]
print("forward  kind      buffers at its start")
for i, (kind, equal) in enumerate(zip(KINDS, starts, strict=True)):
    apart = abs(first[2 * i] - second[2 * i])
    print(f"{i:7}  {kind:8}  {'equal' if equal else f'{apart:.3f} apart'}")
assert [i for i, equal in enumerate(starts) if not equal] == [2, 3, 6]

# %%
# At construction
# ---------------
# Each rank sets its buffer to its own rank before it wraps the model.


def construct(options):
    net = nn.BatchNorm1d(1).to(device())
    net.running_mean.fill_(dist.get_rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(net, **options)
    texts = [str(w.message) for w in caught if "broadcast_buffers" in str(w.message)]
    return model.module.running_mean.item(), texts


print("option                          rank 0  rank 1")
for options in [{}, {"broadcast_buffers": False}, *([{SWITCH: False}] if RENAMED else [])]:
    (a, texts), (b, _) = launch(construct, 2, options, quiet=True)
    option = ", ".join(f"{k}={v}" for k, v in options.items()) or "default"
    warns = f"   warns: {texts[0].split('.')[0]}." if texts else ""
    print(f"{option:30} {a:7} {b:7}{warns}")
    assert (a == b) == ("broadcast_buffers" not in options)

# %%
# SyncBatchNorm
# -------------
# It computes the statistics over all ranks inside the forward, so buffers agree without a copy; in training it accepts GPU tensors only.

try:
    launch(lambda: nn.SyncBatchNorm(1)(torch.randn(8, 1)), 2, quiet=True)
except LaunchError as error:
    refusal = str(error).splitlines()[-1]
print(refusal)
assert "expected input tensor to be on GPU" in refusal

# %%
# What to notice
# --------------
# - Buffers differ between the end of a forward and the start of the next one: a checkpoint or an evaluation *without* DDP's forward sees this rank's own statistics.
# - The copy is rank 0's, not a mean.
#   Rank 0 ends at :measured:`batchnorm-buffers.rank_0:.2f`, near the mean of its own data; what rank 1 saw never enters the running statistics.
# - ``broadcast_buffers=False`` leaves buffers alone from construction on; ``forward_sync_buffers=False`` (torch 2.13) still copies them once, at construction.
#
# What this does not mean
# -----------------------
# That the copy makes training use equal statistics: in training mode each rank normalizes with the statistics of its own batch, whatever the buffers hold.
#
# Change it: predict, then run
# ----------------------------
# Set ``momentum=1.0``, with which the running mean forgets everything but the last batch.
# What is rank 1's running mean when a forward starts, and when the step ends?
#
# Expect: rank 0's at the start and its own batch's at the end, two apart in every step: the next forward throws away all that rank 1 saw.
#
# Say it aloud
# ------------
# "DDP copies rank 0's buffers to all ranks before a forward; it is a copy and not a mean.
# So the running statistics are those of rank 0's data, and evaluation should go through them on purpose.
# Statistics over all ranks need SyncBatchNorm, which pays with communication inside of every forward."
