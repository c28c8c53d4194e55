"""A ring all-reduce as a drawing: what the ring stepper shows where no script runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..embed.figures import RANK_COLORS
from .svg_pieces import FAINT, INK, WIDTH, arrow, box, svg, text

_T = TypeVar("_T")


@dataclass(frozen=True)
class RingState:
    """What the ranks hold after a step of a ring all-reduce.

    Attributes:
        step: 0 is the start.
        phase: start | reduce-scatter | all-gather.
        moves: (sender, receiver, chunk) of the messages of this step.
        held: ``held[rank][chunk]``, the number there.
        shares: ``shares[rank][chunk]``, the ranks whose numbers are in it.
    """

    step: int
    phase: str
    moves: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[frozenset[int], ...], ...]


def ring_states(p: int) -> list[RingState]:
    """All states of a ring all-reduce over ``p`` ranks; rank r starts with 10·r + c as its chunk c, from 1.

    In step s, from 0, rank r sends chunk (r − s) mod p to rank r + 1, which adds it in the first p − 1 steps and
    keeps it in the last p − 1: the order of the lab ``ring-allreduce``.
    """
    held = [[10 * rank + chunk + 1 for chunk in range(p)] for rank in range(p)]
    shares = [[frozenset({rank}) for _ in range(p)] for rank in range(p)]
    states = [RingState(0, "start", (), _frozen(held), _frozen(shares))]
    for step in range(2 * (p - 1)):
        adds = step < p - 1
        moves = tuple((rank, (rank + 1) % p, (rank - step) % p) for rank in range(p))
        sent = [(to, chunk, held[rank][chunk], shares[rank][chunk]) for rank, to, chunk in moves]
        for to, chunk, number, members in sent:
            held[to][chunk] = held[to][chunk] + number if adds else number
            shares[to][chunk] = shares[to][chunk] | members if adds else members
        phase = "reduce-scatter" if adds else "all-gather"
        states.append(RingState(step + 1, phase, moves, _frozen(held), _frozen(shares)))
    return states


def _frozen(rows: Sequence[Sequence[_T]]) -> tuple[tuple[_T, ...], ...]:
    return tuple(tuple(row) for row in rows)


def ring_words(p: int) -> str:
    """What the drawing of a ring shows, for those who cannot see it."""
    return (
        f"What {p} ranks hold at the start and after each of the {2 * (p - 1)} steps of a ring all-reduce: numbers, "
        "a stripe for each rank whose share is in a number, a frame around finished sums, arrows for what was sent."
    )


def ring_figure(p: int) -> str:
    """A panel for the start and for each step."""
    per_row, states = 4, ring_states(p)
    width = WIDTH / per_row
    cell, high, pitch = (width - 34) / p, 26.0, 44.0
    panel = 40 + p * pitch
    parts = []
    for number, state in enumerate(states):
        left, top = number % per_row * width + 18, number // per_row * panel + 38
        adds = {"start": "start", "reduce-scatter": "add", "all-gather": "copy"}[state.phase]
        title = f"step {state.step}: {adds}" if state.step else adds
        parts.append(text(title, left + p * cell / 2, top - 22, "middle", bold=True))
        came = {(to, chunk) for _, to, chunk in state.moves}
        for rank in range(p):
            y = top + rank * pitch
            parts.append(text(str(rank), left - 8, y + 17, "middle", bold=True))
            for chunk in range(p):
                place = left + chunk * cell + 2
                done = len(state.shares[rank][chunk]) == p
                parts.append(box(place, y, cell - 4, high, FAINT, INK if done else FAINT, 0.5 if done else 0.45))
                middle, new = place + cell / 2 - 2, (rank, chunk) in came
                parts.append(text(str(state.held[rank][chunk]), middle, y + 14, "middle", bold=new))
                stripe = (cell - 10) / p
                for source in sorted(state.shares[rank][chunk]):
                    parts.append(box(place + 3 + source * stripe, y + 18, stripe, 6, RANK_COLORS[source], "none"))
        for rank, to, chunk in state.moves:
            x = left + (chunk + 0.5) * cell
            parts.append(arrow(x, top + rank * pitch + high + 2))
            if to == 0:
                parts.append(arrow(x, top - pitch + high + 2))
    rows = math.ceil((len(states) + 1) / per_row)
    left, top = len(states) % per_row * width + 18, (rows - 1) * panel + 54
    for row, words in enumerate(
        ("stripe r: rank r’s share", "is in the number;", "frame: a finished sum;", "arrow: sent in this step")
    ):
        parts.append(text(words, left, top + 20 * row))
    return svg(rows * panel + 6, ring_words(p), parts)
