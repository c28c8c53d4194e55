"""``ddplab grade EXERCISE FILE``: run a learner's file on real ranks, say what passed and why not."""

from __future__ import annotations

import argparse
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..grading.exercises import Exercise, exercise_names, find_exercise, read_source
from . import need_ranks, print_json
from .terminal import Terminal

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
    from ..grading.run import grade  # what it imports is not everywhere

    terminal = Terminal()
    if not arguments.json:
        print(terminal.strong(f"{exercise.name}: {exercise.title}"), flush=True)
    outcomes = []
    for outcome in grade(exercise, source, arguments.timeout_s):
        outcomes.append(outcome)
        if not arguments.json:
            print(_text(outcome, terminal), flush=True)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    if arguments.json:
        checks = [asdict(outcome) for outcome in outcomes]
        print_json(
            {"exercise": exercise.name, "file": str(source.path), "passed": passed == len(checks), "checks": checks}
        )
    elif passed == len(outcomes):
        print(f"All {passed} checks passed: {arguments.file} solves the exercise.")
    else:
        print(f"{passed} of {len(outcomes)} checks passed; fix what failed and run it again.")
    return 0 if passed == len(outcomes) else 1


def _facts(exercise: Exercise) -> dict[str, str | int]:
    level = exercise.level
    return {"name": exercise.name, "title": exercise.title, "level": level.name, "minutes": level.minutes}


def _list(as_json: bool) -> int:
    found = [find_exercise(name) for name in exercise_names()]
    if as_json:
        print_json({"exercises": [{**_facts(e), "starter": str(e.folder / "starter.py")} for e in found]})
    else:
        width = max(len(e.name) for e in found)
        print("\n".join(f"{e.name:{width}}  {e.level}  {e.title}" for e in found))
    return 0


def _show(exercise: Exercise, as_json: bool) -> int:
    starter = exercise.folder / "starter.py"
    if as_json:
        print_json({**_facts(exercise), "task": exercise.task, "starter": str(starter)})
        return 0
    print(Terminal().strong(f"{exercise.name}: {exercise.title}"))
    print(f"{str(exercise.level).capitalize()}.\n\n{exercise.task}\n")
    print(f"Start from a copy:  cp {shlex.quote(str(starter))} my_file.py")
    print(f"Then:               ddplab grade {exercise.name} my_file.py")
    return 0


_MARKS = {"passed": ("✓", "+", "32"), "failed": ("✗", "x", "31"), "not run": ("·", "-", "2")}  # sign, letter, color


def _text(outcome: Outcome, terminal: Terminal) -> str:
    """One check: its mark, its title, its ranks, and after a failure what to do."""
    sign, letter, color = _MARKS[outcome.status]
    ranks = f"{outcome.ranks} rank{'s' * (outcome.ranks > 1)}"
    mark = sign if terminal.can_show("✓✗·“│") else letter
    line = f"{mark} {outcome.title} ({'not run' if outcome.status == 'not run' else ranks})"
    lines = [terminal.colored(line, color)]
    if outcome.status == "failed":
        lines += terminal.indented(outcome.setting) + terminal.indented(outcome.message)
        if outcome.read:
            lines += terminal.indented(f"Read {outcome.read}.")
        if outcome.printed:
            lines += ["    Your ranks printed:", *(f"    {line[: terminal.width - 4]}" for line in outcome.printed)]
    return "\n".join(lines)
