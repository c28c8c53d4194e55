r"""
All-reduces on other people's clusters
=========================================

Does a model with an :math:`\alpha` and a :math:`B` describe a real cluster?
This lab takes tables that others published, fits constants to some of each table, and predicts the rest.
It serves :ref:`performance-published`.

:Level: evidence, 15 minutes
"""

# %%
# The tables
# ----------
# ``gallery/performance/published.json`` holds the numbers and, for each table, where it was published, on what hardware, and what is *given*: ranks, bytes, parameters, nominal rates.
# Nothing in the file is fitted.

# runs nothing: a model of published tables
import numpy as np

from ddplab import record
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots
from ddplab.apparatus.published import fastest, fit_line, fit_three_lines, points, published
from ddplab.buckets import MIB
from ddplab.costmodel import fit_link

tables = published("published.json", "all-reduce")
sources = sorted({table["source"]["repository"] for table in tables.values()})
values = sum(len(row["bytes"]) for table in tables.values() for row in table["rows"])
print(f"{len(tables)} tables of all-reduces, {values} times, from")
print("\n".join(sources))
record(tables=len(tables), values=values, sources=len(sources))

# %%
# The largest messages, with nothing fitted
# -----------------------------------------
# Latency does not matter here, only how often a byte leaves a node, divided by the nominal rate of the node's network cards.
# Which algorithm NCCL used is not published, so both are shown.
# A ring sends :math:`2 (p - 1) / p` times the message out of each node.
# A double tree sends it twice, each tree with half of the message: a node is an inner node of one tree, with a parent and two children, and a leaf of the other, with a parent. Between *two* nodes there is one child, so it sends the message once.

print("largest message     nodes   published    as a ring     as a tree")
near, rows = 0, 0
for key, table in tables.items():
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
# Each line has a fixed cost, a cost per doubling of the nodes (the hops of a tree), and a cost per byte on the bus; ``ddplab.apparatus.published`` fits them to relative errors.
#
# Sizes that the fit has not seen
# -------------------------------
# Every second size is fitted and those between are predicted, separately for each number of ranks.
# ``bus``: the rate of the last line, at the largest number of ranks; ``NIC``: the nominal rate of a node's network cards; both in GB/s.

print(f"{'relative error, held out:':26}{'one line':>13}{'three lines':>18}")
heads = f"{'mean':>7}{'worst':>6}{'mean':>7}{'median':>7}{'worst':>6}"
print(f"{'table':18}{'ranks':>8}{heads}  bus NIC")
held, fits = {"line": [], "lines": []}, {}
for key, table in tables.items():
    if len(table["rows"][0]["bytes"]) < 8:
        continue  # too few sizes to leave any out
    line, lines = [], []
    for row in table["rows"]:
        known, rest = points(row)[::2], points(row)[1::2]
        link = fit_link([(p.nbytes, p.seconds) for p in known], row["ranks"])
        fits[key, row["ranks"]] = link, (protocols := fit_three_lines(known))
        line += [100 * abs(link.seconds(p.nbytes) / p.seconds - 1) for p in rest]
        lines += [100 * abs(fastest(protocols, p) / p.seconds - 1) for p in rest]
    held["line"] += line
    held["lines"] += lines
    first, last = (table["rows"][at]["ranks"] for at in (0, -1))
    ranks, nic = (
        f"{first}…{last}" if first < last else last,
        table["inputs"]["node_gbit_per_s"],
    )
    rates = f"{1e-9 / protocols[-1][2]:4.0f} {nic / 8:3.0f}" if nic else "   –   –"
    one = f"{np.mean(line):6.0f}%{max(line):5.0f}%"
    three = f"{np.mean(lines):6.0f}%{np.median(lines):6.0f}%{max(lines):5.0f}%"
    print(f"{key[:18]:18}{ranks:>8}{one}{three} {rates}")
for name, errors in held.items():
    kept = {"mean": np.mean(errors), "median": np.median(errors), "worst": max(errors)}
    record("%", **{f"sizes_{name}_{what}": value for what, value in kept.items()})

# %%
# Dots: published, filled where fitted; dashed: one line; solid: three lines.

# drawing
shown = ["dgx-h100", "a100-node", "aws-p5", "gcp-a3mega", "polaris-a100"]
fig, axes = subplots(2, 3, height_in=4.6, sharex=True, sharey=True)
describe(fig, "Six all-reduce tables: time against size, with one fitted line and with three")
for ax, key in zip(axes.flat, [*shown, "alps-gh200-plugin-1.13.0"], strict=True):
    row = tables[key]["rows"][min(1, len(tables[key]["rows"]) - 1)]
    link, protocols = fits[key, row["ranks"]]
    x, y = np.array(row["bytes"]), np.array(row["us"])
    ax.loglog(x[::2], y[::2], "o", color=INK, ms=3.5)
    ax.loglog(x[1::2], y[1::2], "o", color=INK, ms=3.5, mfc="none")
    ax.loglog(x, [1e6 * link.seconds(n) for n in row["bytes"]], "--", color=MUTED)
    ax.loglog(x, [1e6 * fastest(protocols, p) for p in points(row)], color=ACCENT, lw=1.3)
    name = ", ".join(tables[key]["name"].split(", ")[:2])
    ax.set_title(f"{name}, {row['ranks']} ranks", fontsize=8.5)
