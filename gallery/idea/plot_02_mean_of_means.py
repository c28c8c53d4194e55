"""
The mean of means
=================

When is data-parallel training the same as training with one big batch?
DDP averages the gradients that ranks compute on their shards; this lab compares that mean with the gradient of the whole batch, computed in one process with the same weights.
It serves :ref:`idea-equality`.

DDP computes the mean of the ranks' gradients, so it trains the mean of the ranks' losses.
Keep in mind: that is the big batch's loss if each rank's loss is a mean, over equally many samples, each of which is computed without looking at the others.

:Level: core, 15 minutes
:Proves: mean-of-means-equals-big-batch sum-loss-off-by-world-size unequal-shards-weigh-samples-unequally weighting-mends-unequal-shards batchnorm-breaks-equality
"""

# %%
# Each case changes one thing in the first, or corrects such a change.
# All run in float64 and in float32: a rounding error shrinks with the precision, a real difference stays.

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_gradients

RANKS = 4
EQUAL, UNEQUAL = [12] * RANKS, [24, 12, 8, 4]  # samples per rank
CASES = {  # layer, training, reduction of the loss, shards, what each rank's loss is scaled by
    "mean loss, equal shards": (nn.Identity(), True, "mean", EQUAL, None),
    "sum loss": (nn.Identity(), True, "sum", EQUAL, None),
    "sum loss × world size": (nn.Identity(), True, "sum", EQUAL, "world size"),
    "unequal shards": (nn.Identity(), True, "mean", UNEQUAL, None),
    "unequal shards, weighted": (nn.Identity(), True, "mean", UNEQUAL, "share"),
    "BatchNorm, training": (nn.BatchNorm1d(16), True, "mean", EQUAL, None),
    "BatchNorm, eval": (nn.BatchNorm1d(16), False, "mean", EQUAL, None),
    "dropout, masks drawn anew": (nn.Dropout(0.5), True, "mean", EQUAL, None),
    "dropout, the ranks' masks": (nn.Dropout(0.5), True, "mean", EQUAL, "masks"),
}
IN_SHARDS = {  # beside one process that goes shard by shard, and takes the mean of the means
    name: (*CASES[name][:-1], "shards") for name in ("unequal shards", "BatchNorm, training")
}


def compare(dtype, layer, training, reduction, sizes, scale):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), copy.deepcopy(layer), nn.Tanh(), nn.Linear(16, 1))
    net.train(training).to(device(), dtype)
    x = torch.randn(sum(sizes), 8).to(device(), dtype)
    y = x.sum(dim=1, keepdim=True) + 1
    whole, ddp = copy.deepcopy(net), DistributedDataParallel(net)
    torch.manual_seed(rank + 1)  # each rank draws its own masks
    if scale == "masks":  # each rank sends its mask, and the single process uses all of them
        mine, masks = nn.functional.dropout(torch.ones(sizes[rank], 16), 0.5), [None] * ranks
        dist.all_gather_object(masks, mine)
        for model, mask in (net, mine), (whole, torch.cat(masks)):
            model[1].register_forward_hook(lambda _, x, y, mask=mask: x[0] * mask.to(x[0]))

    if scale == "shards":  # a sample of a shard of m counts 1 / (ranks × m)
        for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
            (nn.functional.mse_loss(whole(part_x), part_y) / ranks).backward()
    else:
        nn.functional.mse_loss(whole(x), y, reduction=reduction).backward()
    my_x, my_y = x.split(sizes)[rank], y.split(sizes)[rank]
    loss = nn.functional.mse_loss(ddp(my_x), my_y, reduction=reduction)
    factor = {"world size": ranks, "share": ranks * len(my_x) / len(x)}.get(scale, 1)
    (factor * loss).backward()
    mean, big = flat_gradients(ddp), flat_gradients(whole)
    return ((mean - big).norm() / big.norm()).item(), (big.norm() / mean.norm()).item()


def worker(dtype, cases):
    return {name: compare(dtype, *case) for name, case in cases.items()}


# %%
# The relative error is the length of the difference, divided by the length of the big batch's gradient.

of_ranks = launch(worker, RANKS, torch.float64, CASES)
double, single = of_ranks[0], launch(worker, RANKS, torch.float32, CASES)[0]
eps64, eps32 = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps
print(f"relative error in {'float64':>18} {'float32':>9}")
for name in CASES:
    verdict = "another gradient" if double[name][0] > 16 * eps64 else "equal within rounding"
    print(f"{name:26} {double[name][0]:9.1e} {single[name][0]:9.1e}   {verdict}")
