"""
From one rank to two
====================

How much faster are two ranks than one, and than one of what?
This lab times the program without DDP first, then four ways to use a second rank, in turn.
It serves :ref:`performance-scaling`.

:Level: evidence, 12 minutes
"""

# %%
# Five ways to make a step
# ------------------------
# The base is the plain loop in one process: no wrapper, no group.
# Each rank computes with one thread, because one process that takes all cores is another base.
# ``apart`` is the control: two plain loops at once, which send nothing and share only the machine.

import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.gaps import flat_weights
from ddplab.runtime.clock import now

WIDTH, LAYERS, BATCH, ROUNDS, WARM = 512, 4, 256, 23, 3
WAYS = {  # ranks, samples per rank, under DDP
    "one process, no DDP": (1, BATCH, False),
    "one rank of DDP": (1, BATCH, True),
    "two processes, apart": (2, BATCH, False),
    "two ranks, as many each": (2, BATCH, True),
    "two ranks, half each": (2, BATCH // 2, True),
}


def build(group):
    """A model with the same weights everywhere, its optimizer; under DDP if there is a group."""
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers).to(device())
    if group:
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def one_step(model, optimizer, x):
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()


def worker():
    torch.set_num_threads(1)
    rank, groups = dist.get_rank(), {1: dist.new_group([0]), 2: dist.new_group([0, 1])}
    mine = {way: how for way, how in WAYS.items() if rank < how[0]}
    models = {way: build(groups[n] if ddp else None) for way, (n, _, ddp) in mine.items()}
    times = {way: [] for way in WAYS}
    for round_ in range(ROUNDS):
        x = torch.randn(2 * BATCH, WIDTH, generator=torch.Generator().manual_seed(round_))
        for way, (_, samples, _) in WAYS.items():
            own = x[rank * samples :][:samples].to(device())
            dist.barrier()  # rank 1 has nothing to do where one process is timed
            began = now()
            if way in mine:
                one_step(*models[way], own)
            times[way].append(now() - began)
    return times, {way: flat_weights(model) for way, (model, _) in models.items()}


(times, weights), (others, _) = launch(worker, 2, quiet=True)

# %%
# Samples per second
# ------------------
# A step is as long as on its slower rank; the table has medians.

base = 0.0
found = {}
print("                           samples       ms   samples   times")
print("                          per step     step  per second  the base")
for way, (ranks, samples, _) in WAYS.items():
    both = zip(times[way], others[way], strict=True)
    step_s = statistics.median([max(one) for one in both][WARM:])
    rate = ranks * samples / step_s
    base = base or rate
    found[way] = rate / base
    print(f"{way:24} {ranks * samples:9} {1e3 * step_s:8.1f} {rate:10,.0f} {found[way]:9.2f}")
record(alone=found["one rank of DDP"], apart=found["two processes, apart"])
record(weak=found["two ranks, as many each"], strong=found["two ranks, half each"])

# %%
# A fast step that trains something else proves nothing: with half of the batch on each rank the weights must be those of the base.

plain, halves = (weights[way] for way in ("one process, no DDP", "two ranks, half each"))
gap = (plain - halves).abs().max().item()
print(f"after {ROUNDS} steps the weights are at most {gap:.0e} apart")
assert gap < 1e-4
record(gap=gap)

# %%
# What to notice
# --------------
#
# - Two processes that share nothing but the machine do :measured:`one-to-two-ranks.apart:.2f` times the work of one: that is what the hardware gives, and DDP cannot have more.
# - With as many samples on each rank, two ranks do :measured:`one-to-two-ranks.weak:.2f` times the base; with half of them, :measured:`one-to-two-ranks.strong:.2f` times: the same bytes for half the computing.
#
# What this does not mean
# -----------------------
#
# That two GPUs give this factor: here the ranks share a memory, and a gradient crosses no wire.
#
# Change it: predict, then run
# ----------------------------
# Take a quarter of the samples, and then four times as many.
# Which of the last two factors moves more, and towards what?
