"""
The scaler and an inf on one rank
=================================

In fp16 one rank's gradient overflows: who skips the step, and do the ranks agree?
This lab puts an inf before and after the all-reduce, and reads weights and scales of all ranks after each step.
It serves :ref:`performance-amp`; the fault of averaging by hand is in :doc:`/labs/debugging/plot_21_overflow_on_one_rank`.

A scaler decides from the gradients of its own rank.
While these are the average, all ranks decide alike; what changes a gradient after the sync breaks that.

:Level: deep, 20 minutes
:Proves: perf-inf-before-the-sync perf-inf-behind-the-sync perf-clip-behind-unscale
"""

# %%
# The program
# -----------
# Small gradients vanish in fp16, so the scaler multiplies the loss by a *scale* and divides the gradients by it before the step.
# When it finds an inf or a NaN, it skips the step and halves its scale; after ``growth_interval`` good steps it doubles it.
# Each rank has its own scaler, and scalers do not talk to each other.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.apparatus.plotting import ACCENT, RANK_COLORS, describe, log_axis, subplots

RANKS, STEPS, CLIP = 3, 12, 1.0
BAD = BAD_STEP, BAD_RANK = 5, 1


def agree(model, scaler):
    """Give every rank an inf if one of them has one: the scalers then make the same decision."""
    bad = (~flat_gradients(model).isfinite().all()).float().to(device())
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        next(model.parameters()).grad.fill_(torch.inf)


def worker(where, repair=None):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device().type, init_scale=1024.0, growth_interval=4)
    torch.manual_seed(dist.get_rank() + 1)
    rows = []
    for step in range(STEPS):
        x, here = torch.randn(8, 16).to(device()), (step, dist.get_rank()) == BAD
        with torch.autocast(device().type, dtype=torch.float16):
            out = model(3e4 * x if here and where == "before the sync" else x)
            loss = (out.float() - 1).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if here and where == "after the sync":
            model.module.weight.grad[0, 0] = torch.inf
        if repair:
            repair(model, scaler)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        before = flat_weights(model)
        scaler.step(optimizer)
        scaler.update()
        what = "skipped" if torch.equal(before, flat_weights(model)) else "taken"
        rows.append((what, scaler.get_scale(), flat_weights(model)))
    return rows


# %%
# Before the sync: all skip
# -------------------------
# The overflow is in one rank's batch, so it is in that rank's gradient before the all-reduce.
# A sum with an inf in it is an inf (or a NaN) on every rank, and every scaler sees it.


def show(name, ranks):
    print(name)
    for rank, rows in enumerate(ranks):
        (step, after, _), last = rows[BAD_STEP], rows[-1]
        text = f"step {BAD_STEP} {step:7}  scale {rows[BAD_STEP - 1][1]:5.0f} → {after:5.0f}"
        print(f"  rank {rank} │ {text}   at the end: scale {last[1]:5.0f}")
    halved = [rows[BAD_STEP][1] * 2 == rows[BAD_STEP - 1][1] for rows in ranks]
    assert halved == [rows[BAD_STEP][0] == "skipped" for rows in ranks]
    apart = gap([rows[-1][2] for rows in ranks])
    print(f"  weights of the ranks at the end are {apart:.1e} apart")
    return [rows[BAD_STEP][0] for rows in ranks], apart


cases = {f"inf {where}": (where, None) for where in ("before the sync", "after the sync")}
cases["inf after the sync, agreed on"] = "after the sync", agree
runs = {name: launch(worker, RANKS, *case, quiet=True) for name, case in cases.items()}
what, apart = show("inf before the sync", runs["inf before the sync"])
assert what == ["skipped"] * RANKS
assert apart == 0

# %%
# After the sync: one skips
# --------------------------
# An inf that appears on one rank after ``backward()`` has returned comes from your own code: a division by the number of tokens of this rank, a hook, a bad memory cell.
# No collective follows it, so no other rank sees it.

what, apart = show("inf after the sync", runs["inf after the sync"])
assert what == ["taken", "skipped", "taken"]
assert apart > 0
record(apart=apart)

# %%
# Nothing raises, and it does not recover.
# From here on the ranks also *scale* by different numbers, so DDP averages gradients that are multiplied differently.
# Let :math:`S` be the scale of two ranks and :math:`S/2` that of the third: the mean is :math:`\tfrac{5}{6} S g` for equal gradients :math:`g`.
# Each rank divides by its own scale, so two of them step with :math:`\tfrac56 g` and the third with :math:`\tfrac53 g`.


