"""The part of a log that is at hand: a block to be read, and the lines before it."""

from __future__ import annotations

from collections.abc import Iterator

from .tables import limits


class Window:
    """A buffer of text, read up to ``scanned``, where line ``number`` of the file begins."""

    def __init__(self) -> None:
        self.text = ""
        self.scanned = 0
        self.number = 1

    def blocks(self, piece: str) -> Iterator[int]:
        """Add a piece of the log. Yields up to where to read, each time that a block is full."""
        at = 0
        while at < len(piece):
            take = limits.block_chars - (len(self.text) - self.scanned)
            self.text += piece[at : at + take]
            at += take
            if len(self.text) - self.scanned >= limits.block_chars:
                yield self.lines_back(len(self.text), self.scanned + limits.block_chars // 2)
                keep = self.lines_back(self.scanned, max(0, self.scanned - limits.block_chars // 2))
                self.text = self.text[keep:]
                self.scanned -= keep

    def lines_back(self, position: int, least: int = 0) -> int:
        """Where the line that many lines above ``position`` begins, at least ``least``; ``position`` if none does."""
        found = position
        for _ in range(limits.around):
            at = self.text.rfind("\n", least, found - 1) if found > least else -1
            if at < 0:
                return found if least else 0
            found = at + 1
        return found

    def lines_forward(self, position: int) -> int:
        """Where the line that many lines below ``position`` ends."""
        for _ in range(limits.around):
            at = self.text.find("\n", position + 1)
            if at < 0:
                return len(self.text)
            position = at
        return position

    def above(self, begin: int) -> list[str]:
        """The lines above ``begin``, the nearest first."""
        return self.text[self.lines_back(begin) : begin].split("\n")[:-1][::-1]

    def below(self, end: int) -> list[str]:
        """The lines below the one that ends at ``end``."""
        return self.text[end + 1 : self.lines_forward(end)].split("\n")

    def line_above(self, begin: int) -> str:
        """The line above ``begin``."""
        return self.text[self.text.rfind("\n", 0, max(begin - 1, 0)) + 1 : begin]

    def number_at(self, position: int) -> int:
        """The number of the line at ``position``, once all is read."""
        rest = self.text[position:]
        return self.number - rest.count("\n") + rest.count("\n\r") - rest.count("\0")

    def run_of_equal(self, begin: int, end: int, most: int, few: int) -> int:
        """Where the lines equal to ``text[begin:end]`` end, if more than a few follow; else ``end``."""
        line, width = self.text[begin:end], end - begin
        if not self.text.startswith(line * few, end):
            return end
        while end + width <= most and self.text.startswith(line, end):
            end += width
        return end

    def count(self, start: int, end: int) -> None:
        """Move the line number on; ``unwrap.py`` says what the marks mean."""
        self.number += self.text.count("\n", start, end) - self.text.count("\n\r", start, end + 1)
        self.number += self.text.count("\0", start, end)
