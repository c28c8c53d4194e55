"""Draw what ranks hold, chunk by chunk, from the numbers that a run really returned.

The labs on collectives give chunk c of rank r the value (c + 1) · 10ʳ. After sums and copies, decimal
digit r of a number still says which chunk of rank r went into it: 3003 is chunk 3 of ranks 0 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..runtime.group import device
from .plotting import FAINT, INK, MUTED, RANK_COLORS

_GAP = 0.06  # white on each side of a cell, as a share of its place


def on_device(tensor: Tensor) -> Tensor:
    """Return ``tensor`` on the device whose tensors the process group sends between two ranks; gloo's is the CPU."""
    return tensor.to(device()) if "nccl" in dist.get_backend() else tensor


def my_chunks() -> Tensor:
    """Return what this rank starts with: as many numbers as there are ranks, number c being (c + 1) · 10ʳ."""
    return on_device(torch.arange(1.0, dist.get_world_size() + 1) * 10 ** dist.get_rank())


def contributions(value: float, ranks: int) -> dict[int, int]:
    """Which rank's chunk is in ``value``: ``{rank: chunk number}``, chunk numbers from 1.

    Args:
        value: a whole number below 10**ranks, a sum of terms (chunk number) · 10**rank.
        ranks: number of ranks.

    Raises:
        ValueError: ``value`` cannot be such a sum.
    """
    if value != int(value) or not 0 <= value < 10**ranks:
        raise ValueError(f"{value!r} is not a sum of chunks of {ranks} ranks")
    digits = [int(value) // 10**rank % 10 for rank in range(ranks)]
    return {rank: digit for rank, digit in enumerate(digits) if digit}


def draw_chunks(
    ax: Any, held: Sequence[Sequence[float | None]], *, numbers: bool = True, row_gap: float = _GAP
) -> None:
    """Draw one row per rank and one cell per chunk; stripe r of a cell is what came from rank r.

    Args:
        ax: the axes; chunk c of rank r lies at x = c…c + 1, y = r…r + 1, rank 0 on top.
        held: ``held[rank][chunk]``, numbers as :func:`contributions` reads them, None where a rank holds nothing.
        numbers: write the chunk's number in its stripe.
        row_gap: white above and below a cell, as a share of its place; arrows between ranks need some.
    """
    ranks, width, height = len(held), 1 - 2 * _GAP, 1 - 2 * row_gap
    for rank, row in enumerate(held):
        for chunk, value in enumerate(row):
            left, middle = chunk + _GAP, rank + 0.5
            if value is None:
                ax.barh(middle, width, height, left, color="none", edgecolor=MUTED, linewidth=0.6, linestyle=":")
                continue
            ax.barh(middle, width, height, left, color=FAINT)
            inside = contributions(value, ranks)
            for source, number in inside.items():
                x = left + source * width / ranks
                ax.barh(middle, width / ranks, height, x, color=RANK_COLORS[source], alpha=0.5 if numbers else 0.9)
                if numbers:
                    ax.text(x + width / ranks / 2, middle, number, ha="center", va="center", fontsize=8.5)
            if len(inside) == ranks:  # complete
                ax.barh(middle, width, height, left, color="none", edgecolor=INK, linewidth=1)
    ax.set(xlim=(-0.05, max(map(len, held)) + 0.05), ylim=(ranks + 0.05, -0.05), xticks=[])
    ax.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_aspect("equal")


def draw_ring_moves(ax: Any, sent: Sequence[int], *, row_gap: float) -> None:
    """Draw an arrow from each sender down to its right neighbour; the last rank's leaves below and enters on top.

    Args:
        ax: axes with the chunks of :func:`draw_chunks`.
        sent: ``sent[rank]``, the chunk (from 0) that the rank sent.
        row_gap: as given to :func:`draw_chunks`.
    """
    style = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
    borders = [(rank + 1, chunk) for rank, chunk in enumerate(sent)]
    for border, chunk in [*borders, (0, sent[-1])]:
        ax.annotate("", (chunk + 0.5, border + row_gap), (chunk + 0.5, border - row_gap), arrowprops=style)


def draw_key(ax: Any, ranks: int) -> None:
    """Fill ``ax`` with one large chunk and what its stripes and its frame say."""
    width = 0.6 / ranks
    for rank in range(ranks):
        ax.barh(0.3, width, 0.2, 0.2 + width * rank, color=RANK_COLORS[rank], alpha=0.9)
        ax.text(0.2 + width * (rank + 0.5), 0.15, str(rank), ha="center", va="center")
    ax.barh(0.3, 0.6, 0.2, 0.2, color="none", edgecolor=INK, linewidth=1)
    text = "one chunk: stripe r is filled\nonce rank r's share is in it;\nframed once all shares are"
    ax.text(0.5, 0.5, text, ha="center", va="top", fontsize=8.5)
    ax.set(xlim=(0, 1), ylim=(1, 0))
    ax.set_axis_off()
