"""How commands print numbers and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def short(value: float) -> str:
    """Return a number to read: one decimal, or three significant digits where it is small."""
    return f"{value:.1f}" if value >= 10 or value == 0 else f"{value:.3g}"


def table(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.rjust) -> list[str]:
    """Return one line per row, in columns; ``align`` is ``str.rjust`` or ``str.ljust``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(align, row, widths)).rstrip() for row in rows]
