"""
DDP beside the alternatives
===========================

The same model and the same data, trained by DDP, by Accelerate, with ZeRO's optimizer, with FSDP2 and in the style of DataParallel: what does each hold, send and cost?
Losses are compared bit for bit, bytes are counted, and times are ratios to DDP in the same processes.
It serves :ref:`performance-alternatives`.

The alternatives differ in what each rank holds between steps: weights, gradients, the optimizer's states.
What a rank does not hold it must fetch, so bytes saved are paid for with collectives.

:Level: core, 20 minutes
:Proves: perf-accelerate-is-ddp perf-zero-halves-the-states perf-fsdp2-divides-all
"""

# %%
# Five ways to train
# ------------------
# Each makes a model and an optimizer, and a function that takes one step and returns the loss of this rank.
# DDP comes first: the loop that the others are compared with.

import statistics
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.data_parallel import data_parallel_step
from ddplab.apparatus.plotting import ACCENT, FAINT, INK, MUTED, describe, name_rows, subplots
from ddplab.apparatus.storages import storage_bytes
from ddplab.runtime.clock import now
from ddplab.runtime.needs import a_gpu_each
from ddplab.runtime.torch_private import ddp_facts, flight_records

WIDTH, LAYERS, BATCH, RANKS, STEPS = 256, 4, 64, 2, 12
ADAM = {"lr": 1e-3, "foreach": False}


def network():
    torch.manual_seed(0)
    pairs = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair)).to(device())


def adam(model):
    return torch.optim.Adam(model.parameters(), **ADAM)


def step_of(model, optimizer, backward=torch.Tensor.backward):
    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        backward(loss)
        optimizer.step()
        return loss

    return step


def ddp():
    model = DistributedDataParallel(network())
    optimizer = adam(model)
    return step_of(model, optimizer), model, optimizer


def accelerate():
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=device().type == "cpu"), network()
    model, optimizer = accelerator.prepare(model, adam(model))
    return step_of(model, optimizer, accelerator.backward), model, optimizer


def zero():
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **ADAM)
    return step_of(model, optimizer), model, optimizer.optim


def fsdp():
    model = network()
    for layer in [layer for layer in model if isinstance(layer, nn.Linear)]:
        fully_shard(layer)
    optimizer = adam(fully_shard(model))
    return step_of(model, optimizer), model, optimizer


# %%
# ``nn.DataParallel`` is one process that needs several GPUs, so it is not run; this is its *idea*, written with ranks in place of GPUs.
# Rank 0 owns the model: it hands out the weights, gathers the outputs, computes the loss alone, hands out its gradient, and collects the gradients of the weights.
#
# .. literalinclude:: /../gallery/ddplab/apparatus/data_parallel.py
#    :language: python
#    :pyobject: data_parallel_step


def data_parallel():
    model = network()
    optimizer = adam(model)  # used on rank 0 only
    return data_parallel_step(model, optimizer), model, optimizer


WAYS = {"DDP": ddp, "Accelerate": accelerate, "ZeRO optimizer": zero}
WAYS |= {"FSDP2": fsdp, "DataParallel's idea": data_parallel}

# %%
# One step of each in turn
# ------------------------
# All five live in the same processes and take their steps in turn, so that what disturbs one disturbs all.
# Bytes are those of storages, counted once, after the last step: what a rank holds *between* steps.


def worker():
    made = {name: make() for name, make in WAYS.items()}
    own = torch.Generator().manual_seed(dist.get_rank() + 1)
    losses, times, sent = ({name: [] for name in WAYS} for _ in range(3))
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=own).to(device())
        for name, (step, _, _) in made.items():
            dist.barrier()
            before, began = len(flight_records()), now()
            losses[name].append(step(x).item())
            times[name].append(1e3 * (now() - began))
            sent[name] = [(r.operation, r.elements) for r in flight_records()[before:]]
    held = {}
    for name, (_, model, optimizer) in made.items():
        parameters, buckets = list(model.parameters()), 0
        if isinstance(model, DistributedDataParallel):
            buckets = sum(map(int, ddp_facts(model)["rebuilt_bucket_sizes"].split(", ")))
        gradients = storage_bytes(p.grad for p in parameters) + buckets
        state = storage_bytes(t for entry in optimizer.state.values() for t in entry.values())
        held[name] = [storage_bytes(parameters), gradients, state]
    return losses, times, sent, held


ranks = launch(worker, RANKS, quiet=True, env=a_gpu_each(RANKS))

# %%
# The same numbers
# ----------------
# Losses of every step, on every rank.
# In the style of DataParallel only rank 0 has a loss: that of the whole batch, the mean of the ranks' losses.

