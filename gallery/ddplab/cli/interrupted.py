"""Ctrl-C as the end of endless input, such as the output of a job that hangs: what came so far is used."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class UntilInterrupted:
    """``with UntilInterrupted() as pieces: for piece in pieces(source)`` ends at Ctrl-C, never in the midst of a piece.

    A second Ctrl-C ends the program.
    """

    def __init__(self) -> None:
        self._reading = self._asked = False
        self._before: Any = None

    def __enter__(self) -> Callable[[Iterator[str]], Iterator[str]]:
        """Take over Ctrl-C."""
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self._pieces

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        again, self._asked = self._asked, True
        if self._reading or again:
            self._reading = False
            raise KeyboardInterrupt

    def _pieces(self, source: Iterator[str]) -> Iterator[str]:
        while not self._asked:
            self._reading = True
            try:
                piece = next(source, None)
            except KeyboardInterrupt:
                break
            finally:
                self._reading = False
            if piece is None:
                return
            yield piece
        print("ddplab: stopped by Ctrl-C; this is what the log says so far", file=sys.stderr)
