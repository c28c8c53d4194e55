r"""
Design case: spot machines
==========================

What does a job lose when its machines are taken back, and which part of the design saves how much of it?
It serves :ref:`case-spot-machines`.

:Level: evidence, 10 minutes
"""

# %%
# What is assumed
# ---------------
# 16 nodes of eight GPUs; each is taken back once in two days on average, with two minutes of notice, and replaced after a quarter of an hour.
# Nothing of it was measured. How often a node fails by itself is derived from a published count (:ref:`checkpointing-interval`).
# The checkpoint is that of 1.3 billion parameters with Adam, 12 bytes each; rank 0 writes it.

# runs nothing: a model on assumptions and a published count of failures
from ddplab import record
from ddplab.apparatus.plotting import ACCENT, MUTED, RANK_COLORS, describe, log_axis, subplots
from ddplab.model.interval import lost_fraction, young_s

MINUTE, HOUR, DAY, GB = 60, 3600, 86400, 1e9
NODES, TAKEN_S, NEW_S, NOTICE_S, PRICE = 16, 2 * DAY, 15 * MINUTE, 2 * MINUTE, 0.4
# Of one node: 419 interruptions in 54 days on 16,384 GPUs.
FAILS_S = 54 * DAY / 419 * (16_384 / 8)
# Bytes, and bytes/s of a write and of a copy to the host.
STATE, DISK, COPY = 12 * 1.3e9, 1 * GB, 20 * GB
# To meet and load; until the ranks that are left give up waiting.
RESTART_S, HANG_S = 2 * MINUTE, 4 * MINUTE
# A save that the training waits for, and the copy of one that it does not.
SAVE_S, STALL_S = STATE / DISK, STATE / COPY

record(nodes=NODES, left=NODES - 1, ranks=8 * NODES, ranks_left=8 * (NODES - 1))
record("days", fails=FAILS_S / DAY, taken=TAKEN_S / DAY)
record("hours", job_taken=TAKEN_S / NODES / HOUR)
record("days", job_fails=FAILS_S / NODES / DAY)
record("GB", state=STATE / GB)
record("GB/s", disk=DISK / GB, copy=COPY / GB)
record("s", save=SAVE_S, stall=STALL_S, notice=NOTICE_S)
record("minutes", restart=RESTART_S / MINUTE, new=NEW_S / MINUTE, hang=HANG_S / MINUTE)
record("minutes", young_save=young_s(SAVE_S, TAKEN_S / NODES) / MINUTE)
record("minutes", young_stall=young_s(STALL_S, TAKEN_S / NODES) / MINUTE)
record("%", spot=100 * PRICE)

# %%
# What each policy loses
# ----------------------
# Saves at Young's interval, steps trained twice, restarts.
# Who goes on with fewer nodes restarts twice for each that is taken, once without it and once, from a save, with the new one; and has one node less in between.
# Whom nobody warns waits for a node that is gone until the timeout, three minutes and one for the dumps, before going on.
# Who saves on the notice does not, and trains nothing twice but for failures that nobody announces.

POLICIES = {
    "wait for a new node": "wait",
    "go on with fewer": "fewer",
    "+ asynchronous saves": "copies",
    "+ a save on the notice": "notice",
}


def lost(policy, nodes):
    """Share of the time of all nodes that is no training."""
    taken_s, fails_s = TAKEN_S / nodes, FAILS_S / nodes
    stops_s = 1 / (1 / taken_s + 1 / fails_s)
    if policy == "wait":
        again_s = RESTART_S + NEW_S  # the timeout is over by then
        return lost_fraction(young_s(SAVE_S, stops_s), SAVE_S, stops_s, again_s)
    grow, again_s = (
        (SAVE_S + RESTART_S) / taken_s + NEW_S / taken_s / nodes,
        RESTART_S + HANG_S,
    )
    if policy == "notice":
        announced = (SAVE_S + RESTART_S) / taken_s
        own = lost_fraction(young_s(STALL_S, fails_s), STALL_S, fails_s, again_s)
        return grow + announced + own
    cost_s = SAVE_S if policy == "fewer" else STALL_S
    return grow + lost_fraction(young_s(cost_s, stops_s), cost_s, stops_s, again_s)


print(f"{'':24} {'16 nodes':>9} {'price':>6}   {'64 nodes':>8}")
for name, policy in POLICIES.items():
    share, larger = lost(policy, NODES), lost(policy, 64)
    print(f"{name:24} {share:9.1%} {PRICE / (1 - share):6.2f}   {larger:8.1%}")
    record("%", **{f"lost_{policy}": 100 * share, f"lost_{policy}_64": 100 * larger})
    record("%", **{f"price_{policy}": 100 * PRICE / (1 - share)})
own_s = FAILS_S / NODES
kept = lost_fraction(young_s(STALL_S, own_s), STALL_S, own_s, RESTART_S + NEW_S)
print(f"{'nothing taken':24} {kept:9.1%} {1 / (1 - kept):6.2f}")
record("%", lost_usual=100 * kept, one_less=100 * NEW_S / (TAKEN_S / NODES) / NODES)
record("%", restarts=100 * 2 * RESTART_S / (TAKEN_S / NODES))

# %%
# The price is that of an hour of training, as a share of what an hour of machines costs that nobody takes back.
# More nodes are taken back more often, and each loss stops all of them.

# drawing
fig, ax = subplots(height_in=2.9)
describe(fig, "Share of time lost over the number of spot nodes, for four policies")
counts = [4, 8, 16, 32, 64]
looks = zip("osd^", (MUTED, *RANK_COLORS[:2], ACCENT), strict=True)
for (name, policy), (mark, color) in zip(POLICIES.items(), looks, strict=True):
    shares = [100 * lost(policy, count) for count in counts]
    ax.plot(counts, shares, f"{mark}-", color=color, ms=5, label=name)
log_axis(ax.xaxis, counts)
ax.set(ylim=(0, 50), xlabel="spot nodes, each taken back once in two days")
ax.set(ylabel="% of the time lost")
ax.set_title("Each part of the design takes its share")
ax.legend(fontsize=8.5)

# %%
# What to notice
# --------------
#
# - Four parts of a design take the loss from :measured:`case-spot-machines.lost_wait:.1f` to :measured:`case-spot-machines.lost_notice:.1f`, each about a share of its own.
# - The notice saves two things: nothing is trained twice, and nobody waits for the timeout of a node that is gone.
# - At four times the nodes the least loss is more than three times as large: restarts are what is left, and each stops all nodes.
#
# What this does not mean
# -----------------------
#
# That nodes are taken one at a time, as the sums have it: a cloud takes many at once, and then there is nothing to go on with.
