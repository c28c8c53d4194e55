"""
Who gets the SMs
================

How much slower does a backward get while communication occupies some of the GPU's SMs?
It serves :ref:`gpu-sm`.

A collective is a kernel: its blocks occupy SMs, and its bytes use the memory bandwidth of the kernels beside it.
Overlap is free only as far as the two need different things.

:Level: deep, 15 minutes
"""

# %%
# What it will show
# -----------------
# A copy kernel with a chosen number of thread blocks runs beside products of matrices, as NCCL's kernels run beside a backward.
# The table has a row per number of blocks: the rate of the copy alone, the products alone, and the products beside the copy.
# Few blocks copy slowly and disturb little; from some number on, more blocks copy no faster and take SMs from the products.
# On several GPUs a real all-reduce takes the place of the copy, with ``NCCL_MAX_CTAS`` as the number of blocks.

import math

import torch
import torch.distributed as dist

from ddplab import device, launch, record
from ddplab.apparatus.copy_kernel import copy_on
from ddplab.apparatus.gpu import gpu_times_ms, needs_gpus
from ddplab.apparatus.plotting import ACCENT, INK, describe, log_axis, subplots
from ddplab.runtime.clock import now, seconds, stamp

SIZE = 4096
PRODUCTS = 10
COPY_MIB = 64
BLOCKS = (1, 2, 4, 8, 16, 32, 64)


def beside(work, other, rounds=7):
    """Median ms of ``work`` while ``other`` runs in another stream, and how often that lasted longer."""
    side, times, covered = torch.cuda.Stream(), [], 0
    for _ in range(rounds):
        now()
        with torch.cuda.stream(side):
            other()
            other_ended = stamp()
        before = stamp()
        work()
        after = stamp()
        now()
        times.append(1e3 * seconds(before, after))
        covered += seconds(after, other_ended) >= 0
    return sorted(times)[rounds // 2], covered / rounds


def products(here):
    torch.set_float32_matmul_precision("high")
    a, b = (torch.rand(SIZE, SIZE, device=here) for _ in range(2))

    def work():
        for _ in range(PRODUCTS):
            a @ b

    return work


def worker():
    here = device()
    work = products(here)
    source = torch.rand(COPY_MIB * 2**18, device=here)
    target = torch.empty_like(source)
    alone_ms = gpu_times_ms({"": work}, rounds=7)[""]
    rows = []
    for blocks in BLOCKS:
        copy_ms = gpu_times_ms({"": lambda n=blocks: copy_on(n, source, target, 1)}, rounds=5)[
            ""
        ]
        long = math.ceil(3 * alone_ms / copy_ms)
        both_ms, covered = beside(work, lambda n=blocks, r=long: copy_on(n, source, target, r))
        rows.append((blocks, 2 * source.nbytes / copy_ms / 1e6, both_ms, covered))
    return torch.cuda.get_device_properties().multi_processor_count, alone_ms, rows


# %%
# The real one: as many all-reduces as last longer than the products.


def real():
    here = device()
    work = products(here)
    buffer = torch.zeros(COPY_MIB * 2**18, device=here)
    alone_ms = gpu_times_ms({"": work}, rounds=7)[""]
    reduce_ms = gpu_times_ms({"": lambda: dist.all_reduce(buffer)}, rounds=7)[""]
    share = torch.tensor(3 * alone_ms / reduce_ms)
    slowest = share.to(here)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)  # all ranks must make the same number
    count = math.ceil(slowest.item())
    both_ms, covered = beside(work, lambda: [dist.all_reduce(buffer) for _ in range(count)])
    return reduce_ms, alone_ms, both_ms, covered


# %%
# Run it
# ------

gpus = needs_gpus()
sms, alone_ms, rows = launch(worker, 1, quiet=True)[0]
print(f"{sms} SMs; products alone {alone_ms:.2f} ms")
print("blocks   copy GB/s   products ms   slower by   copy lasted longer")
for blocks, rate, both_ms, covered in rows:
    print(
        f"{blocks:6} {rate:11.0f} {both_ms:13.2f} {both_ms / alone_ms - 1:11.1%} {covered:12.0%}"
    )
if gpus > 1:
    for ctas in ("1", "4", "16", ""):
        env = {"NCCL_MAX_CTAS": ctas} if ctas else {}
        reduce_ms, real_alone_ms, both_ms, covered = launch(real, gpus, env=env, quiet=True)[0]
        print(
            f"NCCL_MAX_CTAS={ctas or 'unset':5} all-reduce {reduce_ms:.2f} ms, "
            f"products slower by {both_ms / real_alone_ms - 1:.1%} ({covered:.0%} covered)"
        )

# %%

# drawing
fig, (left, right) = subplots(1, 2, height_in=2.5)
describe(fig, "Rate of the copy, and slowdown of the products, against the blocks of the copy")
count = [blocks for blocks, *_ in rows]
left.plot(count, [rate for _, rate, *_ in rows], "o-", color=ACCENT)
right.plot(count, [100 * (both / alone_ms - 1) for _, _, both, _ in rows], "o-", color=INK)
for ax, title in ((left, "Copy alone, GB/s"), (right, "Products slower by, %")):
    log_axis(ax.xaxis, count)
    ax.set(xlabel="thread blocks of the copy")
    ax.set_title(title)

# %%
# Takeaway
# --------

most = max(rate for _, rate, *_ in rows)
enough, _, both_ms, _ = next(row for row in rows if row[1] >= 0.9 * most)
slower = {blocks: 100 * (both / alone_ms - 1) for blocks, _, both, _ in rows}
print(
    f"{enough} blocks reach 90 % of the highest copy rate and slow the products by {slower[enough]:.1f} %."
)
expected = 100 * enough / max(1, sms - enough)
more = "more" if slower[enough] > expected else "less"
print(
    f"The SMs alone would explain {expected:.1f} %; it is {more}: memory bandwidth is shared, too."
)
record("%", slower=slower[enough], expected=expected)
record(enough=enough, sms=sms)

# %%
# Change it: predict, then run
# ----------------------------
# Replace the products by ``a + b``, which waits for memory and not for arithmetic.
# Does one block of the copy disturb it more than it disturbs the products?
#
# What this does not mean
# -----------------------
# That NCCL needs so many blocks: between GPUs the link and not the copy sets the rate.
#
# Say it aloud
# ------------
# "An all-reduce that overlaps with the backward takes SMs and memory bandwidth from it.
# So communication that is hidden still makes the backward longer.
# More blocks move the bytes faster until the link is full; fewer leave more of the GPU to the backward."