def average_of_differently_scaled():
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False).to(device()))
    scale = 512.0 if dist.get_rank() == BAD_RANK else 1024.0
    (scale * model(torch.ones(1, 2, device=device())).sum()).backward()  # each rank has g = 1
    return (model.module.weight.grad / scale)[0, 0].item()


factors = launch(average_of_differently_scaled, RANKS, quiet=True)
print("step of each rank, in multiples of the gradient:", [f"{f:.3f}" for f in factors])
assert [round(f, 6) for f in factors] == [round(5 / 6, 6), round(5 / 3, 6), round(5 / 6, 6)]

# %%
# If your code changes gradients after the sync, let the ranks agree before ``unscale_``: one all-reduce of one number.

what, apart = show("inf after the sync, agreed on", runs["inf after the sync, agreed on"])
assert what == ["skipped"] * RANKS
assert apart == 0

# %%
# The scale of every rank, step by step; lines that would overlap are drawn side by side.

# drawing
fig, axes = subplots(1, 2, height_in=2.7, sharey=True)
describe(fig, "Scale of three ranks over the steps, with an inf before and after the sync")
for ax, name in zip(axes, ("inf before the sync", "inf after the sync"), strict=True):
    for rank, rows in enumerate(runs[name]):
        scales = [scale * (1 + 0.04 * (rank - 1)) for _, scale, _ in rows]
        mark = {"marker": "os^"[rank], "ms": 4, "label": f"rank {rank}"}
        ax.step(range(STEPS), scales, where="mid", color=RANK_COLORS[rank], **mark)
    ax.axvline(BAD_STEP, color=ACCENT, lw=1, ls=":")
    log_axis(ax.yaxis, [512, 1024, 2048, 4096, 8192])
    ax.set(xlabel="step", xticks=range(0, STEPS, 2))
    ax.set_title(name, fontsize=9.5)
axes[0].set_ylabel("scale after the step")
axes[0].legend(fontsize=8.5)

# %%
# Clip after ``unscale_``
# -----------------------
# Before ``unscale_`` the gradients are multiplied by the scale, and a clip at 1 cuts them to 1 ÷ scale.
# All ranks do the same wrong thing, so comparing ranks finds nothing.


def clipped(unscale_first):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device().type, init_scale=1024.0)
    with torch.autocast(device().type, dtype=torch.float16):
        loss = (model(torch.ones(8, 16, device=device())).float() - 1).square().mean()
    scaler.scale(loss).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    seen = nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
    before = flat_weights(model)
    scaler.step(optimizer)
    return seen, (flat_weights(model) - before).norm().item() / 0.1


for first in (True, False):
    (seen, moved), *others = launch(clipped, 2, first, quiet=True)
    assert all(other == (seen, moved) for other in others)
    order = "unscale_, clip" if first else "clip, unscale_"
    print(f"{order}: the clip saw a norm of {seen:8.2f}; the step's gradient had {moved:.6f}")
    assert abs(moved * (1 if first else 1024) - CLIP) < 1e-3
    record(**{"norm_right" if first else "norm_wrong": seen})

# %%
# What to notice
# --------------
#
# - DDP's all-reduce is what makes the scalers agree: an inf of one rank reaches all of them, and no flag has to be sent.
# - The same inf after the sync makes the ranks diverge, and the scales stay different, since each scaler counts its own good steps.
# - A clip before ``unscale_`` compares a norm of :measured:`scaler-inf.norm_wrong:.0f` with a bound that was meant for :measured:`scaler-inf.norm_right:.2f`.
#
# What this does not mean
# -----------------------
#
# That bf16 needs any of this: it has the exponents of float32, and training in it commonly goes without a scaler.
# Sharded gradients are a different matter too: there a rank sees only its shard, and the scaler must ask the others.
#
# Change it: predict, then run
# ----------------------------
# In ``worker``, set ``dtype=torch.bfloat16``.
# Which ranks skip the step with the large input?
#
# Expect: none, since nothing overflows, and the assertion fails.
#
# Say it aloud
# ------------
# "An inf in one rank's gradient reaches all ranks through the all-reduce, so all scalers skip the same step.
# One that appears later makes one rank skip, so the ranks have to agree first.
# fp16 has more digits and needs that care; bf16 trades digits for range."
