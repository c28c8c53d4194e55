"""``ddplab grade EXERCISE FILE``: run a learner's file on real ranks, say what passed and why not."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..grading.exercises import Exercise, exercise_names, find_exercise, read_source
from . import need_ranks, print_json

if TYPE_CHECKING:
    from ..grading.checks import Outcome

EXAMPLE = """\
examples:
  ddplab grade                                  list the exercises
  ddplab grade sync-gradients                   show the task, and where its starter is
  ddplab grade sync-gradients my_file.py        run it: what passed, and why the rest did not

exit code: 0 all checks passed, 1 a check failed, 2 the input cannot be used
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("exercise", metavar="EXERCISE", nargs="?", help="name of the exercise; without it, list them")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="your Python file; without it, show the task"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--timeout-s",
        type=_seconds,
        default=15.0,
        metavar="SECONDS",
        help="how long one check may take before it counts as hanging (default: 15)",
    )
    parser.set_defaults(run=_grade)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _grade(arguments: argparse.Namespace) -> int:
    if arguments.exercise is None:
        return _list(arguments.json)
    exercise = find_exercise(arguments.exercise)
    if arguments.file is None:
        return _show(exercise, arguments.json)
    source = read_source(arguments.file, exercise)
    need_ranks("grade")
    from ..grading.checks import grade  # what it imports is not everywhere

    paper = Paper()
    if not arguments.json:
        print(paper.strong(f"{exercise.name}: {exercise.title}"), flush=True)
    outcomes = []
    for outcome in grade(exercise, source, arguments.timeout_s):
        outcomes.append(outcome)
        if not arguments.json:
            print(paper.outcome(outcome), flush=True)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    if arguments.json:
        checks = [asdict(outcome) for outcome in outcomes]
        print_json(
            {"exercise": exercise.name, "file": str(source.path), "passed": passed == len(checks), "checks": checks}
        )
    elif passed == len(outcomes):
        print(f"All {passed} checks passed: {arguments.file} solves the exercise.")
    else:
        print(f"{passed} of {len(outcomes)} checks passed; mend what failed and run it again.")
    return 0 if passed == len(outcomes) else 1


def _list(as_json: bool) -> int:
    found = [find_exercise(name) for name in exercise_names()]
    if as_json:
        print_json(
            {"exercises": [{"name": e.name, "title": e.title, "starter": str(e.folder / "starter.py")} for e in found]}
        )
    else:
        width = max(len(e.name) for e in found)
        print("\n".join(f"{e.name:{width}}  {e.title}" for e in found))
    return 0


def _show(exercise: Exercise, as_json: bool) -> int:
    starter = exercise.folder / "starter.py"
    if as_json:
        print_json({"name": exercise.name, "title": exercise.title, "task": exercise.task, "starter": str(starter)})
        return 0
    print(Paper().strong(f"{exercise.name}: {exercise.title}"))
    print(f"\n{exercise.task}\n")
    print(f"Start from a copy:  cp {shlex.quote(str(starter))} my_file.py")
    print(f"Then:               ddplab grade {exercise.name} my_file.py")
    return 0


class Paper:
    """What the output can show: signs or letters, colour or none."""

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((80, 24)).columns, 96)
        try:
            "✓✗·“│".encode(sys.stdout.encoding or "ascii")
            self.signs = {"passed": "✓", "failed": "✗", "not run": "·"}
        except UnicodeEncodeError:
            self.signs = {"passed": "+", "failed": "x", "not run": "-"}

    def strong(self, text: str) -> str:
        """The text in bold."""
        return f"\033[1m{text}\033[0m" if self.colour else text

    def outcome(self, outcome: Outcome) -> str:
        """One check: its sign, its title, its ranks, and behind it what to do."""
        tint = {"passed": "32", "failed": "31", "not run": "2"}[outcome.status]
        ranks = f"{outcome.ranks} rank{'s' * (outcome.ranks > 1)}"
        line = f"{self.signs[outcome.status]} {outcome.title} ({'not run' if outcome.status == 'not run' else ranks})"
        lines = [f"\033[{tint}m{line}\033[0m" if self.colour else line]
        if outcome.status == "failed":
            lines += self._indented(outcome.setting) + self._indented(outcome.message)
            if outcome.read:
                lines += self._indented(f"Read {outcome.read}.")
            if outcome.printed:
                lines += ["    Your ranks printed:", *(f"    {line[: self.width - 4]}" for line in outcome.printed)]
        return "\n".join(lines)

    def _indented(self, text: str) -> list[str]:
        return textwrap.wrap(
            text,
            self.width,
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
