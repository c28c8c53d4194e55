"""Grade a text as a learner's file, in this process: its fork server is warm already."""

import textwrap
from pathlib import Path

from ddplab.grading.checks import Outcome, grade
from ddplab.grading.exercises import EXERCISES, find_exercise, read_source


def outcomes(exercise: str, path: Path, timeout_s: float = 60) -> list[Outcome]:
    found = find_exercise(exercise)
    return list(grade(found, read_source(path, found), timeout_s))


def first_failure(exercise: str, folder: Path, text: str, timeout_s: float = 60) -> Outcome:
    """The check that rejects ``text``, which must be wrong."""
    path = folder / "mine.py"
    path.write_text(text)
    failed = [outcome for outcome in outcomes(exercise, path, timeout_s) if outcome.status == "failed"]
    assert failed, "a wrong solution passed every check"
    return failed[0]


def passes_all(exercise: str, path: Path) -> bool:
    """Whether every check passes; what the first that does not says is in pytest's report."""
    failed = [outcome for outcome in outcomes(exercise, path) if outcome.status != "passed"]
    print(*failed[:1])
    return not failed


def text_of(exercise: str, *edits: tuple[str, str]) -> str:
    """The solution with other lines."""
    text = (EXERCISES / exercise / "solution.py").read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def overriding(exercise: str, name: str, methods: str) -> str:
    """The solution, and below it its class ``name`` again, with other ``methods``."""
    solution = (EXERCISES / exercise / "solution.py").read_text()
    body = textwrap.indent(textwrap.dedent(methods).strip(), "    ")
    return f"{solution}\n\nclass {name}({name}):\n{body}\n"


def teaches(outcome: Outcome, words: str) -> None:
    """The message holds each of the words, split at `|`."""
    for word in words.split("|"):
        assert word in outcome.message, outcome.message
