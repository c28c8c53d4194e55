"""
The mystery of three ranks
==========================

A resumed run equals the uninterrupted one on two ranks, bit for bit; on three it does not, with the same program and the same complete checkpoint.
This lab rules out the suspects one by one, until the buckets are left.
It serves :ref:`checkpointing-mystery`.
"""

# %%
# The case
# --------
# Thirty steps, saved after ten.
# A communication hook looks on: before it reduces as DDP would, it notes what travels in which bucket, and this rank's own gradients.

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.checkpoint import CheckpointManager
from ddplab.labs.plotting import ACCENT, INK, describe, subplots
from ddplab.runtime.needs import ON_CPU

SAVED, STEPS = 10, 30


def network(dropout=0.1):
    block = [nn.Linear(16, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 64)]
    return nn.Sequential(*block, nn.Tanh(), nn.Linear(64, 4))


def flat(tensors):
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors])


class Run:
    def __init__(self, dropout=0.1, one_batch=False, sgd=False):
        torch.manual_seed(0)
        net = network(dropout).to(device())
        self.names = {p: name for name, p in net.named_parameters()}
        self.optimizer = (torch.optim.SGD if sgd else torch.optim.AdamW)(
            net.parameters(), 0.01
        )
        self.model = DistributedDataParallel(net)
        self.model.register_comm_hook(self, Run.look_on)
        self.one_batch, self.bucket, self.own = one_batch, [], {}
        torch.manual_seed(1 + dist.get_rank())

    def look_on(self, bucket):
        self.bucket = [self.names[p] for p in bucket.parameters()]
        self.own = dict(zip(self.bucket, map(torch.clone, bucket.gradients()), strict=True))
        return allreduce_hook(None, bucket)

    def loss(self, step):
        seed = dist.get_rank() if self.one_batch else 100 * step + dist.get_rank()
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device())
        return (self.model(x) - x[:, :4].sin()).square().mean()

    def train(self, first, last):
        seen = []
        for step in range(first, last):
            self.optimizer.zero_grad()
            loss = self.loss(step)
            loss.backward()
            own = flat(self.own[name] for name in self.names.values())
            gradient = flat(p.grad for p in self.names)
            self.optimizer.step()
            seen.append((loss.item(), own, gradient, flat(self.names), self.bucket))
        return seen


def resumed(folder, **variant):
    """The steps behind the save, of an uninterrupted run and of a resumed one."""
    manager, run = CheckpointManager(folder), Run(**variant)
    run.train(0, SAVED)
    manager.save({"model": run.model, "optimizer": run.optimizer}, SAVED)
    whole, again = run.train(SAVED, STEPS), Run(**variant)
    manager.load({"model": again.model, "optimizer": again.optimizer})
    return whole, again.train(SAVED, STEPS)


def off(whole, other):
    return [(a[3] - b[3]).abs().max().item() for a, b in zip(whole, other, strict=True)]


# %%
# Everything is restored: weights, optimizer, random numbers of each rank, and the step, from which the data follow.

SUSPECTS = {
    "resumed": {},
    "resumed, no dropout": {"dropout": 0},
    "resumed, one batch for all steps": {"one_batch": True},
    "resumed, plain SGD": {"sgd": True},
}


def case(folder):
    runs = {name: resumed(f"{folder}/{name}", **kw) for name, kw in SUSPECTS.items()}
    whole, other = runs["resumed"]
    apart = {name: off(*pair) for name, pair in runs.items()}
    apart["not resumed, but run twice"] = off(Run().train(0, STEPS)[SAVED:], whole)
    return apart, whole[0], other[0], other[1]


cases = {}
with tempfile.TemporaryDirectory() as folder:
    for ranks in (2, 3, 4):
        cases[ranks] = launch(case, ranks, f"{folder}/{ranks}", quiet=True, env=ON_CPU)[0]
print("ranks   weights off after 1 step    5 steps   20 steps")
for ranks, (apart, *_) in cases.items():
    first, fifth, last = (apart["resumed"][i] for i in (0, 4, -1))
    print(f"{ranks:5}{first:27.1e}{fifth:11.1e}{last:11.1e}")
    assert (first == last == 0) == (ranks == 2)

# %%
# The suspects
# ------------
# Take each of them away, and see whether the trace goes with it.
# A program that is not deterministic would be a suspect too; it is run twice.

print("3 ranks                              weights off after 20 steps")
for name, apart in cases[3][0].items():
    print(f"{name:35}{apart[-1]:28.1e}")
    assert (apart[-1] == 0) == ("twice" in name)

