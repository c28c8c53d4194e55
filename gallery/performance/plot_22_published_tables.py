r"""
All-reduces on other people's clusters
=========================================

Does a model with an :math:`\alpha` and a :math:`B` describe a real cluster?
This lab takes tables that others published, fits constants on a part of each, and predicts the rest.
It serves :ref:`performance-published`.
"""

# %%
# The tables
# ----------
# ``gallery/performance/published.json`` holds the numbers and, for each table, where it was published, on what hardware, and what is *given*: ranks, bytes, parameters, nominal rates.
# Nothing in the file is fitted.

import json
from itertools import combinations, pairwise
from math import ceil, inf, log2
from pathlib import Path

import numpy as np

import ddplab
from ddplab import record
from ddplab.buckets import MIB
from ddplab.costmodel import fit_link
from ddplab.labs.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots

FILE = Path(ddplab.__file__).parents[1] / "performance" / "published.json"
tables = {table["id"]: table for table in json.loads(FILE.read_text())["tables"]}
collective = {key: table for key, table in tables.items() if table["kind"] == "all-reduce"}
sources = sorted({table["source"]["repository"] for table in collective.values()})
values = sum(len(row["bytes"]) for table in collective.values() for row in table["rows"])
print(f"{len(collective)} tables of all-reduces, {values} times, from")
print("\n".join(sources))
record(tables=len(collective), values=values, sources=len(sources))

# %%
# The largest messages, with nothing fitted
# -----------------------------------------
# Latency does not count here, only how often a byte leaves a node, over the nominal rate of the node's network cards.
# Which way NCCL took is not published, so both are shown.
# A ring sends :math:`2 (p - 1) / p` times the message out of each node.
# A double tree sends it twice, an inner node of one tree to its parent and two children and a leaf of the other to its parent, each with half of the message; between *two* nodes there is one child, so it sends it once.

print("largest message     nodes   published    as a ring     as a tree")
near, rows = 0, 0
for key, table in collective.items():
    for row in (row for row in table["rows"][:4] if row["nodes"] > 1):
        nodes, ranks, seen_ms = row["nodes"], row["ranks"], 1e-3 * row["us"][-1]
        out_ms = 1e3 * row["bytes"][-1] / (125e6 * table["inputs"]["node_gbit_per_s"])
        ring_ms, tree_ms = 2 * (ranks - 1) / ranks * out_ms, (1 if nodes == 2 else 2) * out_ms
        off = [seen_ms / ring_ms, seen_ms / tree_ms]
        near, rows = near + any(1 <= slower < 1.15 for slower in off), rows + 1
        both = f"{ring_ms:8.1f} {off[0]:5.2f}×{tree_ms:8.1f} {off[1]:5.2f}×"
        print(f"{key[:18]:18}{nodes:7}{seen_ms:9.1f} ms{both}")
record(rows=rows, near=near)

# %%
# Two models of one all-reduce
# ----------------------------
# *One line* is the chapter's model: ``ddplab.costmodel.fit_link`` fits one :math:`\alpha` and one :math:`B`.
# *Three lines* knows that NCCL has three protocols and takes the one that it expects to be fastest: the time is the lowest of three lines.
# Each line has a fixed cost, a cost per doubling of the nodes (the hops of a tree), and a cost per byte on the bus.


def terms(nbytes, nodes, ranks):
    return np.array([1.0, ceil(log2(nodes)), 2 * (ranks - 1) / ranks * nbytes])


def one_line(points):
    rows = np.array([terms(*point[:3]) / point[3] for point in points])  # rows @ costs = 1
    weights = np.ones(len(rows))
    for _ in range(8):  # reweighted until it minimizes the absolute relative errors
        costs = np.linalg.lstsq(weights[:, None] * rows, weights, rcond=None)[0].clip(0)
        weights = np.maximum(abs(rows @ costs - 1), 0.01) ** -0.5
    return costs


def lowest(lines, point):
    return min(float(costs @ terms(*point[:3])) for costs in lines)


def three_lines(points):
    sizes, best = sorted({point[0] for point in points}), (inf, None)
    for cuts in combinations(sizes[2:-1:2], 2):  # where the protocol changes
        parts = [[p for p in points if a <= p[0] < b] for a, b in pairwise((0, *cuts, inf))]
        lines = [one_line(part) for part in parts]
        missed = sum(abs(lowest(lines, point) / point[3] - 1) for point in points)
        best = min(best, (missed, lines), key=lambda fit: fit[0])
    return best[1]


