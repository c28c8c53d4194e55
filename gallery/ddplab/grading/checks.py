"""What a check is, and what it says: the parts from which the ``grader.py`` of an exercise is made.

A check observes on every rank, and judges what all ranks have seen::

    @check("Two ranks end with the mean", ranks=2, judge=equal_to_the_mean)
    def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
        \"\"\"What this check does, in one sentence that a failure quotes.\"\"\"

It is run by :mod:`ddplab.grading.run`.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from .exercises import Exercise

if TYPE_CHECKING:
    from .calls import Recorder


@dataclass(frozen=True)
class Check:
    """One small thing that a solution must do."""

    title: str
    ranks: int
    read: str  # label of the section of the handbook that explains it
    setting: str  # what the check does, in a sentence
    observe: Callable[[ModuleType, Recorder], Any]  # on each rank: the learner's module -> what is seen
    judge: Callable[[list[Any]], None]  # what all ranks have seen; raises Wrong


class Wrong(Exception):  # noqa: N818  (it is the learner's file that is wrong)
    """A check has failed: ``message`` teaches, ``read`` is the label of a section that explains."""

    def __init__(self, message: str, read: str = "") -> None:
        super().__init__(message)
        self.message, self.read = message, read


@dataclass(frozen=True)
class Outcome:
    """What became of one check."""

    title: str
    ranks: int
    status: Literal["passed", "failed", "not run"]
    setting: str = ""
    message: str = ""
    read: str = ""
    printed: tuple[str, ...] = ()  # what the ranks printed, when it failed


def check(
    title: str, *, ranks: int, judge: Callable[[list[Any]], None], read: str = ""
) -> Callable[[Callable[[ModuleType, Recorder], Any]], Check]:
    """Make a check of the function below; its docstring is the setting that a failure quotes."""

    def decorate(observe: Callable[[ModuleType, Recorder], Any]) -> Check:
        return Check(title, ranks, read, " ".join((observe.__doc__ or "").split()), observe, judge)

    return decorate


def expect(condition: object, message: str, read: str = "") -> None:
    """Raise :class:`Wrong` unless ``condition`` holds; the message says what was seen and what causes it."""
    if not condition:
        raise Wrong(message, read)


# -- words -------------------------------------------------------------------------------------------


def listed(items: Sequence[object]) -> str:
    """Return the items in words: ``a, b and c``."""
    *most, last = map(str, items or ["nothing"])
    return f"{', '.join(most)} and {last}" if most else last


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: ``2 buckets``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def milliseconds(seconds: float) -> str:
    """Return a time in words: ``12.5 ms``."""
    return f"{1e3 * seconds:.5g} ms"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).splitlines() or [""])[0][:300]


# -- files -------------------------------------------------------------------------------------------


def checks_of(exercise: Exercise) -> list[Check]:
    """Return the checks of an exercise, in the order of its grader."""
    grader = load_module(f"grader_{exercise.name.replace('-', '_')}", exercise.folder / "grader.py")
    return [value for value in vars(grader).values() if isinstance(value, Check)]


def load_module(name: str, path: Path, text: str | None = None) -> ModuleType:
    """Import the file at ``path`` anew as module ``name``, with ``text`` as its content."""
    text = path.read_text(encoding="utf-8") if text is None else text
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses, pickle and inspect look there
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


def load_sibling(file: str, name: str) -> ModuleType:
    """Import ``name.py`` beside the grader ``file``, once in this process."""
    module = f"{Path(file).parent.name.replace('-', '_')}_{name}"
    return sys.modules.get(module) or load_module(module, Path(file).with_name(f"{name}.py"))


def text_of(module: ModuleType) -> str:
    """Return the text that :func:`load_module` made ``module`` of."""
    return "".join(linecache.getlines(str(module.__file__)))
