"""One step as lanes, of one rank or of several: with characters for a terminal, and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .read import Trace
from .spans import Span, clipped, length
from .steps import Step

_SIGNS = "123456789abcdefghijklmnopqrstuvwxyz"
_WIDTH, _LEFT, _RIGHT, _BAR = 720.0, 96.0, 24.0, 22.0
_COMPUTE, _COLLECTIVE, _INK, _MUTED = "#0072b2", "#7a3b8f", "#1f2328", "#8c959f"  # as in ddplab.apparatus.plotting


@dataclass(frozen=True)
class Row:
    """One step of one rank on the axis of a picture, in seconds from the picture's left end."""

    rank: int | None
    compute: list[Span]
    collectives: list[Span]

    @property
    def end_s(self) -> float:
        """Where its last span ends."""
        return max([0.0, *(end for _, end in (*self.compute, *self.collectives))])


@dataclass(frozen=True)
class Picture:
    """One step of each rank on one axis; ``clock`` says how the ranks' clocks were set."""

    rows: list[Row]
    clock: str


def aligned(shown: Sequence[tuple[Trace, Step]]) -> Picture:
    """Put one step of each rank on one axis.

    The ranks have no common clock. Where all send the same, their first all-reduce is taken to end at the same moment
    on all, or the first collective where there is no all-reduce; else their steps are taken to begin together.
    """
    sent = [[(one.name, one.elements) for one in step.collectives] for _, step in shown]
    names = [name for name, _ in sent[0]]
    meeting = names.index("allreduce") if "allreduce" in names else 0
    same = names and all(own == sent[0] for own in sent)
    marks = [step.collectives[meeting].end_s if same else step.start_s for _, step in shown]
    before = max(mark - step.start_s for mark, (_, step) in zip(marks, shown, strict=True))
    rows = [_row(trace, step, mark - before) for mark, (trace, step) in zip(marks, shown, strict=True)]
    together = (
        f"{names[meeting]} {meeting + 1} ends at the same moment" if same else "the step begins at the same moment"
    )
    return Picture(rows, f"clocks are set so that {together} on all ranks")


def _row(trace: Trace, step: Step, zero: float) -> Row:
    until = max([step.end_s, *(one.end_s for one in step.collectives)])
    computing = [(a - zero, b - zero) for a, b in clipped(trace.compute, step.start_s, until)]
    return Row(trace.rank, computing, [(one.start_s - zero, one.end_s - zero) for one in step.collectives])


def lanes(picture: Picture, width: int) -> list[str]:
    """Draw computing and collectives of one rank, or the collectives of several, one character per slice of time."""
    rows = picture.rows
    until = max(row.end_s for row in rows) or 1e-9
    slices = [(until * column / width, until * (column + 1) / width) for column in range(width)]
    if len(rows) == 1:
        names, drawn = ["computing", "collectives"], [_computing(rows[0], slices), _sent(rows[0], slices)]
        legend = "  the median step; # computes, - computes a little; below: the collective's number"
    else:
        names, drawn = [f"rank {row.rank}" for row in rows], [_sent(row, slices) for row in rows]
        legend = f"  the collectives of one step; {picture.clock}"
    left = max(map(len, names))
    numbered = max(len(row.collectives) for row in rows) <= len(_SIGNS)
    return [
        *(f"  {name:{left}} |{lane}|" for name, lane in zip(names, drawn, strict=True)),
        f"  {'':{left}}  0{f'{until * 1e3:.1f} ms'.rjust(width - 1)}",
        legend if numbered else legend.replace("the collective's number", "collectives"),
    ]


def _computing(row: Row, slices: list[Span]) -> str:
    shares = (length(clipped(row.compute, start, end)) / (end - start) for start, end in slices)
    return "".join("#" if share > 0.5 else "-" if share > 0.05 else " " for share in shares)


def _sent(row: Row, slices: list[Span]) -> str:
    signs = _SIGNS if len(row.collectives) <= len(_SIGNS) else "=" * len(row.collectives)
    lane = []
    for start, end in slices:
        inside = [(min(b, end) - max(a, start), number) for number, (a, b) in enumerate(row.collectives)]
        most, number = max(inside, default=(0.0, 0))
        lane.append(signs[number] if most > 0 else " ")
    return "".join(lane)


def svg(picture: Picture, title: str) -> str:
    """Draw the rows to scale, computing above collectives."""
    rows = picture.rows
    until = max(row.end_s for row in rows) or 1e-9
    scale = (_WIDTH - _LEFT - _RIGHT) / until
    parts, y = [_text(title, 0, 20, weight="bold")], 34.0
    for row in rows:
        if len(rows) > 1:
            parts.append(_text(f"rank {row.rank}", 0, y + _BAR + 5))
        else:
            parts += [_text("computing", 0, y + 16), _text("collectives", 0, y + _BAR + 18)]
        parts += _bars(_thinned(row.compute, 0.4 / scale), y, scale, _COMPUTE)
        parts += _bars(row.collectives, y + _BAR + 2, scale, _COLLECTIVE)
        parts += _numbers(row.collectives, y + _BAR + 18, scale)
        y += 2 * _BAR + (14 if len(rows) > 1 else 4)
    parts.append(f'<path d="M{_LEFT:g} {y + 4:g}H{_WIDTH - _RIGHT:g}" stroke="{_MUTED}"/>')
    parts += [_text(f"{ms:g} ms", _LEFT + ms / 1e3 * scale, y + 22, anchor="middle") for ms in _ticks(1e3 * until)]
    if len(rows) > 1:
        parts.append(_text(f"above: computing, below: collectives; {picture.clock}", 0, y + 46))
    height = y + (58 if len(rows) > 1 else 34)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {_WIDTH + 24:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f'<rect x="-12" width="{_WIDTH + 24:g}" height="{height:g}" fill="#fff"/>'
        f'<g font-family="sans-serif" font-size="13" fill="{_INK}">{"".join(parts)}</g></svg>\n'
    )


def _ticks(until: float) -> list[float]:
    """Round numbers from 0 to ``until``, four to nine of them."""
    power = 10.0 ** math.floor(math.log10(until))
    step = next(power * part for part in (0.1, 0.2, 0.5, 1, 2) if until / (power * part) < 9)
    return [round(step * number, 12) for number in range(int(until / step) + 1)]


def _text(words: str, x: float, y: float, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def _bars(spans: list[Span], y: float, scale: float, color: str) -> list[str]:
    return [
        f'<rect x="{_LEFT + a * scale:.2f}" y="{y:g}" width="{max(0.4, (b - a) * scale):.2f}" height="{_BAR:g}" '
        f'fill="{color}"/>'
        for a, b in spans
    ]


def _numbers(spans: list[Span], y: float, scale: float) -> list[str]:
    """The collectives' numbers in the table, in those bars that are wide enough."""
    return [
        f'<text x="{_LEFT + (a + b) / 2 * scale:.1f}" y="{y:g}" text-anchor="middle" fill="#fff">{number}</text>'
        for number, (a, b) in enumerate(spans, 1)
        if (b - a) * scale > 9 * len(str(number)) + 4
    ]


def _thinned(spans: list[Span], gap_s: float) -> list[Span]:
    """Without gaps that no screen can show: a step may hold a hundred thousand kernels."""
    kept: list[Span] = []
    for start, end in spans:
        if kept and start - kept[-1][1] < gap_s:
            kept[-1] = kept[-1][0], end
        else:
            kept.append((start, end))
    return kept
