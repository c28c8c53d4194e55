"""
Loops that people bring along
=============================

Code that trains on several GPUs is copied more often than it is written.
What do its best known habits do in DDP's terms: nanoGPT's switch, the old tutorial's ``average_gradients``, and the ways in which frameworks deal samples to ranks?
It serves :ref:`coming-from`.

A habit is as good as what it does to two things: the gradient that ``step()`` sees, and the samples that each rank sees.
Keep both in mind and any framework's loop can be read.

:Level: core, 15 minutes
"""

# %%
# nanoGPT's switch
# ----------------
# nanoGPT sets ``model.require_backward_grad_sync`` before each forward, false on all micro-batches but the last, where the documentation of DDP has ``no_sync()``.
# Both run here on two ranks, four micro-batches each, once undisturbed and once with a micro-batch that raises an exception and is skipped.

import contextlib
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.runtime.torch_private import flight_records

MICRO = 4


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device())


def micro_batches():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(8, 16, generator=generator).to(device()) for _ in range(MICRO)]


def accumulate(model, habit, broken=None):
    for i, x in enumerate(micro_batches()):
        last = i == MICRO - 1
        if habit == "switch":
            model.require_backward_grad_sync = last
        quiet = habit == "no_sync()" and not last
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = model(x).square().mean() / MICRO
            if i == broken:
                raise ValueError("a bad sample")
            loss.backward()


def allreduces():
    return sum(entry.operation == "all_reduce" for entry in flight_records())


def compare(habit):
    model = DistributedDataParallel(build())
    for x in micro_batches()[:2]:  # the second forward rebuilds the buckets
        model(x).sum().backward()
    model.zero_grad()
    before = allreduces()
    accumulate(model, habit)
    issued, right = allreduces() - before, flat_gradients(model)

    model.zero_grad()
    with contextlib.suppress(ValueError):
        accumulate(model, habit, broken=1)
    model.zero_grad()
    # An ordinary step, that touches no switch.
    model(micro_batches()[0]).square().mean().backward()
    return right, issued, flat_gradients(model)


print("2 ranks, 4 micro-batches  all-reduces  gap between ranks  gap after an exception")
seen = {}
for habit in ("no_sync()", "switch"):
    one, two = launch(compare, 2, habit, quiet=True)
    right, issued, _ = one
    apart, after = gap([right, two[0]]), gap([one[2], two[2]])
    seen[habit] = (right, issued, apart)
    print(f"{habit:24}  {issued:11}  {apart:17g}  {after:22.4f}")
    assert (after > 0) == (habit == "switch")
assert seen["switch"][1:] == seen["no_sync()"][1:] == (1, 0)
assert torch.equal(seen["switch"][0], seen["no_sync()"][0])

# %%
# The old tutorial's average_gradients
# ------------------------------------
# An all-reduce for each parameter after the backward, then a division: beside DDP on three ranks, and with a layer that the forward leaves out.


def average_gradients(net):
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def by_hand_and_by_ddp():
    x, net = micro_batches()[0], build()
    net(x).square().mean().backward()
    before = allreduces()
    average_gradients(net)
    by_hand, calls = flat_gradients(net), allreduces() - before
    model = DistributedDataParallel(build())
    model(x).square().mean().backward()

    skipped = build()
    skipped[0](x).square().mean().backward()  # the last layer takes no part
    try:
        average_gradients(skipped)
    except TypeError as error:
        return gap([by_hand, flat_gradients(model)]), calls, str(error)


apart, calls, error = launch(by_hand_and_by_ddp, 3, quiet=True)[0]
print(f"furthest from DDP's gradient  {apart:.0e}, with {calls} all-reduces for 4 parameters")
print(f"with a layer left out         TypeError: {error[:56]} …")
assert apart < 1e-7
assert calls == 4

# %%
# Who is dealt which samples
# --------------------------
# Ten samples, four ranks, batches of two where batches are dealt.
# Each line repeats a rule in a line of ours: the sampler is torch's, ``examples`` is how ``split_dataset_by_node`` treats a stream whose shards do not divide by the ranks, and ``batches`` how Accelerate deals the batches of a loader (``even_batches=True``).

from torch.utils.data import DistributedSampler

SAMPLES, RANKS = range(10), 4


def sampler(rank, **options):
    return list(DistributedSampler(SAMPLES, RANKS, rank, shuffle=False, **options))


def batches(rank, size=2):
    dealt = [SAMPLES[i : i + size] for i in SAMPLES[::size]]
    # From the start again, until all ranks have as many.
    again = dealt + dealt[: -len(dealt) % RANKS]
    return [sample for batch in islice(again, rank, None, RANKS) for sample in batch]


RULES = {
    "DistributedSampler": sampler,
    "… drop_last=True": lambda rank: sampler(rank, drop_last=True),
    "examples": lambda rank: list(islice(SAMPLES, rank, None, RANKS)),
    "batches": batches,
}
print(f"{'':20} rank 0      rank 1      rank 2      rank 3      twice  never")
for name, rule in RULES.items():
    shares = [rule(rank) for rank in range(RANKS)]
    dealt = [sample for share in shares for sample in share]
    twice, never = len(dealt) - len(set(dealt)), len(set(SAMPLES) - set(dealt))
    rows = "".join(f"{' '.join(map(str, share)):12}" for share in shares)
    print(f"{name:20} {rows}{twice:5}  {never:5}")
    assert (len({len(share) for share in shares}) > 1) == (name == "examples")

# %%
# What to notice
# --------------
# - The switch and ``no_sync()`` give the same bits: the context sets the same attribute.
#   But the context also sets it back: after an exception the switch stays off, and a step that does not touch it trains on unaveraged gradients, without a message.
# - ``average_gradients`` gives DDP's gradient within rounding, for an all-reduce per parameter that begins when the backward is over; a parameter without a gradient ends it on that rank.
# - Only ``examples`` gives ranks different numbers of samples: without :ref:`Join <internals-join>` or a common stop the ranks with fewer leave first, and the others wait.
#   Of the rest each repeats samples or leaves some out.
#
# What this does not mean
# -----------------------
# That the frameworks were run: their rules are repeated here in code of ours, read in the versions that :ref:`coming-from` names.
#
# Change it: predict, then run
# ----------------------------
# In ``compare`` let the broken micro-batch be the last one: ``broken=3``.
# Do the ranks still diverge?
#
# Expect: no, because the switch was already back on; the assertion that they do fails.
#
# Say it aloud
# ------------
# "nanoGPT's switch is ``no_sync`` without its ``finally``: the same gradient, one all-reduce per step instead of one per micro-batch.
# I keep the switch where nothing is caught, and the context where an exception may be survived; the price of the context is one more level of indentation."
