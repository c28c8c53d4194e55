"""
A slower link
=============

How long does an all-reduce take when the network is the bottleneck?
A ring sends 2(p−1)/p times the bytes of the tensor over the link of each rank, so the rate of the link gives the time.
Here the kernel limits what each machine sends, and the formula is compared with the clock.
It serves :ref:`setup-slow-link`.

Where the link is the bottleneck, an all-reduce takes as long as its bytes need to leave a machine.
Keep in mind: 2(p−1)/p times the tensor, divided by the rate.

:Level: core, 10 minutes
"""

from ddplab.apparatus.machines import machines, torchrun
from ddplab.apparatus.plotting import ACCENT, INK, describe, log_axis, subplots

NBYTES = 4_000_000  # of the tensor
RATES = (100, 200, 400, 800)  # million bit per second

# %%
# Every rank all-reduces without end; rank 0 prints how long each took.

PROGRAM = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones({NBYTES} // 4)
for step in range(10**9):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(x.fill_(1))
    took_ms = 1e3 * (time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"step {{step}}: {{took_ms}} ms", flush=True)
"""

# %%
# While they run, ``tc`` changes the rate: a machine needs a token for each byte before it may send it.
# The shortest of five is used, because other programs on the machine can only add to it.


def measure(ranks):
    with machines(ranks) as (hosts, why_not):
        if why_not:
            return why_not
        agents = torchrun(hosts, "--no-python", "python", "-c", PROGRAM)
        agents[0].wait_for("step 2:", timeout_s=60)
        shortest = {}
        for rate in RATES:
            for host in hosts:
                host.rate(rate)
            last = int(agents[0].lines[-1][1].split()[1].strip(":"))
            first = last + 2  # one may be on its way
            lines = [agents[0].wait_for(f"step {first + i}:", timeout_s=30) for i in range(5)]
            shortest[rate] = min(float(line.split()[2]) for line in lines)
        return shortest


def formula_ms(ranks, rate):
    return 1e3 * 2 * (ranks - 1) / ranks * NBYTES * 8 / (rate * 1e6)


seen = {ranks: measure(ranks) for ranks in (2, 3)}

# %%
# Measured, and as the formula says:

for ranks, times in seen.items():
    if isinstance(times, str):
        print(f"{ranks} ranks: not run here: {times}")
        continue
    for rate, took_ms in times.items():
        says = formula_ms(ranks, rate)
        over = 100 * (took_ms / says - 1)
        row = f"{took_ms:6.1f} ms, formula {says:5.1f} ms, {over:+3.0f} %"
        print(f"{ranks} ranks, {rate} Mbit/s: {row}")
        assert took_ms > 0.9 * says  # nothing passes a shaper early

# %%
# Lines are the formula, marks the measurement.

# drawing
fig, ax = subplots(height_in=3)
describe(fig, "Time of an all-reduce over the rate of the link, for two and three ranks")
for (ranks, times), color, mark in zip(seen.items(), (ACCENT, INK), "os", strict=True):
    if isinstance(times, str):
        ax.text(0.05, 0.2 * ranks, f"{ranks} ranks: not run here", transform=ax.transAxes)
        continue
    line = [formula_ms(ranks, rate) for rate in RATES]
    ax.plot(RATES, line, color=color, lw=1.2)
    ax.plot(RATES, times.values(), mark, color=color, ms=6)
    ax.text(RATES[0] * 0.95, line[0], f"{ranks} ranks", color=color, ha="right", va="center")
log_axis(ax.xaxis, RATES)
log_axis(ax.yaxis, (50, 100, 200, 400))
ax.set(xlabel="rate of each link (Mbit/s)", ylabel="all-reduce of 4 MB (ms)", xlim=(70, 900))
ax.set_title("The rate of the link gives the time")

# %%
# What to notice
# --------------
#
# - Half the rate, twice the time: on such a link nothing else matters, neither cores nor memory.
# - A third rank adds a third to the time, and more ranks add little: 2(p−1)/p grows from 1 to 2 at most.
# - The measurement is a few percent above the formula, because packets have headers, and ranks do not start at the same moment.
#
# What this does not mean
# -----------------------
#
# That a shaped link behaves like a slow network: only its rate is limited, and its latency stays that of one host, some hundredths of a millisecond.
# Small messages therefore look too good here.
# A delay needs the kernel's netem, which is often absent; a link emulated in the program is in :ref:`from-scratch-training-run`.
#
# Change it: predict, then run
# ----------------------------
# Send a tenth: ``NBYTES = 400_000``.
# At which end of the rates does the formula stop fitting?
#
# Expect: at the fast end, where the time is well above the formula: there the bytes take hardly longer than what every message costs anyway. (It needs network namespaces, as the lab does.)
#
# Say it aloud
# ------------
# "A ring sends nearly twice the tensor over each rank's link, so I divide that by the rate and know the time before I measure.
# Below some size the latency counts and the formula is too good.
# A shaped link on one host tests a rate without hardware, and says nothing about the latency of a real network."
