"""
A ring all-reduce, built from send and receive
==============================================

How can every rank end with the sum of all, while no rank and no link carries more than its share?
This lab builds the ring in twenty lines, draws every step of a run, counts the bytes, and compares the result with ``dist.all_reduce``.
It serves :ref:`internals-collectives`, and follows :doc:`plot_02_collectives`.

A ring cuts the tensor into one chunk per rank and passes one chunk per step, first adding, then copying.
Keep in mind: the bytes that a rank sends stay below twice the tensor, and the number of steps grows with the ranks.

:Level: core, 20 minutes
:Proves: ring-bytes ring-equals-allreduce
"""

# %%
# Ranks sit in a ring: each sends only to its right neighbor and receives only from its left one.
# The tensor is cut into as many chunks as there are ranks, and in each step every rank passes one chunk on.
# In the first p − 1 steps the receiver adds what arrives (a reduce-scatter); in the last p − 1 steps it overwrites (an all-gather).

import math

import torch
import torch.distributed as dist
from torch.distributed import P2POp, irecv, isend

from ddplab import launch, record
from ddplab.apparatus.chunks import (
    draw_chunks,
    draw_key,
    draw_ring_moves,
    my_chunks,
    on_device,
)


def ring_all_reduce(x, watch=lambda *what: None):
    """Sum ``x`` over the ranks, in place; return how many bytes this rank sent."""
    rank, p = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % p, (rank - 1) % p
    chunks = x.tensor_split(p)  # views: writing to a chunk writes to x
    nbytes = 0
    for step in range(2 * (p - 1)):
        outgoing, target = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        incoming = torch.empty_like(target)
        send, receive = P2POp(isend, outgoing, right), P2POp(irecv, incoming, left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        if step < p - 1:
            target += incoming  # reduce-scatter
        else:
            target.copy_(incoming)  # all-gather
        nbytes += outgoing.nbytes
        watch((rank - step) % p, x)
    return nbytes


# %%
# One run on four ranks, step by step.
# As in the previous lab, chunk *c* of rank *r* is *c* · 10\ :sup:`r`, so a partial sum shows what is in it.


def watched():
    x = my_chunks()
    steps = [(None, x.tolist())]
    ring_all_reduce(x, lambda sent, x: steps.append((sent, x.tolist())))
    return steps


traces = launch(watched, 4)
for step in range(1, 7):
    sent = [trace[step][0] + 1 for trace in traces]
    moves = [f"{rank}→{(rank + 1) % 4}: chunk {chunk}" for rank, chunk in enumerate(sent)]
    print(f"step {step}, {'add' if step < 4 else 'copy':4}  " + "   ".join(moves))

# %%
# The run, drawn: what the ranks hold after each step, and an arrow for each chunk that moved in it.
# An arrow that leaves below rank 3 enters above rank 0, which closes the ring.

# drawing
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots

fig, axes = subplots(2, 4, height_in=4.4)
describe(fig, "What four ranks hold at the start and after each step of a ring all-reduce")
*panels, key = axes.flat
for step, ax in enumerate(panels):
    draw_chunks(ax, [trace[step][1] for trace in traces], numbers=False, row_gap=0.2)
    ax.set(ylim=(4.2, -0.2))
    title = f"step {step}: {'add' if step < 4 else 'copy'}" if step else "start"
    ax.set_title(title, loc="center")
    if step:
        draw_ring_moves(ax, [trace[step][0] for trace in traces], row_gap=0.2)
    if step % 4:
        ax.set_yticks([])
    else:
        ax.set_xlabel("chunks 1 to 4")
draw_key(key, 4)

# %%
# Now random numbers: 1.2 million float32 values per rank, on 2, 3 and 4 ranks.
# How many bytes does each rank send, and how far is the sum from that of ``dist.all_reduce``?

ELEMENTS = 1_200_000  # divisible by 2, 3 and 4


def compare():
    torch.manual_seed(dist.get_rank())
    ours = on_device(torch.randn(ELEMENTS))
    theirs = ours.clone()
    nbytes = ring_all_reduce(ours)
    dist.all_reduce(theirs)
    return nbytes, (ours - theirs).abs().max().item()


ratio = {}
print("ranks   bytes sent per rank   ÷ tensor   2(p−1)/p   largest difference to all_reduce")
for p in (2, 3, 4):
    counted, differences = zip(*launch(compare, p, up_to=4), strict=True)
    ratio[p], difference = counted[0] / (4 * ELEMENTS), max(differences)
    sizes = f"{counted[0]:19,}   {ratio[p]:8.4f}   {2 * (p - 1) / p:8.4f}"
    print(f"{p:5}   {sizes}   {difference:32.1e}")
    assert len(set(counted)) == 1  # the same on all ranks
    assert math.isclose(ratio[p], 2 * (p - 1) / p)
    assert difference <= (0 if p == 2 else 2e-6)
    record(**{f"difference_{p}": difference})

# %%
# Why these bytes, and what they cost
# -----------------------------------
# A rank sends one chunk of *n*/p bytes in each of 2(p − 1) steps, so it sends less than 2\ *n*.
# The chapter (:ref:`internals-collectives`) derives the time if a message takes α seconds, plus 1/B for each byte:
#
# .. math::
#
#    T_\text{ring} = 2(p-1)\left(\alpha + \frac{n}{pB}\right), \qquad
#    T_\text{plain tree} = 2\lceil\log_2 p\rceil\left(\alpha + \frac{n}{B}\right) .
#
# The ring sends fewer bytes, the tree fewer messages.

P, ALPHA_S, BYTES_PER_S = 64, 10e-6, 25e9  # assumed: 10 µs per message, 200 Gbit/s
RING, TREE = (2 * (P - 1), P), (2 * math.ceil(math.log2(P)), 1)  # steps, pieces of the tensor


def ms(nbytes, steps, pieces):
    return 1e3 * steps * (ALPHA_S + nbytes / pieces / BYTES_PER_S)


# The size at which both take equally long: solve T_ring = T_tree for n.
crossing = (RING[0] - TREE[0]) * ALPHA_S * BYTES_PER_S / (TREE[0] - RING[0] / P)
assert math.isclose(ms(crossing, *RING), ms(crossing, *TREE))
record("MiB", crossing=crossing / 2**20)

# %%
# Left, bytes: the ring against the simplest plan, in which one rank collects all tensors, adds them up, and sends the sum back.
# Right, time by the two formulas.

# drawing
fig, (left, right) = subplots(1, 2, height_in=3.1)
ranks = range(2, 9)
left.plot(ranks, [p - 1 for p in ranks], color=MUTED, linestyle="--")
left.plot(ranks, [2 * (p - 1) / p for p in ranks], color=ACCENT)
left.plot(list(ratio), list(ratio.values()), "o", color=INK)
left.text(5.8, 5.1, "one rank for all: p − 1", ha="right")
left.text(8, 0.8, "ring: 2(p − 1)/p, dots counted", ha="right")
left.set(xlabel="ranks p", ylabel="bytes sent ÷ bytes of the tensor", ylim=(0, 7.4))
left.set_title("Bytes sent by the busiest rank")
sizes = [2**k / 2**20 for k in range(10, 31)]
right.loglog(sizes, [ms(mib * 2**20, *TREE) for mib in sizes], color=MUTED, ls="--")
right.loglog(sizes, [ms(mib * 2**20, *RING) for mib in sizes], color=ACCENT)
right.plot(crossing / 2**20, ms(crossing, *RING), "s", color=INK)
right.text(0.0012, 0.16, "plain tree")
right.text(0.0012, 1.6, "ring")
right.text(crossing / 2**20 * 1.5, ms(crossing, *RING) * 0.5, "equal")
right.set(xlabel="tensor in MiB", ylabel="time in ms (model)")
right.set_title("Model: 64 ranks, 10 µs, 200 Gbit/s")

# %%
# What to notice
# --------------
# * In the first half a chunk's sum grows as it travels around the ring; in the second half the finished chunk travels around once more.
# * A rank sends less than twice its tensor, on 4 ranks as on 4000, and no algorithm of this kind can send less than 2(p − 1)/p · n (Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009).
#   What grows is the number of steps: in the model the tree is faster below :measured:`ring-allreduce.crossing:.1f`.
# * So a few large messages are cheaper than many small ones, which is why DDP packs gradients into buckets.
# * On 2 ranks the ring and ``dist.all_reduce`` agree in every bit, because a + b = b + a.
#   On 3 ranks they differ by up to :measured:`ring-allreduce.difference_3:.1e`, on 4 by up to :measured:`ring-allreduce.difference_4:.1e`: the same terms, added in a different order.
#
# What this does not mean
# -----------------------
# The libraries' rings are better than this one: they cut chunks into slices that flow in a pipeline, and NCCL chooses between ring, tree and switch by size and topology.
# The right panel is a model with assumed constants, not a measurement of a machine.
#
# Change it: predict, then run
# ----------------------------
# Set ``ELEMENTS = 1_200_001``.
# On which numbers of ranks do all ranks still send equally many bytes?
#
# Expect: on two, where each rank sends both chunks once; on three the chunks differ by one element, the ranks send different ones twice, and the assertion that they send the same fails.
#
# Say it aloud
# ------------
# "In a ring every rank sends one chunk per step to its neighbor: p minus one steps to add up, p minus one to hand out.
# Each rank sends less than twice its tensor however many ranks there are, so the ring is good for large tensors.
# The price is latency: the steps grow with the ranks, and for small tensors a tree is faster."
