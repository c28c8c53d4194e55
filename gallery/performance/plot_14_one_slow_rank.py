"""
What a slow rank costs everyone
===============================

One of your ranks is slower by 40 ms in each step, or every rank is sometimes slow: how much longer does a step take?
This lab sleeps on purpose, measures every rank's step and wait, and compares them with what follows from one sentence: no rank ends a step before the last rank has started its last all-reduce.
It serves :ref:`performance-stragglers`; how to find the slow one is in :doc:`/labs/debugging/plot_19_straggler`.

No rank ends a step before the last one has launched its last all-reduce, so all take as long as the slowest.
The slow rank is the one that waits least.

:Level: core, 15 minutes
:Proves: perf-everyone-waits-for-the-last
"""

# %%
# The step
# --------
# A rank sleeps instead of computing: sleeping ranks do not compete for cores.
# Its backward launches one bucket; a hook notes the time.
# From then until ``backward()`` returns the rank *waits*, for the link and for whichever rank is late.

import random
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.plotting import INK, MUTED, RANK_COLORS, describe, subplots


def worker(sleeps_s):
    """Each entry of ``sleeps_s`` is a step: the seconds that each rank works in it."""
    model, launched_s = DistributedDataParallel(nn.Linear(64, 64).to(device())), []

    def hook(state, bucket):
        launched_s.append(time.perf_counter())
        mean = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(mean, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)
    x, steps, stamps = torch.ones(4, 64, device=device()), [], []
    for step_s in [sleeps_s[0], sleeps_s[0], *sleeps_s]:
        began_s = time.perf_counter()
        time.sleep(step_s[dist.get_rank()])
        model(x).sum().backward()
        returned_s = time.perf_counter()
        model.module.weight.grad.sum().item()  # on a GPU: until it is done
        ended_s = time.perf_counter()
        steps.append((1e3 * (ended_s - began_s), 1e3 * (ended_s - launched_s[-1])))
        stamps.append(
            (launched_s[-1], ended_s if "nccl" in dist.get_backend() else returned_s)
        )
    return steps[2:], stamps


def steps_of(ranks, plan, **options):
    """The steps of each rank, none of which ended before the last rank had launched."""
    found = launch(worker, ranks, plan, quiet=True, **options)
    for stamps in zip(*(stamps for _, stamps in found), strict=True):
        launched, ended = zip(*stamps, strict=True)
        assert max(launched) < min(ended)
    return [steps for steps, _ in found]


# %%
# One slow rank
# -------------
# Four ranks work for 10 ms; rank 1 works :math:`t` longer in every step.
# Derived: every rank's step grows by :math:`t`, and every rank but the slow one waits :math:`t` longer.

BASE_S, SLOW, EXTRA_MS = 0.010, 1, (0, 20, 40, 80)
medians = {}
print("       step of each rank (ms)              waiting of each rank (ms)")
for extra in EXTRA_MS:
    plan = [[BASE_S + 1e-3 * extra * (rank == SLOW) for rank in range(4)]] * 12
    ranks = steps_of(4, plan)
    assert all(sum(step for step, _ in steps) > 10 * extra for steps in ranks)  # of 12 steps
    rows = [[statistics.median(c) for c in zip(*steps, strict=True)] for steps in ranks]
    step, wait = ("  ".join(f"{ms:6.1f}" for ms in c) for c in zip(*rows, strict=True))
    print(f"t={extra:2}   {step}      {wait}")
    medians[extra] = rows
slowest = {extra: max(step for step, _ in rows) for extra, rows in medians.items()}
fitted = statistics.linear_regression(EXTRA_MS, list(slowest.values())).slope
record(slope=fitted)
record("ms", fast_waits=medians[80][0][1], slow_waits=medians[80][SLOW][1])

# %%
# Every rank sometimes slow
# -------------------------
# Now each rank's work is 10 ms and a random delay of its own, exponential with a mean of 10 ms.
# In the long run no rank is slower than another, but each step takes as long as its slowest rank.
# Derived: the largest of :math:`p` such delays has the mean :math:`\mu\,(1 + \tfrac12 + \dots + \tfrac1p)`.
# The *realized* maximum is that of the delays that were drawn.
# Steps with and without a delay take turns, and growth is measured against the median of those without.

