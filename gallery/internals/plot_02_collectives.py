"""
Four collectives, before and after
==================================

What does a collective leave on each rank, and which two of them make an all-reduce?
This lab runs broadcast, all-reduce, reduce-scatter and all-gather on four ranks, and draws what each rank holds before and after.
It serves :ref:`internals-collectives`.

A collective is a contract on what every rank holds before and after; the path of the data is not part of it.
Keep in mind: an all-reduce is a reduce-scatter followed by an all-gather.

:Level: core, 8 minutes
:Proves: allreduce-is-rs-plus-ag
"""

# %%
# Every rank starts with four chunks of one number each.
# Chunk *c* of rank *r* is *c* · 10\ :sup:`r`, counted from chunk 1: rank 2 holds 100, 200, 300, 400.
# A sum then shows what is in it: in 2222 each digit is a 2, so it is the second chunk of all four ranks.

import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.apparatus.chunks import draw_chunks, my_chunks, on_device

RANKS = 4


def collectives(drawn=False):
    mine, ranks = my_chunks(), dist.get_world_size()
    if drawn:  # random numbers instead, twelve to a chunk
        draw = torch.Generator().manual_seed(dist.get_rank())
        mine = on_device(torch.randn(12 * ranks, generator=draw))

    broadcast = mine.clone()
    dist.broadcast(broadcast, src=0)  # in place: everyone gets rank 0's

    summed = mine.clone()
    dist.all_reduce(summed)  # in place: everyone gets the sum over ranks

    piece = torch.empty_like(mine.chunk(ranks)[0])
    dist.reduce_scatter(piece, list(mine.chunk(ranks)))  # rank r gets the sum of chunk r only

    gathered = [torch.empty_like(piece) for _ in range(ranks)]
    dist.all_gather(gathered, piece)  # everyone gets everyone's piece

    return {
        "mine": mine.tolist(),
        "broadcast": broadcast.tolist(),
        "all-reduce": summed.tolist(),
        "reduce-scatter": piece.tolist(),
        "all-gather": torch.cat(gathered).tolist(),
    }


held = launch(collectives, RANKS)

# %%
# What the ranks hold, in numbers.

for name in held[0]:
    print({"mine": "before"}.get(name, f"after {name}"))
    for rank, tensors in enumerate(held):
        print(f"  rank {rank}", *(f"{value:6.0f}" for value in tensors[name]))

# %%
# The same numbers as a drawing.
# A cell is a chunk; its four stripes are for ranks 0 to 3, and the digit in a stripe is the number of the chunk.
# A framed cell is complete: every rank's contribution is in it.


# drawing
from ddplab.apparatus.plotting import describe, subplots


def at(rank, piece):
    """The piece of a rank in the place where it belongs, nothing elsewhere."""
    return [piece[0] if chunk == rank else None for chunk in range(RANKS)]


before = [tensors["mine"] for tensors in held]
pieces = [at(rank, tensors["reduce-scatter"]) for rank, tensors in enumerate(held)]
panels = {
    "broadcast": (before, [tensors["broadcast"] for tensors in held]),
    "all-reduce": (before, [tensors["all-reduce"] for tensors in held]),
    "reduce-scatter": (before, pieces),
    "all-gather": (pieces, [tensors["all-gather"] for tensors in held]),
}

fig, axes = subplots(2, 4, height_in=4.1, sharey=True)
describe(fig, "What four ranks hold, chunk by chunk, before and after each collective")
for column, (name, states) in zip(axes.T, panels.items(), strict=True):
    for ax, state in zip(column, states, strict=True):
        draw_chunks(ax, state)
    column[0].set_title(name, loc="center")
    column[0].set_xlabel("↓", fontsize=14, labelpad=-2)
    column[1].set_xlabel("chunks 1 to 4")
axes[0, 0].set_ylabel("before")
axes[1, 0].set_ylabel("after")

# %%
# All-gather started from what reduce-scatter left, and ended where all-reduce did.
# An all-reduce *is* a reduce-scatter followed by an all-gather.

for tensors in held:
    assert tensors["broadcast"] == held[0]["mine"]
    assert tensors["all-reduce"] == tensors["all-gather"] == [1111, 2222, 3333, 4444]
print("all-reduce == all-gather(reduce-scatter) on every rank")

for ranks in (2, 3, 4):
    for tensors in launch(collectives, ranks, True):
        summed, gathered = map(torch.tensor, (tensors["all-reduce"], tensors["all-gather"]))
        torch.testing.assert_close(gathered, summed)  # within rounding

# %%
# What to notice
# --------------
# * Broadcast overwrites the others' state with that of one rank.
#   DDP's constructor does it with parameters and buffers, and later forwards do it with buffers.
# * All-reduce gives every rank the same sum.
#   DDP's backward does it, once per bucket, and divides by the number of ranks.
# * Reduce-scatter leaves one finished chunk on each rank, and all-gather completes it to an all-reduce.
#   Sharded training (FSDP, ZeRO) splits it here: each rank updates its own chunk, and parameters are gathered afterwards.
#
# What this does not mean
# -----------------------
# The drawing shows what a collective computes, not how the data travels.
# A ring, a tree or a switch can reach the same result; :doc:`plot_03_ring_allreduce` builds the ring.
#
# Change it: predict, then run
# ----------------------------
# Pass ``dist.ReduceOp.MAX`` as the second argument of ``dist.all_reduce(summed)``.
# Which four numbers does every rank hold?
#
# Expect: those of rank 3, which are the largest in each place; the reduce-scatter still adds, so the assertion that the two are equal fails.
#
# Say it aloud
# ------------
# "Broadcast copies one rank's data, all-reduce leaves the sum everywhere, reduce-scatter leaves each rank one finished piece, all-gather collects the pieces.
# DDP uses the all-reduce, so that every rank can update all of its parameters.
# Sharded training stops after the reduce-scatter: it holds less, and has to gather parameters again before it can compute."
