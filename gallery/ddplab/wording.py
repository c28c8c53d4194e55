"""Ranks as a reader writes them."""

from __future__ import annotations

from collections.abc import Sequence


def ranks_text(ranks: Sequence[int], most_runs: int | None = None) -> str:
    """Return ``rank 3`` or ``ranks 0–6, 9``; after ``most_runs`` runs of neighbors, an ellipsis."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{a}" if a == b else f"{a}–{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:most_runs]]
    more = ", …" if len(parts) < len(runs) else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}{more}"
