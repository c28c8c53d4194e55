"""How extensions say that something is wrong: of one place, and go on; or as one message that ends the build."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


class Stop(SystemExit):
    """Ends the build with one message, which says what to do, and exit status 1.

    Sphinx answers every ``Exception``, its own ``SphinxError`` too, with pages of versions and a traceback.
    It leaves ``SystemExit`` alone, so that Python prints the message and nothing else.
    """


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; ``location`` is file and line, or document and line as Sphinx resolves them."""

    location: str | tuple[str, int]
    message: str


def which(name: str, known: Iterable[str]) -> str:
    """What may be meant by an unknown name, as the end of a complaint: a few that are near, or all of a few."""
    names = list(known)
    near = difflib.get_close_matches(name, names)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; there is {', '.join(names) or 'none'}" if len(names) <= 12 else ""


def complain(env: BuildEnvironment, message: str, line: int) -> None:
    """Warn about the document that is being read, and read it again in the next build.

    Without the second half the next build would find the document up to date and pass.
    """
    logger.warning(message, location=(env.docname, line))
    env.note_reread()


def stop_on(problems: Iterable[Problem], what: str) -> None:
    """Report every problem with its place, then end the build if there is any.

    Raises:
        Stop: there is a problem. Raised before Sphinx keeps its environment, so the next build sees it again.
    """
    found = list(problems)
    for problem in found:
        logger.warning(problem.message, location=problem.location)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        raise Stop(f"{what}: {count}, named above")