def measured(row):
    sizes_and_times = zip(row["bytes"], row["us"], strict=True)
    return [(nbytes, row["nodes"], row["ranks"], us * 1e-6) for nbytes, us in sizes_and_times]


# %%
# Sizes that the fit has not seen
# -------------------------------
# Every second size is fitted, those between are predicted, for each number of ranks by itself.
# ``bus``: the rate of the last line, at the largest number of ranks; ``NIC``: the nominal rate of a node's network cards; both in GB/s.

print(f"{'relative error, held out:':26}{'one line':>13}{'three lines':>18}")
heads = f"{'mean':>7}{'worst':>6}{'mean':>7}{'median':>7}{'worst':>6}"
print(f"{'table':18}{'ranks':>8}{heads}  bus NIC")
held, fits = {"line": [], "lines": []}, {}
for key, table in collective.items():
    if len(table["rows"][0]["bytes"]) < 8:
        continue  # too few sizes to leave any out
    line, lines = [], []
    for row in table["rows"]:
        known, rest = measured(row)[::2], measured(row)[1::2]
        link = fit_link([(p[0], p[3]) for p in known], row["ranks"])
        fits[key, row["ranks"]] = link, (protocols := three_lines(known))
        line += [100 * abs(link.seconds(p[0]) / p[3] - 1) for p in rest]
        lines += [100 * abs(lowest(protocols, p) / p[3] - 1) for p in rest]
    held["line"] += line
    held["lines"] += lines
    first, last = (table["rows"][at]["ranks"] for at in (0, -1))
    ranks, nic = (
        (f"{first}…{last}" if first < last else f"{last}"),
        table["inputs"]["node_gbit_per_s"],
    )
    errors = (
        f"{np.mean(line):6.0f}%{max(line):5.0f}%{np.mean(lines):6.0f}%{np.median(lines):6.0f}%"
    )
    rates = (
        f"{1e-9 / protocols[-1][2]:4.0f} {nic / 8 if nic else '-':>3.0f}"
        if nic
        else "   –   –"
    )
    print(f"{key[:18]:18}{ranks:>8}{errors}{max(lines):5.0f}% {rates}")
for name, errors in held.items():
    kept = {"mean": np.mean(errors), "median": np.median(errors), "worst": max(errors)}
    record("%", **{f"sizes_{name}_{what}": value for what, value in kept.items()})

# %%
# Dots: published, filled where fitted; dashed: one line; solid: three lines.

shown = [
    "dgx-h100",
    "a100-node",
    "aws-p5",
    "gcp-a3mega",
    "polaris-a100",
    "alps-gh200-plugin-1.13.0",
]
fig, axes = subplots(2, 3, height_in=4.6, sharex=True, sharey=True)
describe(
    fig,
    "Six all-reduce tables: time against message size, with one fitted line and with three",
)
for ax, key in zip(axes.flat, shown, strict=True):
    row = tables[key]["rows"][0 if len(tables[key]["rows"]) == 1 else 1]
    link, protocols = fits[key, row["ranks"]]
    x, points = np.array(row["bytes"]), measured(row)
    y = np.array(row["us"])
    ax.loglog(x[::2], y[::2], "o", color=INK, ms=3.5)
    ax.loglog(x[1::2], y[1::2], "o", color=INK, ms=3.5, mfc="none")
    ax.loglog(x, [1e6 * link.seconds(n) for n in row["bytes"]], "--", color=MUTED)
    ax.loglog(x, [1e6 * lowest(protocols, p) for p in points], color=ACCENT, lw=1.3)
    name = ", ".join(tables[key]["name"].split(", ")[:2])
    ax.set_title(f"{name}, {row['ranks']} ranks", fontsize=8.5)
fig.supxlabel("bytes", fontsize=9.5)
fig.supylabel("time (µs)", fontsize=9.5)

# %%
# Scales that the fit has not seen
# --------------------------------
# Sizes in between are an easy test: their neighbours are known.
# The harder one fits a few nodes and predicts many.
# Two nodes are left out on Alps: between two nodes a tree sends half as much as between more.

