r"""
Ring or tree: what NCCL takes
=============================

Which algorithm does NCCL take for an all-reduce, and does the cost model then know how long it runs?
The choice is computed from NCCL's own table; the time is compared with measurements that others published, and nothing is fitted.
It serves :ref:`performance-throttled`.

A ring pays a hop per rank and sends fewer bytes; a tree pays a hop per doubling.
NCCL chooses by its own table, which has ranks, bytes and the card's rate, and not your network's delay.

:Level: deep, 15 minutes
"""

# %%
# What NCCL takes
# ---------------
# ``nccl_choice`` holds the formulas and constants of ``src/graph/tuning.cc`` (NCCL 2.30.7; read, not run) for one rank per node.
# NCCL takes what its table expects to be fastest; the table has ranks, bytes, and the rate of the network card.
# Here at 100 Gbit/s, with message sizes that double: where a ring takes over from the tree for good.

# runs nothing: formulas, and published tables
from statistics import mean

from ddplab import record
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, subplots
from ddplab.apparatus.published import points, published
from ddplab.buckets import MIB
from ddplab.costmodel import allreduce_seconds, nccl_choice

SIZES = [2**k for k in range(10, 34)]


def first_ring(ranks, gpudirect):
    took = [nccl_choice(n, ranks, 12.5e9, gpudirect=gpudirect) for n in SIZES]
    trees = [at for at, choice in enumerate(took) if choice.algorithm == "tree"]
    at = max(trees, default=-1) + 1
    if at == len(SIZES):
        return f"above {SIZES[-1] // 2**30} GiB"
    size = f"{SIZES[at] / MIB:.0f} MiB" if SIZES[at] >= MIB else f"{SIZES[at] // 1024} KiB"
    return f"{size}, {took[at].protocol}"


print("a ring from           without GPUDirect        with it, so LL128, too")
for ranks in (4, 8, 32, 128, 512):
    print(f"{ranks:5} ranks {first_ring(ranks, False):>26} {first_ring(ranks, True):>29}")
for ranks, algorithm in ((32, "ring"), (128, "tree")):  # the default bucket, either way
    for gpudirect in (False, True):
        choice = nccl_choice(25 * MIB, ranks, 12.5e9, gpudirect=gpudirect)
        assert choice.algorithm == algorithm

# %%
# A network that was slowed down
# ------------------------------
# Somebody gave 4 to 32 cloud instances of one GPU each a slower network with ``tc netem``, and timed NCCL's all-reduce over sockets.
# Delay and rate are the ones that they set; bytes and ranks are theirs.
# Four predictions from those numbers: the ring's law, the tree's, the cheaper of both, and ``algorithm="nccl"``.

NAMES = ("ring", "tree", "cheaper", "nccl")


def predicted(kind):
    """Each published all-reduce: delay in ms, Gbit/s, point, errors in %."""
    for table in published("published.json", kind).values():
        ms, gbit = table["inputs"]["latency_ms"], table["inputs"]["node_gbit_per_s"]
        for point in (point for row in table["rows"] for point in points(row)):
            given = point.nbytes, point.ranks, ms * 1e-3, gbit * 125e6
            model_s = {
                name: allreduce_seconds(*given, name) for name in ("ring", "tree", "nccl")
            }
            model_s["cheaper"] = min(model_s["ring"], model_s["tree"])
            yield ms, gbit, point, {n: 100 * (model_s[n] / point.seconds - 1) for n in NAMES}


rows = list(predicted("throttled"))
print("                               published             error of")
print(f"delay     rate  ranks    MiB        time {''.join(f'{n:>9}' for n in NAMES)}  takes")
for ms, gbit, point, off in rows:
    took = nccl_choice(point.nbytes, point.ranks, gbit * 125e6)
    # NCCL knows no shaper; it assumes 10 Gbit/s of a card that reports none.
    assert took[:2] == nccl_choice(point.nbytes, point.ranks, 1.25e9)[:2]
    place = f"{ms:2} ms {gbit:2} Gbit/s{point.ranks:6}{point.nbytes / MIB:7.0f}"
    values = "".join(f"{off[name]:+8.1f}%" for name in NAMES)
    print(f"{place}{1e3 * point.seconds:9.0f} ms {values}  {took.algorithm}")
print()
for name in NAMES:
    size = [abs(off[name]) for *_, off in rows]
    print(f"{name:8} mean error {mean(size):5.1f} %, worst {max(size):5.1f} %")
    record("%", **{f"{name}_mean": mean(size), f"{name}_worst": max(size)})
