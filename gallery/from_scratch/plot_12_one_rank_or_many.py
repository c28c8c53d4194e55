"""
One rank or many, the same run
==============================

If one rank, two or four share the same 32 samples per step, do they train the same model?
This lab trains one epoch each way, in single and in double precision, and measures how far apart the runs are.
It serves :ref:`from-scratch-training-run`.

What is trained follows from the global batch, the learning rate and the order of the samples; how many ranks share the batch does not matter.
Keep in mind: with the batch per rank fixed, more ranks are another experiment.

:Level: core, 12 minutes
:Proves: same-global-batch-same-run
"""

# %%
# All runs see the same samples in the same order; each rank takes its slice of every global batch.
# The recorded loss is the mean over the global batch, so the ranks add up theirs.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights

SAMPLES, FEATURES = 1920, 4


def worker(per_rank, dtype):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # one rank alone would otherwise compute with all cores
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES).to(device(), dtype)
    y = x.sum(dim=1, keepdim=True).sin()
    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(net.to(device(), dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    losses, weights = [], []
    for batch in torch.arange(SAMPLES).split(per_rank * ranks):
        mine = batch[rank * per_rank :][:per_rank]
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
        weights.append(flat_weights(model).double())
    return losses, torch.stack(weights)


# %%
# Three ways to share a batch, and a different experiment
# -------------------------------------------------------
# The first three runs share a global batch of 32; the last gives each of its four ranks 32.
# After every step, each run's weights are compared with those of the run on one rank.

WAYS = {"1 × 32": (1, 32), "2 × 16": (2, 16), "4 × 8": (4, 8), "4 × 32": (4, 32)}
losses, gaps = {}, {}
for dtype in (torch.float32, torch.float64):
    results = {way: launch(worker, *WAYS[way], dtype, up_to=4)[0] for way in WAYS}
    for way, (history, weights) in results.items():
        alone = results["1 × 32"][1][: len(weights)]
        losses[way, dtype] = history
        gaps[way, dtype] = (weights - alone).abs().amax(dim=1).tolist()

print("ranks    global            samples    last   largest gap to the weights")
print("× batch   batch   steps   per rank    loss   of 1 × 32, float32  float64")
for way, (ranks, per_rank) in WAYS.items():
    single, double = (gaps[way, dtype][-1] for dtype in (torch.float32, torch.float64))
    steps = len(losses[way, torch.float32])
    counts = f"{ranks * per_rank:6}  {steps:6}  {steps * per_rank:9}"
    print(
        f"{way:8} {counts}  {losses[way, torch.float32][-1]:6.3f}  {single:18.1e}  {double:7.1e}"
    )
    if ranks * per_rank == 32:
        assert single < 1e-5
        assert double < 1e-13
assert gaps["4 × 32", torch.float64][-1] > 1e-2  # another global batch is another run
record(gap_single=max(gaps[way, torch.float32][-1] for way in ("2 × 16", "4 × 8")))
record(gap_double=max(gaps[way, torch.float64][-1] for way in ("2 × 16", "4 × 8")))
record(loss=losses["1 × 32", torch.float32][-1], loss_big=losses["4 × 32", torch.float32][-1])

# %%
# Above the losses in single precision, below the gaps in both; where a gap is zero, nothing is drawn.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots

fig, (above, below) = subplots(2, 1, height_in=5.2, sharex=True)
describe(fig, "Losses of the four runs, and how far their weights are from those of one rank")
looks = {"1 × 32": (MUTED, "-", 6), "2 × 16": (INK, "-", 1.6), "4 × 8": (ACCENT, "--", 1.6)}
looks["4 × 32"] = (INK, ":", 1.8)
for way, (color, style, width) in looks.items():
    look = {"color": color, "ls": style, "lw": width}
    above.plot(losses[way, torch.float32], **look)
    if way != "1 × 32":
        below.plot(gaps[way, torch.float32], **look)
        below.plot(gaps[way, torch.float64], **look)
above.text(28, 0.85, "1 × 32, 2 × 16 and 4 × 8", fontsize=11)
above.text(0, 0.15, "4 × 32 (dotted): a quarter of the steps", fontsize=11)
below.text(16, 0.1, "4 × 32", fontsize=11, va="center")
below.text(30, 3e-6, "2 × 16 and 4 × 8 in float32", fontsize=11)
below.text(30, 1e-14, "2 × 16 and 4 × 8 in float64", fontsize=11)
above.set(ylabel="loss", ylim=(0, None))
above.set_title("Three losses that cannot be distinguished")
below.set(
    yscale="log",
    ylabel="gap to the weights of 1 × 32",
    xlabel="training step",
    ylim=(1e-18, 10),
)
below.set_title("What is left between them is rounding")

# %%
# What to notice
# --------------
# - Three runs with the same global batch take the same number of steps, with the same learning rate, to the same loss: :measured:`one-rank-or-many.loss:.3f`.
#   DDP changes where the samples are computed, not what is computed.
# - They are not equal bit for bit: one rank adds 32 gradients in one order, four ranks add eight each and then four sums.
#   Double precision shows that this is the only difference: there the gap falls from :measured:`one-rank-or-many.gap_single:.0e` to :measured:`one-rank-or-many.gap_double:.0e`.
# - Keeping the batch *per rank* is a different experiment.
#   The global batch grows with the ranks, an epoch has fewer steps, and with the old learning rate this one ends at :measured:`one-rank-or-many.loss_big:.3f`.
#
# What this does not mean
# -----------------------
# That four ranks are four times as fast: nothing is timed here, and ranks on one machine compete for its cores.
# Nor that more samples per step are worse: they need a different learning rate.
#
# Change it: predict, then run
# ----------------------------
# Scale the learning rate with the global batch: ``lr=0.1 * per_rank * ranks / 32``.
# Which rows of the table change?
#
# Expect: only *4 × 32*, whose loss after a quarter of the steps comes much closer to that of the others, and whose weights are farther from theirs than before.
#
# Say it aloud
# ------------
# "One rank with 32 samples and four with 8 train the same model, up to rounding.
# If I keep 32 per rank instead, four ranks make a batch of 128 and a quarter of the steps.
# The first choice keeps the result and gives each rank little to do; the second keeps the ranks busy and has to find its learning rate anew."
