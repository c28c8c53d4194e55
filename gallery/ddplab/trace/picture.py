"""One step of a trace as lanes: with characters for a terminal, and as SVG."""

from __future__ import annotations

from html import escape

from .read import Trace
from .spans import Span, clipped, length
from .steps import Step

_SIGNS = "123456789abcdefghijklmnopqrstuvwxyz"
_WIDTH, _LEFT, _LANE = 720.0, 96.0, 30.0
_COMPUTE, _COLLECTIVE, _INK = "#0072b2", "#7a3b8f", "#1f2328"  # as in ddplab.labs.plotting


def _until(step: Step) -> float:
    return max([step.end_s, *(one.end_s for one in step.collectives)])


def lanes(trace: Trace, step: Step, width: int) -> list[str]:
    """Draw computing and collectives, one character per slice of time: what took most of the slice."""
    until = _until(step)
    slice_s = (until - step.start_s) / width
    compute, link = [], []
    for column in range(width):
        start = step.start_s + column * slice_s
        share = length(clipped(trace.compute, start, start + slice_s)) / slice_s
        compute.append("#" if share > 0.5 else "-" if share > 0.05 else " ")
        here = [
            (length(clipped([(one.start_s, one.end_s)], start, start + slice_s)), number)
            for number, one in enumerate(step.collectives)
        ]
        most, number = max(here, default=(0.0, 0))
        link.append(_SIGNS[number % len(_SIGNS)] if most > 0 else " ")
    end = f"{(until - step.start_s) * 1e3:.1f} ms"
    return [
        f"  computing   |{''.join(compute)}|",
        f"  collectives |{''.join(link)}|",
        f"               0{end.rjust(width - 1)}",
        "  the median step; # computes, - computes a little; below: the collective's number",
    ]


def svg(trace: Trace, step: Step) -> str:
    """Draw the same two lanes to scale."""
    until = _until(step)
    scale = (_WIDTH - _LEFT - 8) / (until - step.start_s)

    def bars(spans: list[Span], y: float, color: str) -> str:
        return "".join(
            f'<rect x="{_LEFT + (a - step.start_s) * scale:.2f}" y="{y}" width="{max(0.4, (b - a) * scale):.2f}" '
            f'height="{_LANE}" fill="{color}"/>'
            for a, b in clipped(spans, step.start_s, until)
        )

    def text(words: str, x: float, y: float, anchor: str = "start") -> str:
        return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'

    what = f"{trace.path.name}, one step: computing above, collectives below"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} 130" role="img" aria-label="{escape(what)}">'
        f'<title>{escape(what)}</title><g font-family="sans-serif" font-size="13" fill="{_INK}">'
        + text("computing", 0, 30)
        + bars(_thinned(trace.compute, 0.4 / scale), 10, _COMPUTE)
        + text("collectives", 0, 70)
        + bars([(one.start_s, one.end_s) for one in step.collectives], 50, _COLLECTIVE)
        + text("0", _LEFT, 104)
        + text(f"{(until - step.start_s) * 1e3:.1f} ms", _WIDTH - 8, 104, "end")
        + "</g></svg>\n"
    )


def _thinned(spans: list[Span], gap_s: float) -> list[Span]:
    """Without gaps that no screen can show: a step may hold a hundred thousand kernels."""
    kept: list[Span] = []
    for start, end in spans:
        if kept and start - kept[-1][1] < gap_s:
            kept[-1] = kept[-1][0], end
        else:
            kept.append((start, end))
    return kept