off = [name for name in CASES if double[name][0] > 16 * eps64]
assert off == [name for name in CASES if single[name][0] > 16 * eps32]
expected = ["sum loss", "unequal shards", "BatchNorm, training", "dropout, masks drawn anew"]
for errors in of_ranks:
    assert [name for name in CASES if errors[name][0] > 16 * eps64] == expected
for errors in launch(worker, RANKS, torch.float64, IN_SHARDS):
    assert all(error < 16 * eps64 for error, _ in errors.values())
for case, name in zip(off, ("sum", "unequal", "batchnorm", "dropout"), strict=True):
    record("%", **{f"{name}_off": 100 * double[case][0]})
record(sum_factor=double["sum loss"][1])
error64, error32 = (run["mean loss, equal shards"][0] for run in (double, single))
record("epsilons", equal_float64=error64 / eps64, equal_float32=error32 / eps32)

# %%
# A dotted line is the epsilon of a precision: the distance from 1 to the next larger number.
# An error of zero would lie on the left edge; no case has it.

# drawing
from ddplab.apparatus.plotting import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    describe,
    log_axis,
    name_rows,
    subplots,
)

fig, ax = subplots(height_in=3.6)
describe(fig, "Relative error of the mean of gradients against the big batch, for nine cases")
for row, name in enumerate(CASES):
    errors = [max(error, 1e-18) for error, _ in (double[name], single[name])]
    ax.plot(errors, [row, row], color=FAINT, lw=5, zorder=1)
    ax.plot(errors[1], row, "s", color=INK, mfc="none", ms=8)
    ax.plot(errors[0], row, "o", color=ACCENT, ms=5)
for eps, name, color in (eps64, "float64", ACCENT), (eps32, "float32", INK):
    ax.axvline(eps, color=MUTED, lw=1, ls=":", zorder=0)
    ax.text(eps, -0.8, name, color=color, ha="center", va="bottom", weight="bold")
name_rows(ax, list(CASES), margin=0.7)
powers = -18, -15, -12, -9, -6, -3, 0
labels = ["0", *(f"$10^{{{power}}}$" for power in powers[1:])]
log_axis(ax.xaxis, [10.0**power for power in powers], labels)
ax.set(xlim=(1e-18, 10), xlabel="relative error (log scale)")
ax.set_title("Rounding shrinks with the precision; a difference does not", pad=16)

# %%
# Dropout masks
# -------------
# With the same seed on all ranks, they drop the same neurons of different samples.


def masks(differ):
    torch.manual_seed(dist.get_rank() if differ else 0)
    return nn.functional.dropout(torch.ones(256, 16, device=device()), 0.5).bool().cpu()


for name, differ in (("equal", False), ("different", True)):
    first, second = launch(masks, 2, differ)
    agree = 100 * (first == second).double().mean().item()
    print(f"{name:9} seeds: the masks of two ranks agree in {agree:5.1f} % of their elements")
    record("%", **{f"{name}_seeds": agree})
    assert (agree == 100) != differ

# %%
# What to notice
# --------------
# - A loss that is a mean, over shards of equal size: the mean of the means is the mean of all, within :measured:`mean-of-means.equal_float32:.1f` in float32.
# - A sum is :measured:`mean-of-means.sum_factor:.0f` times too small, on as many ranks: multiply the loss by the world size.
# - On unequal shards the samples of the smaller ones count for more; ``world_size × samples here / samples everywhere`` as a weight corrects it.
# - BatchNorm in training mode normalizes with the statistics of the shard, so the loss itself is different; nothing that you do to gradients corrects it.
# - Dropout is another draw of the masks, not an error: with the ranks' masks, the single process agrees.
#
# What this does not mean
# -----------------------
# That a different gradient is wrong: it is the gradient of a different loss.
# Know which one you train.
#
# Change it: predict, then run
# ----------------------------
# In the case *BatchNorm, training* put ``nn.LayerNorm(16)`` in place of ``nn.BatchNorm1d(16)``.
# Is the gradient still another one?
#
# Expect: no, it equals the big batch's within rounding, because LayerNorm looks at one sample at a time; the list of cases that the lab expects no longer fits, and its assertion fails.
#
# Say it aloud
# ------------
# "The mean of the ranks' gradients is the gradient of the big batch as long as the loss is a mean over equal shards and no sample's value depends on the others.
# BatchNorm and sums break that, and unequal shards break it, too.
# You can correct a sum or a shard with a factor; statistics over all ranks cost communication in the forward."
