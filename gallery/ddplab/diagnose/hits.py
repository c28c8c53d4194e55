"""Lines of interest, the files that they are from, and how a process ended."""

from __future__ import annotations

from dataclasses import dataclass

from .lines import Time
from .tables import limits


@dataclass(frozen=True, slots=True)
class Source:
    """A log file, and the rank in its name."""

    name: str
    rank: int | None


@dataclass(slots=True)
class Hit:
    """A line of interest."""

    source: Source
    number: int
    rank: int | None
    text: str
    body: str  # without what stands before the message
    time: Time | None
    warning: bool
    begin: int = 0  # position in the buffer while it was read

    def show(self, text: str, needle: str) -> None:
        """Of a line whose message stands far behind its begin, keep the part around the message."""
        at = text.find(needle)
        if at > 2 * limits.text_before:
            self.text = self.body = "…" + text[at - limits.text_before :][: limits.text_kept]


@dataclass(slots=True)
class Exit:
    """How a process ended, by torchrun's account."""

    rank: int | None
    code: int | None
    hit: Hit | None = None
    time: Time | None = None
    code_hit: Hit | None = None