of_ddp = [losses["DDP"] for losses, *_ in ranks]
mean = torch.tensor(of_ddp).mean(dim=0)
for name in WAYS:
    per_rank = [losses[name] for losses, *_ in ranks]
    same, of = per_rank == of_ddp, "DDP's, bit for bit"
    if name == "FSDP2":  # it divides after the sum; on two ranks that gives the same bits
        assert torch.allclose(torch.tensor(per_rank), torch.tensor(of_ddp))
    elif name == "DataParallel's idea":
        same, of = torch.allclose(torch.tensor(per_rank[0]), mean, rtol=1e-5), "mean of DDP's"
    first, *_, last = per_rank[0]
    print(f"{name:20} loss of rank 0: {first:.4f} … {last:.6f}   {of}: {same}")
    assert same or name == "FSDP2"

# %%
# Bytes, collectives, time
# ------------------------
# DDP's buckets are as large as the gradients, and counted with them.

print("MiB between steps       weights  gradients   Adam's   of all        time ÷")
print("                                 + buckets   states   on rank 1     DDP's")
totals, ratios, slowest = {}, {}, {}
for name in WAYS:
    held = [h[name] for *_, h in ranks]
    totals[name] = [sum(h) for h in held]
    slowest[name] = list(map(max, *(times[name] for _, times, *_ in ranks)))[4:]
    pairs = zip(slowest[name], slowest["DDP"], strict=True)
    ratios[name] = statistics.median(mine / ddps for mine, ddps in pairs)
    columns = "".join(f"{n / 2**20:10.2f}" for n in (*held[0], totals[name][1]))
    print(f"{name:20} {columns} {ratios[name]:13.2f}")
    key = name.split()[0].split("'")[0].lower()
    record(**{f"{key}_time": ratios[name]})
    record("MiB", **{f"{key}_held": totals[name][0] / 2**20})
for name in WAYS:
    sent = Counter(operation for operation, _ in ranks[0][2][name])
    print(f"{name:20} " + ", ".join(f"{n} {operation}" for operation, n in sent.items()))

G = 4 * LAYERS * (WIDTH + 1) * WIDTH
steps = 4 * 2 * LAYERS  # Adam's own counters, one number per tensor
for *_, held in ranks:
    assert held["DDP"] == held["Accelerate"] == [G, 2 * G, 2 * G + steps]
    assert held["ZeRO optimizer"] == [G, 2 * G, G + steps // RANKS]  # equal layers and halves
    assert held["FSDP2"] == [G // RANKS, G // RANKS, 2 * G // RANKS + steps]
assert totals["DataParallel's idea"] == [4 * G + steps, 2 * G]

# %%

# drawing
fig, (left, right) = subplots(1, 2, height_in=2.6, sharey=True)
describe(fig, "Bytes held between steps and time of a step, for five ways to train")
looks = (MUTED, ""), (FAINT, ""), (ACCENT, "///")
for row, name in enumerate(WAYS):
    start, held = 0, ranks[0][-1][name]
    for n, (color, hatch) in zip(held, looks, strict=True):
        left.barh(row, n / 2**20, left=start, color=color, hatch=hatch, ec=INK, lw=0.6)
        start += n / 2**20
    right.barh(row, ratios[name], color=MUTED, ec=INK, lw=0.6)
    right.text(ratios[name], row, f" {ratios[name]:.1f}", va="center")
name_rows(left, list(WAYS))
left.set_xlabel("MiB on rank 0: weights, gradients, states", fontsize=9)
right.set_xlabel("time of a step ÷ DDP's", fontsize=9)
left.set_title("What a rank holds", fontsize=9.5)
right.set_title("What a step costs, here", fontsize=9.5)

# %%
# What to notice
# --------------
#
# - Accelerate's wrapper *is* DDP with default options: the same bytes and bits, and :measured:`wrappers-compared.accelerate_time:.2f` times its time.
# - ZeRO's optimizer keeps the states of its own share of the parameters and broadcasts what it has updated: :measured:`wrappers-compared.zero_held:.2f` instead of :measured:`wrappers-compared.ddp_held:.2f`, for one broadcast per parameter.
# - FSDP2 divides weights, gradients and states, :measured:`wrappers-compared.fsdp2_held:.2f`, and gathers each layer twice per step, for the forward and again for the backward.
# - In the style of DataParallel, rank 0 holds and does more than the others, and everything passes through it.
#
# What this does not mean
# -----------------------
#
# That FSDP2 is this much slower: the layers are tiny, ranks share a machine, and gloo does its reduce-scatter as an all-reduce of everything (the recorder shows it where the ranks use gloo); NCCL has the real one.
# That bytes *between* steps are the peak: activations, the layer that FSDP2 has just gathered, and what an allocator keeps are extra.
# The last row is an idea, not ``nn.DataParallel``, which has threads in place of processes, and Python's lock between them.
#
# Change it: predict, then run
# ----------------------------
# Set ``RANKS`` to 4.
# Which rows hold less on rank 0, and how much?
#
# Expect: ZeRO's states and FSDP2's whole row are divided by four; the assertion on ZeRO, written for halves, fails.
#
# Say it aloud
# ------------
# "With DDP every rank holds everything and a step sends each gradient once.
# ZeRO's optimizer divides the states, FSDP also weights and gradients, and gathers each layer when it is needed.
# Sharding trades memory for communication, so I use DDP as long as the model fits."
