"""
Evaluation without double counting
==================================

Three ways to get a wrong validation loss from ranks that do nothing wrong: padding, a mean of means, and running statistics that differ.
Four ranks evaluate 21 samples, and one process computes the right loss.
It serves :ref:`setup-evaluation`.

A loss over all samples is one sum divided by one count; padding and means of means change what is counted.
Keep in mind: also evaluate one model, with the same statistics on all ranks.

:Level: core, 12 minutes
:Proves: setup-eval-padding-counts-twice setup-eval-local-buffers setup-eval-without-no-grad eval-forward-syncs-buffers
"""

# %%
# The model has BatchNorm, and each rank trains it for three steps on data of its own.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from ddplab import device, launch, record
from ddplab.runtime.torch_private import flight_records

RANKS, SAMPLES, BATCH = 4, 21, 3


def trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
    x = torch.randn(SAMPLES, 4, dtype=torch.float64).to(device())
    model = DDP(net.to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 4, dtype=torch.float64).to(device())).square().mean().backward()
        optimizer.step()
    return model.eval(), x


@torch.no_grad()
def losses(model, x, mine):
    """The loss of each of the samples with these numbers."""
    mine = torch.tensor(mine, device=device())
    errors = [model(x[i]) - x[i].sum(1, True).sin() for i in mine.split(BATCH)]
    return torch.cat(errors).square()


def shares():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    padded = list(DistributedSampler(range(SAMPLES), shuffle=False))
    return {"DistributedSampler": padded, "every p-th sample": range(rank, SAMPLES, ranks)}


# %%
# Which samples, and which mean
# -----------------------------
# Two ways to share and two to reduce, all with the running statistics of rank 0.


def reductions():
    model, x = trained()
    for buffer in model.module.buffers():
        dist.broadcast(buffer, src=0)
    right, table = losses(model.module, x, range(SAMPLES)).mean().item(), {}
    for name, mine in shares().items():
        loss = losses(model.module, x, mine)
        sums = torch.stack([loss.mean(), loss.sum(), loss.new_tensor(len(loss))])
        dist.all_reduce(sums)
        means, total, count = sums.tolist()
        table[name] = round(count), means / dist.get_world_size(), total / count
    return right, table


right, table = launch(reductions, RANKS)[0]
print(f"{'':18}  counted  mean of means     sum / count")
for name, (count, *found) in table.items():
    values = "  ".join(f"{loss:.4f} {loss / right - 1:+7.2%}" for loss in found)
    print(f"{name:18}  {count:7}  {values}")
print(f"{'one process':18}  {SAMPLES:7}  {right:.4f}")
(_, _, padded), (count, means, good) = table.values()
assert (count, abs(good / right - 1) < 1e-12) == (SAMPLES, True)
assert min(abs(padded / right - 1), abs(means / right - 1)) > 1e-3
record("%", padded=100 * abs(padded / right - 1), means=100 * abs(means / right - 1))

# %%
# Which model
# -----------
# The loss by sum and count, the running mean of one feature on each rank, and the collectives of a rank's evaluation before its all-reduce.


def statistics(way):
    (model, x), before = trained(), len(flight_records())
    for buffer in model.module.buffers() if "broadcast" in way else ():
        dist.broadcast(buffer, src=0)
    evaluated = model if way == "ddp(x)" else model.module
    loss = losses(evaluated, x, shares()["every p-th sample"]).sum()
    issued = len(flight_records()) - before
    dist.all_reduce(loss)
    return loss.item() / SAMPLES, model.module[1].running_mean[0].item(), issued


for way in ("module(x)", "broadcast, module(x)", "ddp(x)"):
    (loss, *_), means, issued = zip(*launch(statistics, RANKS, way), strict=True)
    row = " ".join(f"{mean:+.3f}" for mean in means)
    print(f"{way:20}  {loss:.4f}  {issued[0]} collectives  {row}")
    assert len(set(means)) == (RANKS if way == "module(x)" else 1)
    assert (way != "module(x)") == (abs(loss / right - 1) < 1e-12)
    if way == "module(x)":
        record("%", own=100 * abs(loss / right - 1))

# %%
# What a forward sends
# --------------------
# Three forwards in evaluation, of a model whose buffers each rank fills with its own number before each: how many broadcasts they make, and whose buffers there are then.


def forwards(way, gradients):
    model, x = trained()
    if way == "no buffers":
        model = DDP(nn.Linear(4, 1).double().to(device())).eval()
    called, seen = model.module if way == "module(x)" else model, []
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            for buffer in model.module.buffers():
                buffer.fill_(dist.get_rank())
            before = len(flight_records())
            called(x)
            held = {buffer.max().item() for buffer in model.module.buffers()}
            seen.append((len(flight_records()) - before, held))
    return seen


print("             under no_grad   with gradients")
sent = {"ddp(x)": ([2, 0, 0], [2, 2, 2])}  # its buffers are of two types
for way in ("ddp(x)", "module(x)", "no buffers"):
    counts = sent.get(way, ([0] * 3, [0] * 3))
    for expected, gradients in zip(counts, (False, True), strict=True):
        for rank, seen in enumerate(launch(forwards, RANKS, way, gradients)):
            assert [number for number, _ in seen] == expected
            whose = [{0 if number else rank} for number in expected]
            assert way == "no buffers" or [held for _, held in seen] == whose
    print(f"{way:12} ", "   ".join(f"{' '.join(map(str, c)):13}" for c in counts).rstrip())

# %%
# What to notice
# --------------
#
# - One rank has six samples and three have five, so a mean of means is off by :measured:`evaluation.means:.2f` with nothing counted twice; padding alone is off by :measured:`evaluation.padded:.2f`.
# - ``module(x)`` bypasses DDP: each rank evaluates with the running statistics that its own last batch left, and the loss is off by :measured:`evaluation.own:.2f`.
# - Under ``no_grad`` the wrapper's first forward broadcasts the buffers, and later ones send nothing; with gradients on, each broadcasts them.
#
# Change it: predict, then run
# ----------------------------
# Set ``SAMPLES`` to 20, which four ranks divide.
# What is left of the errors in the first table?
#
# Expect: nothing, all four values are right: padding and means go wrong only where the samples do not divide; the assertion that expects an error fails.
#
# Say it aloud
# ------------
# "I evaluate every p-th sample without padding, sum losses and counts, and divide once.
# Before that I make the buffers equal, or go through the wrapper.
# The wrapper does that by itself and sends in its first forward; the inner module sends nothing, and uses whatever statistics this rank has."
