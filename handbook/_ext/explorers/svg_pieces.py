"""SVG by hand, in the colours of the book's figures: what the drawings of the explorers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 720  # units of a drawing; the text column, 7.2 in
INK, SOFT, FAINT, MARK = "#1f2328", "#8c959f", "#e4e7eb", "#7a3b8f"  # as in ddplab.apparatus.plotting


def svg(height: float, alt: str, parts: Sequence[str]) -> str:
    """A whole drawing; ``alt`` says what it shows."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" style="width: {WIDTH * 0.72:g}pt"'
    head = f'<svg class="figure" role="img" aria-label="{escape(alt)}" {size}'
    inside = f'<g style="font-family: sans-serif" font-size="12.5" fill="{INK}">{"".join(parts)}</g>'
    return f"{head}>{inside}</svg>"


def text(words: str, x: float, y: float, anchor: str = "start", *, size: float = 0, bold: bool = False) -> str:
    """A line of text; ``y`` is its base line, ``anchor`` start, middle or end."""
    look = (f' font-size="{size:g}"' if size else "") + (' font-weight="bold"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, edge: str, opacity: float = 1) -> str:
    """A rectangle; ``opacity`` is that of its fill."""
    look = f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{edge}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" {look}/>'


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    """A straight line."""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{color}"{dashes}/>'


def arrow(x: float, y: float) -> str:
    """A short arrow down from (x, y)."""
    return (
        f'<path d="M{x:.1f} {y:.1f}v10" stroke="{MARK}" stroke-width="1.4"/>'
        f'<path d="M{x - 3.5:.1f} {y + 8:.1f}h7l-3.5 6z" fill="{MARK}"/>'
    )