# %%
# The first step, taken apart
# ---------------------------
# The loss of the first step after resuming, each rank's own gradients, and what the all-reduce made of them.

print("ranks   loss    own gradients   reduced gradients")
for ranks, (_, whole, other, _) in cases.items():
    assert whole[0] == other[0]
    assert torch.equal(whole[1], other[1])
    share = (whole[2] != other[2]).double().mean().item()
    print(f"{ranks:5}   equal   equal           {share:.1%} of the numbers differ")
    assert (share == 0) == (ranks == 2)
    record("%", **{f"share_{ranks}": 100 * share})

# %%
# Weights, data, dropout, and all else that makes a gradient are cleared: what went into the all-reduce is equal, and what came out is not.
#
# The clue
# --------
# What did the hook see?

_, whole, other, second = cases[3]
for name, seen in (
    ("uninterrupted", whole),
    ("resumed, first", other),
    ("resumed, second", second),
):
    print(f"{name:15} {' '.join(seen[4])}")
assert whole[4] == second[4] != other[4]

# %%
# The step that follows the resume reduces the same gradients in another order of parameters: DDP has not rebuilt its bucket yet.
# The second has the order of the uninterrupted run again.
#
# The proof
# ---------
# A ring all-reduce cuts the bucket into one chunk per rank, and each chunk's sum begins at a rank of its own.
# If that is the whole story, only numbers that lie in another chunk than before can have changed.
# ``chunks`` computes where gloo cuts (``ring`` in ``gloo/allreduce.cc``): two segments per chunk, rounded up.

SIZES = {name: p.numel() for name, p in network().named_parameters()}


def chunks(bucket, ranks):
    """The chunk of every number, in the order of registration; and the length of a chunk."""
    length = 2 * -(-sum(SIZES.values()) // (2 * ranks))
    places = torch.arange(sum(SIZES.values())) // length
    parts = dict(zip(bucket, places.split([SIZES[name] for name in bucket]), strict=True))
    return torch.cat([parts[name] for name in SIZES]), length


print("ranks   changed, in another chunk   changed, in the same chunk")
for ranks, (_, whole, other, _) in cases.items():
    moved = chunks(whole[4], ranks)[0] != chunks(other[4], ranks)[0]
    changed = whole[2] != other[2]
    print(f"{ranks:5}{(changed & moved).sum():28}{(changed & ~moved).sum():29}")
    assert not (changed & ~moved).any()
    record("numbers", **{f"stayed_{ranks}": int((~moved).sum())})

# %%
# Not one number changed that stayed in its chunk.
# The picture shows the bucket on three ranks before and after, with the two borders of its chunks, and a line for each number that changed.

_, whole, other, _ = cases[3]
_, length = chunks(whole[4], 3)
fig, axes = subplots(2, 1, height_in=2.4, sharex=True)
describe(fig, "The bucket of the uninterrupted step, and of the first step after resuming")
titles = "Uninterrupted", "The first step after resuming, and which numbers changed"
for ax, title, bucket in zip(axes, titles, (whole[4], other[4]), strict=True):
    left = 0
    for name in bucket:
        alpha = 0.4 if name == "3.weight" else 0.12
        ax.barh(0, SIZES[name], 0.8, left, edgecolor=INK, lw=0.6, color=ACCENT, alpha=alpha)
        if SIZES[name] > 500:
            ax.text(left + SIZES[name] / 2, 0.45, name, ha="center", fontsize=8.5)
        left += SIZES[name]
    for border in (length, 2 * length):
        ax.axvline(border, color=INK, ls="--", lw=1.4)
    ax.set(yticks=[], ylim=(-0.5, 0.85), xlim=(0, left))
    ax.set_title(title)
(changed,) = (whole[2] != other[2]).nonzero(as_tuple=True)  # other[4] is in this order
axes[1].vlines(changed, -0.4, 0.4, color=INK, lw=0.25)
axes[1].set(xlabel="number in the bucket", xticks=[0, length, 2 * length, left])

# %%
# What to notice
# --------------
#
# - Nothing is missing in the checkpoint. What differs is no state at all, but where DDP stands: a new wrapper has not rebuilt its buckets.
# - One step is enough: the second has the old order again, and starts from other weights.
# - On two ranks there is one order of additions only, because :math:`a + b = b + a`. A test on two ranks cannot see this.
#
# What this does not mean
# -----------------------
#
# That the resumed run is wrong: each of the sums is right in its order, and :doc:`/labs/checkpointing/plot_12_two_fixes` makes them equal.
# Nor that your GPUs do the same: NCCL chooses its algorithm by size and network, and cuts elsewhere (not run).
