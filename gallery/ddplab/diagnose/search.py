"""Which lines of a block hold which needles, in a time that hardly grows with the number of needles.

Needles share short pieces. A block is searched for those, and for the needles themselves only where their piece is.
Pieces are chosen that a sample of the log does not have, since what its ordinary lines say is found everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

PIECE = 3  # characters
STEP = 1 << 16  # characters of a block that are searched at once
SAMPLE = 1 << 17  # characters; a block shorter than this is searched for each needle, which takes less than choosing


class Search:
    """A search for many needles."""

    def __init__(self, needles: Sequence[str]) -> None:
        self._needles = needles
        self._single = [(needle, [index]) for index, needle in enumerate(needles)]
        self._shared: list[tuple[str, list[int]]] = []
        self._overlap = max(map(len, needles), default=1) - 1

    def lines(self, text: str, start: int, end: int) -> dict[int, list[int]]:
        """From where a line begins to the needles on it, for the lines of ``text[start:end]``."""
        if not self._shared and end - start >= SAMPLE:
            self._shared = self._pieces(text[start : start + SAMPLE])
        found: dict[int, set[int]] = {}
        for first in range(start, end, STEP):
            last = min(first + STEP + self._overlap, end)
            for piece, indexes in self._shared or self._single:
                if text.find(piece, first, last) >= 0:
                    for index in indexes:
                        needle = self._needles[index]
                        at = text.find(needle, first, last)
                        while at >= 0:
                            begin = max(text.rfind("\n", start, at) + 1, start)
                            found.setdefault(begin, set()).add(index)
                            stop = text.find("\n", at, last)
                            at = text.find(needle, stop, last) if stop >= 0 else -1
        return {begin: sorted(indexes) for begin, indexes in found.items()}

    def _pieces(self, sample: str) -> list[tuple[str, list[int]]]:
        """Pieces that the sample does not have, each with the needles to look for where it is."""
        common = {sample[at : at + PIECE] for at in range(len(sample) - PIECE + 1)}
        holders: dict[str, set[int]] = {}
        for index, needle in enumerate(self._needles):
            for at in range(len(needle) - PIECE + 1):
                if (piece := needle[at : at + PIECE]) not in common:
                    holders.setdefault(piece, set()).add(index)
        left = set(range(len(self._needles)))
        pieces: list[tuple[str, list[int]]] = []
        while holders:
            best = max(holders, key=lambda piece: (len(holders[piece]), piece))
            taken = holders.pop(best)
            if not taken:
                break
            pieces.append((best, sorted(taken)))
            left -= taken
            for others in holders.values():
                others -= taken
        return pieces + [self._single[index] for index in sorted(left)]