short = [2 * point.nbytes / (gbit * 125e6) > point.seconds for _, gbit, point, _ in rows]
record(rows=len(rows), below=sum(short))

# %%

# drawing
fig, ax = subplots(height_in=3.0)
describe(
    fig, "Error of the ring's law, of the cheaper law and of the model of NCCL, over ranks"
)
for name, shift, mark in (("ring", -0.05, "o"), ("cheaper", 0, "x"), ("nccl", 0.05, "s")):
    color = {"ring": MUTED, "cheaper": INK, "nccl": ACCENT}[name]
    x = [point.ranks * 2**shift for _, _, point, _ in rows]
    y = [off[name] for *_, off in rows]
    label = {
        "ring": "ring law",
        "cheaper": "cheaper of ring and tree law",
        "nccl": "as NCCL runs",
    }[name]
    ax.plot(x, y, mark, color=color, label=label, ms=5, mfc="none" if mark == "o" else color)
ax.axhline(0, color=MUTED, lw=0.8)
ax.set_xscale("log", base=2)
ax.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
ax.set(xlabel="ranks", ylabel="error (%)")
ax.set_title("Published times on throttled networks, nothing fitted")
ax.legend(loc="upper left", fontsize=8.5)

# %%
# A second table, which disagrees with the first
# ----------------------------------------------
# The same repository times 4 to 16 all-reduces in a row, also with a delay of 50 ms.
# Where both tables have the same sizes, ranks and network, it says a longer time; why is not published.

first = {(ms, point.ranks, point.nbytes): point.seconds for ms, _, point, _ in rows}
second = list(predicted("throttled-in-a-row"))
longer = [
    p.seconds / first[key]
    for ms, _, p, _ in second
    if (key := (ms, p.ranks, p.nbytes)) in first
]
shares = ", ".join(f"{100 * ratio - 100:+.0f} %" for ratio in longer)
print(f"what both tables have takes here: {shares}\n")
columns = "".join(f"{ranks:5}     " for ranks in (4, 8, 16))
print("            errors of the ring's law            errors as NCCL runs")
print(f"ranks   {columns}      {columns}")
for ms in sorted({ms for ms, *_ in second}):
    off = {n: [e[n] for at, _, _, e in second if at == ms] for n in ("ring", "nccl")}
    texts = ["".join(f"{error:+5.0f}" for error in errors) for errors in off.values()]
    print(f"{ms:2} ms   {texts[0]}      {texts[1]} %")
    record("%", **{f"{n}_row_{ms}_mean": mean(map(abs, errors)) for n, errors in off.items()})
record("%", longer=100 * max(longer) - 100)

# %%
# What to notice
# --------------
#
# - NCCL takes the ring in every row. It knows nothing of the delay: a hop counts 14 µs in its table.
# - And it *is* a ring: :measured:`ring-or-tree.below` of :measured:`ring-or-tree.rows` published times are shorter than the :math:`2n/B` that a tree needs for its bytes alone.
# - The ring's law charges :math:`2(p-1)` delays. NCCL hands on one half of a step's bytes while the other half is on the wire, so a delay shorter than half a step hides, and one is left per loop of 4 MiB for each rank.
# - The second table takes up to :measured:`ring-or-tree.longer:.0f` longer for the same all-reduce, so no model can have both. At 1 to 10 ms NCCL's model is further off from it than the ring's law, and always too fast.
# - At 50 ms little hides. The ring's law is off by :measured:`ring-or-tree.ring_row_50_mean:.0f` on average, to both sides; the model by :measured:`ring-or-tree.nccl_row_50_mean:.0f`, always to one.
#
# What this does not mean
# -----------------------
#
# That the model knows your network to a percent: on the second table it is too fast everywhere.
# It leaves out starting, TCP, and what a rank adds up, and takes one rank per node and two channels, which is how NCCL's source connects such nodes.
#
# Change it: predict, then run
# ----------------------------
# In ``first_ring``, give the card 400 Gbit/s: ``50e9`` in place of ``12.5e9``.
# Do rings begin at larger or at smaller messages?
#
# Expect: at larger ones, since bytes, which a ring saves, have become cheaper.
#
# Say it aloud
# ------------
# "Few ranks and large messages favor the ring, many ranks and small ones the tree.
# NCCL decides from a table, so a delay that the card does not report changes nothing.
# The trade-off is hops against bytes."
