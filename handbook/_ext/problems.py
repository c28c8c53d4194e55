"""How extensions report what is wrong: a warning with its place, or one message that ends the build."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from ddplab.diagnose import tables

logger = logging.getLogger(__name__)

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


class BuildError(SystemExit):
    """Ends the build with one message, which says what to do, and exit status 1.

    Sphinx answers every ``Exception``, its own ``SphinxError`` too, with pages of versions and a traceback.
    It leaves ``SystemExit`` alone, so that Python prints the message and nothing else.
    """


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; ``location`` is file and line, or document and line as Sphinx resolves them."""

    location: str | tuple[str, int]
    message: str


def read_toml(path: Path) -> dict[str, Any]:
    """What a data file of the book holds.

    Raises:
        BuildError: it is not TOML, or not utf-8. The message has the file and, as far as the parser tells, the line.
    """
    try:
        return tables.read_toml(path)
    except ValueError as error:
        raise BuildError(f"{path.name}: {error}") from None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the names that are close to it, or all of a few."""
    names = list(known)
    near = difflib.get_close_matches(name, names)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; choose one of {', '.join(names)}" if 0 < len(names) <= 12 else ""


def warn_at(env: BuildEnvironment, message: str, line: int) -> None:
    """Warn about the document that is being read, and read it again in the next build.

    Without the second half the next build would find the document up to date and pass.
    """
    logger.warning(message, location=(env.docname, line))
    env.note_reread()


def end_if_any(problems: Iterable[Problem], what: str) -> None:
    """Report every problem with its place, then end the build if there is any.

    Raises:
        BuildError: there is a problem. Raised before Sphinx keeps its environment, so the next build sees it again.
    """
    found = list(problems)
    for problem in found:
        logger.warning(problem.message, location=problem.location)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        raise BuildError(f"{what}: {count}, named above")


def expect(holds: object, library: str, assumption: str) -> None:
    """End the build if another version of a library is not as this book's code assumes; ``assumption`` says how.

    Raises:
        BuildError: it does not hold. The message names the version that the book was made with.
    """
    if not holds:
        pinned = re.search(rf"^{library}==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
        install = f"pip install {library}=={pinned[1]}" if pinned else f"pip install -c {CONSTRAINTS.name} {library}"
        raise BuildError(f"{library} {metadata.version(library)} is not supported: {assumption}; run: {install}")
