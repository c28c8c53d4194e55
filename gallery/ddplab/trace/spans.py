"""Sets of moments, as sorted lists of (start, end) that do not touch; times are in seconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """All moments that lie in one of ``spans``."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """The moments of ``spans`` in which none of ``others`` goes on; both are unions."""
    left: list[Span] = []
    first = 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at, number = start, first
        while number < len(others) and others[number][0] < end:
            if others[number][0] > at:
                left.append((at, others[number][0]))
            at = max(at, others[number][1])
            number += 1
        if at < end:
            left.append((at, end))
    return left


def clipped(spans: list[Span], start: float, end: float) -> list[Span]:
    """The moments of ``spans`` from ``start`` to ``end``; ``spans`` is a union, of which a step is a small part."""
    first = bisect_right(spans, start, key=lambda span: span[1])
    after = bisect_left(spans, end, key=lambda span: span[0])
    return [(max(a, start), min(b, end)) for a, b in spans[first:after]]


def length(spans: Iterable[Span]) -> float:
    """How long they last together, in seconds; ``spans`` is a union."""
    return sum(end - start for start, end in spans)


class Growing:
    """A union that spans are added to, in memory bounded by the number of gaps in it."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._next = 1 << 16

    def add(self, span: Span) -> None:
        """Add a span, in any order."""
        self._spans.append(span)
        if len(self._spans) >= self._next:
            self._spans = union(self._spans)
            self._next = max(1 << 16, 2 * len(self._spans))

    def union(self) -> list[Span]:
        """All that was added."""
        return union(self._spans)
