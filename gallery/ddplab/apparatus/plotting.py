"""The house style of figures. The only file of the kit that imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from cycler import cycler

# Okabe and Ito's colour-blind-safe palette; rank r has colour r through the whole book.
# The book's style sheet has the same list, so that figures follow the reader's light or dark mode.
RANK_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7B00", "#6B6B6B"]
ACCENT = "#7A3B8F"  # for what belongs to no rank
INK = "#1F2328"  # text, axes and lines that carry meaning
MUTED = "#8C959F"  # what is there for orientation only
FAINT = "#E4E7EB"  # grids, backgrounds of bars

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and set in the page's font
    "svg.hashsalt": "ddplab",  # same figure, same file
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.grid": False,
    "grid.color": FAINT,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.prop_cycle": cycler(color=[ACCENT, *RANK_COLORS]),
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.transparent": True,
}


def subplots(nrows: int = 1, ncols: int = 1, *, height_in: float = 3.0, **options: Any) -> tuple[Any, Any]:
    """``plt.subplots`` in the house style: as wide as the text column (7.2 in), ``height_in`` inches high."""
    plt.rcParams.update(_STYLE)
    return plt.subplots(nrows, ncols, figsize=(7.2, height_in), layout="constrained", **options)


def describe(fig: Any, text: str) -> None:
    """Say what a figure shows, for those who hear the page.

    By itself the page reads out the titles of the axes. sphinx-gallery takes a figure's title before those,
    also one that is not drawn.
    """
    fig.suptitle(text, visible=False, in_layout=False)


def name_rows(ax: Any, names: Sequence[object], *, margin: float = 0.5) -> None:
    """Name rows 0, 1, 2, … of ``ax`` on its y axis, the first on top; ``margin`` rows are left free at both ends."""
    ax.set_yticks(range(len(names)), [str(name) for name in names])
    ax.set_ylim(len(names) - 1 + margin, -margin)


def label(ax: Any, x: float, y: float, text: object, **style: Any) -> None:
    """Write small text centered on (``x``, ``y``), as in a box or a bar; ``style`` goes to ``ax.text``."""
    ax.text(x, y, str(text), **{"ha": "center", "va": "center", "fontsize": 8.5, **style})


def log_axis(axis: Any, ticks: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Make ``ax.xaxis`` or ``ax.yaxis`` logarithmic, with ticks at these values only, written as plain numbers.

    ``labels`` are written in place of the numbers, one for each tick.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(list(ticks), labels or [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)
