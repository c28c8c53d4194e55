r"""
Design case: hangs on a thousand ranks
======================================

What does a hang cost, what does it cost to watch for one, and how soon does a slow rank show?
It serves :ref:`case-hangs`.

:Level: evidence, 10 minutes
"""

# %%
# What is assumed
# ---------------
# The minutes of an incident, and that half of all failures show as a hang.
# How often a node fails is derived from a published count (:ref:`checkpointing-interval`); nothing was measured.

# runs nothing: formulas, a published count of failures, and minutes that are assumed
from statistics import NormalDist

from ddplab import record
from ddplab.apparatus.design_cases import (
    BETWEEN_S,
    GB,
    INSIDE_S,
    NDR_PORT,
    NODE_GPUS,
    NVLINK,
    stacked,
)
from ddplab.apparatus.plotting import describe, subplots
from ddplab.costmodel import Cluster

RANKS, STEP_S, DAY = 1024, 0.4, 86400
# Of the job: 419 interruptions in 54 days on 16,384 GPUs.
FAILS_S = 54 * DAY / 419 * 16_384 / RANKS
hangs = 0.5 * 30 * DAY / FAILS_S
record(ranks=RANKS, nodes=RANKS // NODE_GPUS)
record("hours", fails=FAILS_S / 3600)
record("hangs", month=hangs)
record("ms", step=1e3 * STEP_S)

# %%
# One incident
# ------------
# The timeout of an NCCL group is ten minutes by default, and its watchdog leaves a minute for the dumps.
# What is trained twice is half of what lies between two saves.

PARTS = "until it is noticed", "find the rank", "restart", "trained twice"
NOW, DESIGNED = (10 + 1, 5 + 30, 8, 15), (5 + 1, 2, 4, 2.5)
for key, minutes in (("now", NOW), ("then", DESIGNED)):
    cost = sum(minutes) / 60 * RANKS
    print(
        f"{key:5} {sum(minutes):5.1f} minutes, {cost:5,.0f} GPU hours; a month {hangs * cost:6,.0f}"
    )
    record("minutes", **{key: sum(minutes)})
    for part, value in zip(("notice", "find", "restart", "twice"), minutes, strict=True):
        record("minutes", **{f"{key}_{part}": value})
    record("GPU hours", **{f"{key}_cost": cost, f"{key}_month": hangs * cost})

# %%
# What it costs to look
# ---------------------
# Dumps and logs in bytes, and a collective that gathers three numbers of each rank.

ENTRY, ENTRIES, LINE, EVERY = 1000, 2000, 200, 50  # bytes, assumed; default; bytes; steps
NET = INSIDE_S, NVLINK, BETWEEN_S, NODE_GPUS * NDR_PORT
gather_s = Cluster(RANKS // NODE_GPUS, NODE_GPUS, *NET, "tree").seconds(3 * 8 * RANKS)
lines = DAY / STEP_S
print(f"dumps {RANKS * ENTRIES * ENTRY / GB:.1f} GB; gathering {1e3 * gather_s:.2f} ms")
print(
    f"logs of a day: {RANKS * lines * LINE / GB:.0f} GB of all, {lines * LINE / 1e6:.0f} MB of one"
)
record("GB", dump=RANKS * ENTRIES * ENTRY / GB, logs_all=RANKS * lines * LINE / GB)
record("MB", logs_one=lines * LINE / 1e6)
record("ms", gather=1e3 * gather_s)
record("%", gather_share=100 * gather_s / (EVERY * STEP_S))
record(entries=ENTRIES)
record("steps", every=EVERY)

# %%
# How soon a slow rank shows
# --------------------------
# A rank is 5 % slow, and its steps deviate by 5 % from step to step (both assumed).
# The mean of :math:`n` steps deviates by :math:`\sigma/\sqrt n`. The threshold, :math:`z` such deviations, lets one false alarm in ten days through, all ranks and all checks together.
# A rank that is slow by :math:`z + 2` of them is found by the first check in 98 of 100 cases.

SLOW, SIGMA, ALARMS = 0.05, 0.05, 0.1  # the last: a day
steps = 1.0
for _ in range(60):
    checks = RANKS * DAY / (steps * STEP_S)
    z = NormalDist().inv_cdf(1 - ALARMS / checks)
    steps = ((z + 2) * SIGMA / SLOW) ** 2
print(f"z = {z:.1f}: {steps:.0f} steps, {steps * STEP_S:.0f} s")
three = (1 - NormalDist().cdf(3)) * checks
print(f"with three deviations {three:,.0f} false alarms a day")
record("steps", detect=round(steps))
record("s", detect_s=steps * STEP_S)
record(z=z)
record("alarms", three=three)
record("%", slow=100 * SLOW, sigma=100 * SIGMA)
record("GPU hours", slow_day=RANKS * 24 * SLOW)

# %%

# drawing
fig, ax = subplots(height_in=2.1)
describe(fig, "Minutes of one incident as it is and as designed, by part")
stacked(ax, {"as it is": NOW, "as designed": DESIGNED}, PARTS, "{:g} min")
ax.set(xlim=(0, 80), xlabel="minutes of one hang, all of them assumed")
ax.set_title("Most of a hang is a person who reads logs")
ax.legend(fontsize=8.5, ncols=2, loc="lower right")

# %%
# What to notice
# --------------
#
# - A hang costs :measured:`case-hangs.now_cost:.0f`, and the longest part is the search.
# - Looking is cheap: gathering three numbers of each rank takes :measured:`case-hangs.gather:.2f` in :measured:`case-hangs.every`.
# - A rank that is 5 % slow takes :measured:`case-hangs.slow_day:,.0f` from all others in a day, and shows after :measured:`case-hangs.detect`.
#
# What this does not mean
# -----------------------
#
# That step times are normal: they have long tails, so compare medians, and set the threshold by your own week of data.