fig.supxlabel("bytes", fontsize=9.5)
fig.supylabel("time (µs)", fontsize=9.5)

# %%
# Scales that the fit has not seen
# --------------------------------
# Sizes in between are an easy test: their neighbors are known.
# The harder test fits a few nodes and predicts many.
# Two nodes are left out on Alps: between two nodes a tree sends half as much as between more.

SCALES = {key: (4, 8, 16) for key in tables if key.startswith("alps")}
SCALES |= {"polaris-a100": (2, 8), "polaris-a100-tcp": (2, 8), "mi325x-roce": (2,)}
print("relative error of a prediction for more nodes         one line   three lines")
print("table                     fitted nodes  predicted  ranks   mean    mean  signed")
scaled, far = {}, {"line": [], "lines": []}
for key, few in SCALES.items():
    rows = {row["nodes"]: row for row in tables[key]["rows"]}
    known = [point for nodes in few for point in points(rows[nodes])]
    simple = [fit_line(known)]
    scaled[key] = (
        fit_three_lines(known) or simple
    )  # three sizes are not enough for three lines
    for nodes in (nodes for nodes in rows if nodes > max(few)):
        line, lines = (
            [100 * (fastest(model, p) / p.seconds - 1) for p in points(rows[nodes])]
            for model in (simple, scaled[key])
        )
        far["line"] += map(abs, line)
        far["lines"] += map(abs, lines)
        one, three = (np.mean(np.abs(errors)) for errors in (line, lines))
        place = f"{key:26}{', '.join(map(str, few)):>12}{nodes:11}{rows[nodes]['ranks']:7}"
        print(f"{place}{one:6.0f}%{three:7.0f}%{np.mean(lines):+7.0f}%")
for name, errors in far.items():
    record("%", **{f"scales_{name}_mean": np.mean(errors)})
    record("%", **{f"scales_{name}_worst": max(errors)})
assert np.mean(held["lines"]) < np.mean(held["line"]) / 2
assert np.mean(far["lines"]) < np.mean(far["line"])
runs = [tables[key]["rows"][3:] for key in SCALES if key.startswith("alps")]
us = [np.array([row["us"] for row in rows]) for rows in runs]
spread = 100 * np.mean(abs(us[0] / us[1] - 1))
record("%", runs_differ=spread)
print(f"two runs on Alps, 8 nodes and more, differ by {spread:.0f} % in the mean")

# %%

# drawing
fig, ax = subplots(height_in=3.4)
describe(fig, "All-reduce time on Alps against nodes, four sizes: published and predicted")
key, beside = next(iter(SCALES)), {"textcoords": "offset points", "fontsize": 8.5}
everything = [p for row in tables[key]["rows"] if row["nodes"] > 2 for p in points(row)]
for nbytes, number in ((8, 0), (2**20, 2), (2**25, 1), (2**30, 3)):
    seen, color = [p for p in everything if p.nbytes == nbytes], RANK_COLORS[number]
    nodes, ms = [p.nodes for p in seen], [1e3 * p.seconds for p in seen]
    ax.loglog(nodes, ms, "o", color=color, ms=4)
    ax.loglog(nodes, [1e3 * fastest(scaled[key], p) for p in seen], color=color)
    text = f"{nbytes / MIB:.0f} MiB" if nbytes >= MIB else f"{nbytes} B"
    ax.annotate(text, (nodes[-1], ms[-1]), (6, -3), **beside)
ax.axvspan(4, 16, color=MUTED, alpha=0.12, lw=0)
ax.set(xlabel="nodes of 4 GPUs · shaded: fitted", ylabel="time (ms)", xlim=(3.6, 1000))
ax.set_title("Alps: dots published, lines predicted")

# %%
# What to notice
# --------------
#
# - For a size that the fit has not seen, one :math:`\alpha` and one :math:`B` are off by :measured:`published-tables.sizes_line_mean:.0f` on average; three lines are off by :measured:`published-tables.sizes_lines_mean:.0f`, and for half of the sizes by less than :measured:`published-tables.sizes_lines_median:.0f`.
#   The single line is right at both ends and wrong in between: there a low-latency protocol runs at a fraction of the rate.
# - For 4 to 60 times as many nodes, three lines are off by :measured:`published-tables.scales_lines_mean:.0f` on average, one line by :measured:`published-tables.scales_line_mean:.0f`; nearly always the cluster is *slower* than predicted.
#   Two runs on the same machine themselves differ by :measured:`published-tables.runs_differ:.0f`.
# - The largest message takes 0 to 15 % longer than a ring or a tree at the rate of the data sheet in :measured:`published-tables.near` of :measured:`published-tables.rows` rows; far above are TCP sockets, and a table that ends at 8 MiB.
#   No data sheet gives the time of a small message.
#
# What this does not mean
# -----------------------
#
# That three lines explain anything: they are fitted, with nine constants.
# What the fit does not capture has names: a tuner that switches to a slower protocol, a sum inside the switch, other jobs on the network.