MEAN_S, ROUNDS, SIZES = 0.010, 30, (1, 2, 4, 8)
draw = random.Random(1)
delays = [[draw.expovariate(1 / MEAN_S) for _ in range(max(SIZES))] for _ in range(ROUNDS)]
print("ranks   mean delay   mean of the largest (ms)      step longer")
print("        of a rank    derived    realized           by, measured")
derived, measured = [], []
for p in SIZES:
    plan = [step for late in delays for step in ([BASE_S] * p, [BASE_S + d for d in late[:p]])]
    ranks = steps_of(p, plan, up_to=max(SIZES))
    steps = [max(step) for step in zip(*([s for s, _ in r] for r in ranks), strict=True)]
    derived.append(1e3 * MEAN_S * sum(1 / k for k in range(1, p + 1)))
    realized = 1e3 * statistics.mean(max(step[:p]) for step in delays)
    mean = 1e3 * statistics.mean(d for step in delays for d in step[:p])
    measured.append(statistics.mean(steps[1::2]) - statistics.median(steps[::2]))
    print(f"{p:5} {mean:10.1f} {derived[-1]:12.1f} {realized:11.1f} {measured[-1]:18.1f}")
    record("ms", **{f"derived_{p}": derived[-1], f"realized_{p}": realized})
    record("ms", **{f"measured_{p}": measured[-1]})
assert derived == sorted(derived)

# %%
# Left: the four ranks' steps against the delay of one of them.
# Right: the step's growth against the number of ranks, when all are late at random.

# drawing
fig, (left, right) = subplots(1, 2, height_in=3.0)
describe(fig, "Step time against the delay of one rank, and against the number of late ranks")
left.plot(EXTRA_MS, [1e3 * BASE_S + t for t in EXTRA_MS], color=INK, lw=1, label="10 ms + t")
for rank in range(4):
    look = {"color": RANK_COLORS[rank], "marker": "os^v"[rank], "ms": 5, "ls": ""}
    x, y = zip(*((t + 1.5 * rank - 2, medians[t][rank][0]) for t in EXTRA_MS), strict=True)
    left.plot(x, y, label=f"rank {rank}", **look)
left.set(xlabel="delay t of rank 1 (ms)", ylabel="step (ms)", ylim=(0, None))
left.legend(fontsize=8.5)
left.set_title("Everyone pays t", fontsize=9.5)
right.plot(SIZES, derived, color=INK, lw=1, label="derived: mean × (1 + 1/2 + … + 1/p)")
right.plot(SIZES, measured, "o", color=INK, label="measured")
right.axhline(1e3 * MEAN_S, color=MUTED, lw=1, ls=":")
place = {"ha": "right", "va": "bottom", "fontsize": 8.5}
right.text(SIZES[-1], 1e3 * MEAN_S, "mean delay of a rank", **place)
right.set(xlabel="ranks", ylabel="step longer by (ms)", ylim=(0, None), xticks=SIZES)
right.legend(fontsize=8.5, loc="lower right")
right.set_title("The more ranks, the later the last", fontsize=9.5)

# %%
# What to notice
# --------------
#
# - The step of *all* ranks grows by :measured:`one-slow-rank.slope:.2f` ms per ms of delay of *one*.
# - With 80 ms of delay rank 0 waits :measured:`one-slow-rank.fast_waits:.0f` in its backward, and rank 1, which causes the delay, :measured:`one-slow-rank.slow_waits:.0f`: the profile of the fast ranks shows "communication" that no faster link would shorten.
# - Random delays that average 10 ms cost two ranks :measured:`one-slow-rank.measured_2:.0f` per step, and eight ranks :measured:`one-slow-rank.measured_8:.0f`.
#
# What this does not mean
# -----------------------
#
# That delays on your cluster are exponential or independent: a heavier tail costs more, and a file system that is slow for everybody costs only its mean.
# Nor is the wait always lost: ranks that are late in *different* places of a step can catch up where work overlaps; here a step has one bucket, and nothing overlaps.
#
# Change it: predict, then run
# ----------------------------
# Make two ranks slow: ``rank <= SLOW``.
# Does the step grow by t or by 2t, and how long does rank 0 wait?
#
# Expect: by t, as before, and rank 0 waits as little as rank 1.
#
# Say it aloud
# ------------
# "Synchronous ranks all take the time of the slowest, and random delays cost more the more ranks there are.
# In a profile the fast ranks show it as communication.
# Waiting keeps the replicas equal; not waiting would mean gradients of older weights."