SCALES = {key: (4, 8, 16) for key in collective if key.startswith("alps")}
SCALES |= {"polaris-a100": (2, 8), "polaris-a100-tcp": (2, 8), "mi325x-roce": (2,)}
print("relative error of a prediction for more nodes         one line   three lines")
print("table                     fitted nodes  predicted  ranks   mean    mean  signed")
scaled, far = {}, {"line": [], "lines": []}
for key, few in SCALES.items():
    rows = {row["nodes"]: row for row in tables[key]["rows"]}
    known = [point for nodes in few for point in measured(rows[nodes])]
    simple = [one_line(known)]
    scaled[key] = three_lines(known) or simple  # three sizes are not enough for three lines
    for nodes in (nodes for nodes in rows if nodes > max(few)):
        points = measured(rows[nodes])
        line = [100 * (lowest(simple, p) / p[3] - 1) for p in points]
        lines = [100 * (lowest(scaled[key], p) / p[3] - 1) for p in points]
        far["line"] += map(abs, line)
        far["lines"] += map(abs, lines)
        one, three = (np.mean(np.abs(errors)) for errors in (line, lines))
        place = f"{key:26}{', '.join(map(str, few)):>12}{nodes:11}{rows[nodes]['ranks']:7}"
        print(f"{place}{one:6.0f}%{three:7.0f}%{np.mean(lines):+7.0f}%")
for name, errors in far.items():
    record(
        "%", **{f"scales_{name}_mean": np.mean(errors), f"scales_{name}_worst": max(errors)}
    )
assert np.mean(held["lines"]) < np.mean(held["line"]) / 2
assert np.mean(far["lines"]) < np.mean(far["line"])
runs = [tables[key]["rows"][3:] for key in SCALES if key.startswith("alps")]
us = [np.array([row["us"] for row in rows]) for rows in runs]
spread = 100 * np.mean(abs(us[0] / us[1] - 1))
record("%", runs_differ=spread)
print(f"two runs on Alps, 8 nodes and more, differ by {spread:.0f} % in the mean")

# %%

fig, ax = subplots(height_in=3.4)
describe(fig, "All-reduce time on Alps against nodes, four sizes: published and predicted")
key = next(iter(SCALES))
for nbytes, color in ((8, 0), (2**20, 2), (2**25, 1), (2**30, 3)):
    points = [
        p
        for row in tables[key]["rows"]
        if row["nodes"] > 2
        for p in measured(row)
        if p[0] == nbytes
    ]
    nodes = [p[1] for p in points]
    ax.loglog(nodes, [1e3 * p[3] for p in points], "o", color=RANK_COLORS[color], ms=4)
    ax.loglog(nodes, [1e3 * lowest(scaled[key], p) for p in points], color=RANK_COLORS[color])
    label = f"{nbytes / MIB:.0f} MiB" if nbytes >= MIB else f"{nbytes} B"
    ax.annotate(
        label,
        (nodes[-1], 1e3 * points[-1][3]),
        (6, -3),
        textcoords="offset points",
        fontsize=8.5,
    )
ax.axvspan(4, 16, color=MUTED, alpha=0.12, lw=0)
ax.set(xlabel="nodes of 4 GPUs · shaded: fitted", ylabel="time (ms)", xlim=(3.6, 1000))
ax.set_title("Alps: dots published, lines predicted")

# %%
# What to notice
# --------------
#
# - One :math:`\alpha` and one :math:`B` miss a size that they have not seen by :measured:`published-tables.sizes_line_mean:.0f` in the mean; three lines miss it by :measured:`published-tables.sizes_lines_mean:.0f`, half of the sizes by less than :measured:`published-tables.sizes_lines_median:.0f`.
#   The line is right at both ends and wrong between: there a low-latency protocol runs at a fraction of the rate.
# - For 4 to 60 times as many nodes three lines miss by :measured:`published-tables.scales_lines_mean:.0f` in the mean, one line by :measured:`published-tables.scales_line_mean:.0f`; nearly always the cluster is *slower* than predicted.
#   Two runs on the same machine differ by :measured:`published-tables.runs_differ:.0f` themselves.
# - The largest message needs 0 to 15 % more than a ring or a tree at the rate of the data sheet in :measured:`published-tables.near` of :measured:`published-tables.rows` rows; far above are TCP sockets, and a table that ends at 8 MiB.
#   The time of a small message is on no data sheet.
#
# What this does not mean
# -----------------------
#
# That three lines explain anything: they are fitted, with nine constants.
# What the fit leaves over has names: a tuner that switches to a slower protocol, a sum inside the switch, other jobs on the network.
