"""
DDP beside the alternatives
===========================

The same model and the same data, trained by DDP, by Accelerate, with ZeRO's optimizer, with FSDP2 and in the manner of DataParallel: what does each hold, send and cost?
Losses are compared bit for bit, bytes are counted, and times are given as ratios to DDP in the same processes.
It serves :ref:`performance-alternatives`.
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
from ddplab.labs.plotting import ACCENT, FAINT, INK, MUTED, describe, subplots
from ddplab.runtime.clock import now
from ddplab.runtime.needs import a_gpu_each
from ddplab.runtime.torch_private import ddp_facts, flight_records

WIDTH, LAYERS, BATCH, RANKS, STEPS = 256, 4, 64, 2, 12
ADAM = {"lr": 1e-3, "foreach": False}


def network():
    torch.manual_seed(0)
    parts = [p for _ in range(LAYERS) for p in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*parts).to(device())


def plain_step(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def ddp():
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    return plain_step(model, optimizer), model, optimizer


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device().type == "cpu")
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), **ADAM))

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        return loss

    return step, model, optimizer


def zero():
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **ADAM)
    return plain_step(model, optimizer), model, optimizer.optim


def fsdp():
    model = network()
    for layer in [part for part in model if isinstance(part, nn.Linear)]:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    return plain_step(model, optimizer), model, optimizer


# %%
# ``nn.DataParallel`` is one process that needs several GPUs, so it is not run; this is its *idea*, written with ranks in place of GPUs.
# Rank 0 owns the model: it hands out the weights, gathers the outputs, computes the loss alone, hands out its gradient, and collects the gradients of the weights.


def data_parallel():
    model, world = network(), dist.get_world_size()
    first, parameters = dist.get_rank() == 0, list(model.parameters())
    optimizer = torch.optim.Adam(parameters, **ADAM)  # used on rank 0 only

    def gathered(part):
        parts = [torch.empty_like(part) for _ in range(world)] if first else None
        dist.gather(part, parts)
        return torch.cat(parts) if first else None

    def step(x):
        target = gathered(x)  # rank 0 would have loaded the whole batch and scattered it
        for p in parameters:
            dist.broadcast(p.data, 0)
            p.grad = None
        out = model(x)
        outs = gathered(out.detach())
        loss, slopes, mine = torch.zeros(()), None, torch.empty_like(out)
        if first:
            loss = (outs.requires_grad_() - target).square().mean()
            slopes = list(torch.autograd.grad(loss, outs)[0].chunk(world))
        dist.scatter(mine, slopes)
        out.backward(mine)
        for p in parameters:
            dist.reduce(p.grad, 0)
        if first:
            optimizer.step()
        return loss

    return step, model, optimizer


WAYS = {"DDP": ddp, "Accelerate": accelerate, "ZeRO optimizer": zero}
WAYS |= {"FSDP2": fsdp, "DataParallel's idea": data_parallel}


# %%
# One step of each in turn
# ------------------------
# All five live in the same processes and take their steps in turn, so that what disturbs one disturbs all.
# Bytes are those of storages, counted once, behind the last step: what a rank holds *between* steps.


def nbytes(tensors):
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors if t is not None)
    return sum(
        {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values()
    )


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
        gradients = nbytes(p.grad for p in parameters) + buckets
        state = [t for entry in optimizer.state.values() for t in entry.values()]
        held[name] = [nbytes(parameters), gradients, nbytes(state)]
    return losses, times, sent, held


ranks = launch(worker, RANKS, quiet=True, env=a_gpu_each(RANKS))

# %%
# The same numbers
# ----------------
# Losses of every step, on every rank.
# In the manner of DataParallel only rank 0 has a loss: that of the whole batch, the mean of the ranks' losses.

mean = torch.tensor([losses["DDP"] for losses, *_ in ranks]).mean(dim=0)
for name in WAYS:
    per_rank = [losses[name] for losses, *_ in ranks]
    if name == "DataParallel's idea":
        same, of = torch.allclose(torch.tensor(per_rank[0]), mean, rtol=1e-5), "mean of DDP's"
    else:
        same, of = per_rank == [losses["DDP"] for losses, *_ in ranks], "DDP's, bit for bit"
        if name == "FSDP2":  # it divides behind the sum; on two ranks that gives the same bits
            assert torch.allclose(
                torch.tensor(per_rank), torch.tensor([r[0]["DDP"] for r in ranks])
            )
    print(
        f"{name:20} loss of rank 0: {per_rank[0][0]:.4f} … {per_rank[0][-1]:.6f}   {of}: {same}"
    )
    assert same or name == "FSDP2"

# %%
# Bytes, collectives, time
# ------------------------
# DDP's buckets are as large as the gradients, and counted with them.

print("MiB between steps       weights  gradients   Adam's   of all        time ÷")
print("                                 + buckets   states   on rank 1     DDP's")
totals, ratios = {}, {}
for name in WAYS:
    held = [h[name] for *_, h in ranks]
    totals[name] = [sum(h) for h in held]
    slowest = [
        max(step) for step in zip(*(times[name] for _, times, *_ in ranks), strict=True)
    ]
    base = [max(step) for step in zip(*(times["DDP"] for _, times, *_ in ranks), strict=True)]
    ratios[name] = statistics.median(a / b for a, b in zip(slowest[4:], base[4:], strict=True))
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
assert totals["DDP"] == totals["Accelerate"] == [5 * G + steps] * RANKS
assert (
    totals["ZeRO optimizer"] == [4 * G + steps // RANKS] * RANKS
)  # equal layers: equal halves
assert totals["FSDP2"] == [4 * G // RANKS + steps] * RANKS
assert totals["DataParallel's idea"] == [4 * G + steps, 2 * G]

fig, (left, right) = subplots(1, 2, height_in=2.6, sharey=True)
describe(fig, "Bytes held between steps and time of a step, for five ways to train")
for row, name in enumerate(WAYS):
    start, held = 0, ranks[0][-1][name]
    for n, (color, hatch) in zip(
        held, ((MUTED, ""), (FAINT, ""), (ACCENT, "///")), strict=True
    ):
        left.barh(row, n / 2**20, left=start, color=color, hatch=hatch, ec=INK, lw=0.6)
        start += n / 2**20
    right.barh(row, ratios[name], color=MUTED, ec=INK, lw=0.6)
    right.text(ratios[name], row, f" {ratios[name]:.1f}", va="center")
left.set_yticks(range(len(WAYS)), WAYS)
left.invert_yaxis()
left.set_xlabel("MiB on rank 0: weights, gradients, states", fontsize=9)
right.set_xlabel("time of a step ÷ DDP's", fontsize=9)
left.set_title("What a rank holds", fontsize=9.5)
right.set_title("What a step costs, here", fontsize=9.5)

# %%
# What to notice
# --------------
#
# - Accelerate's wrapper *is* DDP with default options: the same bytes and bits, and :measured:`wrappers-compared.accelerate_time:.2f` times its time.
# - ZeRO's optimizer keeps the states of its own share of the parameters and broadcasts what it has updated: :measured:`wrappers-compared.zero_held:.2f` in place of :measured:`wrappers-compared.ddp_held:.2f`, for one broadcast per parameter.
# - FSDP2 divides weights, gradients and states, :measured:`wrappers-compared.fsdp2_held:.2f`, and gathers each layer twice per step, for the forward and again for the backward.
# - In the manner of DataParallel rank 0 holds and does more than the others, and everything passes through it.
#
# What this does not mean
# -----------------------
#
# That FSDP2 is this much slower: the layers are tiny, ranks share a machine, and gloo does its reduce-scatter as an all-reduce of everything (the recorder shows it where the ranks use gloo); NCCL has the real one.
# That bytes *between* steps are the peak: activations, the layer that FSDP2 has just gathered, and what an allocator keeps come on top.
# And the last row is an idea, not ``nn.DataParallel``: that has threads in place of processes, and Python's lock between them.
