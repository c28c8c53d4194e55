"""
How often to save
=================

A save stops the training, and a failure undoes what was trained since the last save.
How much time is lost at each interval between saves, and how good are the two known formulas for the best one?
It serves :ref:`checkpointing-interval`.

Every save costs time, and every failure undoes what was trained since the last one; the best interval balances the two.
It grows with the square root: four times the save, twice the interval.

:Level: core, 15 minutes
"""

# runs nothing: a model
import random

from ddplab import record
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.model.interval import daly_s, lost_fraction, young_s

# %%
# The job
# -------
# Assumed, not measured: 128 nodes, each of which fails once in four years on average; a save stops all ranks for 30 s, and a restart takes 5 minutes.
# If nodes fail independently of each other, the job fails as often as all of them together.

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
NODES, NODE_MTBF_S, SAVE_S, RESTART_S = 128, 4 * 365 * DAY_S, 30, 5 * MINUTE_S
mtbf_s = NODE_MTBF_S / NODES
young, daly = young_s(SAVE_S, mtbf_s), daly_s(SAVE_S, mtbf_s)

print(f"the job fails every {mtbf_s / DAY_S:.1f} days on average")
for name, interval_s in (("Young", young), ("Daly", daly), ("one day", DAY_S)):
    lost = lost_fraction(interval_s, SAVE_S, mtbf_s, RESTART_S)
    minutes = interval_s / MINUTE_S
    print(f"{name:8} save every {minutes:6.1f} min: {lost:6.2%} of the time lost")
record("min", young=young / MINUTE_S)
record("%", at_young=100 * lost_fraction(young, SAVE_S, mtbf_s, RESTART_S))
record("%", at_a_day=100 * lost_fraction(DAY_S, SAVE_S, mtbf_s, RESTART_S))

# %%
# The formula against simulated failures
# --------------------------------------
# Here a job is simulated event by event: it trains and saves, failures come at random, and what was not saved is lost.
# The simulation does not use the formula.


def simulated(interval_s, save_s, mtbf_s, restart_s, saves, seed=0):
    """The share of time lost until ``saves`` saves are made."""
    rng = random.Random(seed)
    now_s, failure_s = 0.0, rng.expovariate(1 / mtbf_s)
    for _ in range(saves):
        done_s = now_s + interval_s + save_s
        while failure_s < done_s:  # in training, in a save or in a restart
            done_s = failure_s + restart_s + interval_s + save_s
            failure_s += rng.expovariate(1 / mtbf_s)
        now_s = done_s
    return 1 - saves * interval_s / now_s


# %%
# Two jobs: the one above, and one with so many failures, one in 15 minutes, that a save of a minute matters.

jobs = {"128 nodes": (SAVE_S, mtbf_s, RESTART_S), "many failures": (60, 15 * MINUTE_S, 60)}
factors = [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8]
points = {name: [] for name in jobs}
print("share lost       interval ÷ Young's:" + "".join(f"{f:8.3g}" for f in factors))
for name, (save_s, m_s, restart_s) in jobs.items():
    exact = []
    for factor in factors:
        case = (factor * young_s(save_s, m_s), save_s, m_s, restart_s)
        exact.append(lost_fraction(*case))
        failures = 20_000  # the same number in each case, so that all are equally accurate
        saves = int(failures * m_s * (1 - exact[-1]) / case[0]) + 1
        points[name].append(simulated(*case, saves))
    for row, values in (("formula", exact), ("simulated", points[name])):
        print(f"{name:15}  {row:18}" + "".join(f"{value:8.2%}" for value in values))
    assert all(abs(a - b) < 0.03 * a for a, b in zip(exact, points[name], strict=True))

# %%
# The curve is flat around its minimum and steep at both ends.
# Marks are the simulated jobs.

# drawing
fig, axes = subplots(1, 2, height_in=3.2)
describe(fig, "Share of time lost over the interval between saves, for two jobs")
ticks = {"128 nodes": [15, 60, 240, 960], "many failures": [1, 5, 20]}
for ax, (name, (save_s, m_s, restart_s)) in zip(axes, jobs.items(), strict=True):
    young_min, daly_min = young_s(save_s, m_s) / 60, daly_s(save_s, m_s) / 60
    minutes = [young_min * 2 ** (n / 16) for n in range(-50, 51)]
    lost = [100 * lost_fraction(60 * t, save_s, m_s, restart_s) for t in minutes]
    rough = [100 * (save_s / (60 * t) + 60 * t / (2 * m_s)) for t in minutes]
    ax.plot(minutes, rough, color=MUTED, ls=":", label="C/T + T/2M")
    ax.plot(minutes, lost, color=ACCENT, label="exact")
    seen = [100 * share for share in points[name]]
    ax.plot([f * young_min for f in factors], seen, "o", color=INK, ms=4, label="simulated")
    ax.axvline(young_min, color=INK, lw=1, ls="--", label="Young")
    ax.axvline(daly_min, color=INK, lw=1, label="Daly")
    ax.set(xscale="log", xlabel="minutes between saves", ylim=(0, 1.1 * max(lost)))
    ax.set_xticks(ticks[name], map(str, ticks[name]))
    ax.minorticks_off()
    title = f"{name}: Young {young_min:.3g}, Daly {daly_min:.3g} min"
    ax.set_title(title, fontsize=9)
axes[0].set_ylabel("share of the time lost, %")
handles, labels = axes[0].get_legend_handles_labels()
fig.legend(handles, labels, fontsize=8.5, ncols=5, loc="outside lower center")

# %%
# How far from the best the two are, as saves get longer
# -------------------------------------------------------
# The best interval is found by search. The restart moves the whole curve up, but does not move its minimum.

print("C ÷ M    lost at the best   more at Daly's   more at Young's")
for ratio in (0.0001, 0.001, 0.01, 0.1, 0.5, 1):
    grid = [daly_s(ratio, 1), young_s(ratio, 1), *(1.002**n for n in range(-5000, 1500))]
    best, at_restart = (min((lost_fraction(t, ratio, 1, r), t) for t in grid) for r in (0, 1))
    assert abs(best[1] / at_restart[1] - 1) < 0.01
    more = [lost_fraction(f(ratio, 1), ratio, 1) - best[0] for f in (daly_s, young_s)]
    print(f"{ratio:<8} {best[0]:15.2%} {more[0]:16.4%} {more[1]:17.4%}")
    assert more[0] < 0.001

# %%
# What to notice
# --------------
#
# - An interval that is wrong by a factor of two costs little; by a factor of eight, much. So rough values of C and M are enough.
# - For the job above Young's interval is :measured:`saving-interval.young:.0f`, and :measured:`saving-interval.at_young:.1f` of the time is lost; with one save a day it is :measured:`saving-interval.at_a_day:.1f`.
# - Young's formula adds the two losses and leaves out that a failure may come during a save, or twice. While C is a hundredth of M that does not matter.
# - Daly's correction starts to matter where making saves faster would help more.
#
# What this does not mean
# -----------------------
#
# That failures of real clusters are exponential and independent: a bad switch, a new driver or the first week bring many at once.
# Take M from your own records; the formulas need only its order of magnitude.
#
# Change it: predict, then run
# ----------------------------
# Set ``SAVE_S`` to 120 in place of 30.
# What happens to Young's interval, and to the share that is lost at it?
#
# Expect: both about double.
#
# Say it aloud
# ------------
# "Young's interval is the square root of twice the time of a save times the mean time between failures.
# The curve is flat around it, so rough values are enough.
# Saving more often loses less at a failure, and more in all the hours without one."
