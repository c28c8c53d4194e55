"""How hard a lab or an exercise is, and how long it takes: the last line of its docstring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput

_LINE = re.compile(r":Level: (core|deep|evidence), (\d+) minutes")
_PROVES = re.compile(r"\n:Proves:.*\Z", re.DOTALL)  # the claims that a lab proves stand below its level


@dataclass(frozen=True)
class Level:
    """What a reader can know beforehand."""

    name: str  # core, deep; evidence: a lab that records what the text cites, with nothing to try
    minutes: int  # to read it, run it and change it

    def __str__(self) -> str:  # noqa: D105
        return f"{self.name}, {self.minutes} minutes"


def split_level(docstring: str, path: Path) -> tuple[str, Level]:
    """Return a docstring without its last line, and the level that this line names.

    Args:
        docstring: ends with a line such as ``:Level: core, 15 minutes``.
        path: its file, for the message.

    Raises:
        BadInput: it does not end so.
    """
    text, _, last = _PROVES.sub("", docstring.rstrip()).rpartition("\n")
    if found := _LINE.fullmatch(last.strip()):
        return text.rstrip(), Level(found[1], int(found[2]))
    raise BadInput(
        f"{path}: the docstring ends with {last.strip()[:60]!r}; its last line must be such as"
        " ':Level: core, 15 minutes', with core, deep or evidence, and the minutes that a reader needs"
    )
