"""Tables that others published, and two models of one all-reduce that are fitted to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, pairwise
from math import ceil, inf, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parents[2] / "performance"


def published(file: str, kind: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a file that are of a kind, ``all-reduce`` or ``training``, by their ids."""
    tables = json.loads((FOLDER / file).read_text(encoding="utf-8"))["tables"]
    return {table["id"]: table for table in tables if table["kind"] == kind}


class Point(NamedTuple):
    """One published all-reduce."""

    nbytes: int
    nodes: int
    ranks: int
    seconds: float


def points(row: dict[str, Any]) -> list[Point]:
    """Return the all-reduces of a row of a table."""
    sizes_and_times = zip(row["bytes"], row["us"], strict=True)
    return [Point(nbytes, row["nodes"], row["ranks"], us * 1e-6) for nbytes, us in sizes_and_times]


def fit_line(known: Sequence[Point]) -> Any:
    """Fit the three costs of a line: fixed, per doubling of the nodes, and per byte on the bus, all in seconds."""
    rows = np.array([_terms(point) / point.seconds for point in known])  # rows @ costs = 1
    weights = np.ones(len(rows))
    for _ in range(8):  # reweighted until it minimizes the absolute relative errors
        costs = np.linalg.lstsq(weights[:, None] * rows, weights, rcond=None)[0].clip(0)
        weights = np.maximum(abs(rows @ costs - 1), 0.01) ** -0.5
    return costs


def fit_three_lines(known: Sequence[Point]) -> list[Any]:
    """Fit one line for each of three ranges of sizes, cut where all are fitted best; empty with too few sizes."""
    sizes, best, fitted = sorted({point.nbytes for point in known}), inf, []
    for cuts in combinations(sizes[2:-1:2], 2):
        ranges = pairwise((0, *cuts, inf))
        lines = [fit_line([p for p in known if low <= p.nbytes < high]) for low, high in ranges]
        missed = sum(abs(fastest(lines, point) / point.seconds - 1) for point in known)
        if missed < best:
            best, fitted = missed, lines
    return fitted


def fastest(lines: Sequence[Any], point: Point) -> float:
    """Return the seconds that the fastest of the lines predicts for an all-reduce."""
    return min(float(costs @ _terms(point)) for costs in lines)


def _terms(point: Point) -> Any:
    return np.array([1.0, ceil(log2(point.nodes)), 2 * (point.ranks - 1) / point.ranks * point.nbytes])
