"""The answer of ``ddplab tune-buckets`` as a table and as a figure."""

from __future__ import annotations

import textwrap
from typing import Any

from .text import short, table


def as_text(found: dict[str, Any]) -> str:
    """Return the answer of ``--json`` as a table, and the recommendation below it."""
    link = found["link"]
    size = f"{len(found['gradients'])} gradients, {short(found['bytes'] / 2**20)} MiB"
    off = f"median error of the fit {100 * link['residual']:.1f} %"
    rate = f"{short(link['gbit_per_s'])} Gbit/s" if link["gbit_per_s"] else "more bytes take no longer"
    kind = "emulated link" if link["emulated"] else f"link (as a {link['algorithm']})"
    rows = [["cap MiB", "buckets", "predicted ms", "measured ms", "middle half", "vs default"]]
    for seen in found["measured"]:
        low, high = seen["middle_half_ms"]
        is_default = seen["bucket_cap_mb"] is None
        rows.append(
            [
                "default" if is_default else f"{seen['bucket_cap_mb']:g}",
                str(len(seen["bucket_bytes"])),
                short(seen["predicted_ms"]),
                short(seen["median_ms"]),
                f"{short(low)} to {short(high)}",
                "" if is_default else f"{seen['against_default_ms']:+.2f}",
            ]
        )
    lines = table(rows)
    best = found["recommended"]["bucket_cap_mb"]
    chosen = next(i for i, seen in enumerate(found["measured"], 1) if seen["bucket_cap_mb"] == best)
    lines[chosen] += "  <- recommended"
    ranks = f"{found['ranks']} ranks, {found['backend']} on {found['device']}, torch {found['torch']}"
    return "\n".join(
        [
            f"{found['target']}: {size}; {ranks}",
            f"forward {short(found['forward_ms'])} ms, backward {short(found['backward_ms'])} ms",
            f"{kind}: {short(link['latency_us'])} µs, {rate}; {off}",
            "",
            *lines,
            "",
            *(textwrap.fill(line, 96) for line in [_recommendation(found), *found["notes"]]),
        ]
    )


def _recommendation(found: dict[str, Any]) -> str:
    advice = found["recommended"]
    best, verdict = advice["best_bucket_cap_mb"], advice["verdict"]
    if best is None:
        return "Keep the default: for this model every cap gives the same buckets."
    default_ms = found["measured"][0]["median_ms"]
    gain = f"{abs(advice['gain_ms']):.2f} ms ({abs(advice['gain_ms']) / default_ms:.1%})"
    gain += f" {'less' if advice['gain_ms'] > 0 else 'more'} than the default"
    between = f"over {advice['rounds']} rounds"
    if advice["low_ms"] is not None:
        between = f"99 % interval {advice['low_ms']:.2f} to {advice['high_ms']:.2f} ms saved, {between}"
    if verdict == "clear":
        return f"Clear: use bucket_cap_mb={best:g}. A step takes {gain}; {between}."
    if verdict == "default is best":
        return f"Keep the default: nothing measured is 1 % faster. With {best:g} MiB a step takes {gain}; {between}."
    return f"Within noise: keep the default. With {best:g} MiB a step takes {gain}; {between}."


def draw(found: dict[str, Any]) -> tuple[Any, Any]:
    """Draw step time over cap: predicted as a line, measured as marks with their middle half; return figure and axes.

    ``found`` is the answer of ``--json``. The default, which has two caps, is drawn across.
    """
    from ..apparatus.plotting import ACCENT, INK, MUTED, RANK_COLORS, describe, subplots

    fig, ax = subplots(height_in=3.2)
    describe(fig, f"Step time of {found['target']} over bucket_cap_mb, predicted and measured")
    line = sorted((p["bucket_cap_mb"], p["predicted_ms"]) for p in found["predicted"] if p["bucket_cap_mb"] is not None)
    default, *others = found["measured"]
    low, high = default["middle_half_ms"]
    ax.axhspan(low, high, color=MUTED, alpha=0.25, lw=0)
    ax.axhline(default["median_ms"], color=INK, ls="--", lw=1.2, label="default, measured (band: middle half)")
    ax.axhline(found["lower_bound_ms"], color=MUTED, ls=":", lw=1.2, label="lower bound for any buckets")
    if line:
        ax.plot(*zip(*line, strict=True), color=RANK_COLORS[0], lw=1.4, label="predicted")
    if others:
        caps, middles = [o["bucket_cap_mb"] for o in others], [o["median_ms"] for o in others]
        spans = [
            [m - o["middle_half_ms"][0] for m, o in zip(middles, others, strict=True)],
            [o["middle_half_ms"][1] - m for m, o in zip(middles, others, strict=True)],
        ]
        marks = {"fmt": "o", "ms": 5, "color": RANK_COLORS[1], "capsize": 3}
        ax.errorbar(caps, middles, spans, **marks, label="measured: median, middle half")
        best = found["recommended"]["bucket_cap_mb"]
        if best is not None:
            at = middles[caps.index(best)]
            ax.plot(best, at, "o", ms=12, mfc="none", mec=ACCENT, mew=1.8, label="recommended")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:.3g}")
    ax.set(xlabel="bucket_cap_mb (MiB)", ylabel="forward and backward (ms)")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=8.5)
    return fig, ax
