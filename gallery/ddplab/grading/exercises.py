"""The exercises of the book, and the files that learners write for them: all that can be said without running them.

An exercise is a folder of ``gallery/exercises``: ``starter.py`` (its docstring is the task), ``solution.py`` and
``grader.py`` (its docstring ends with the level; its checks, see :mod:`ddplab.grading.checks`).
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
import symtable
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..files import shipped
from .level import Level, split_level

EXERCISES = shipped("exercises")
HANDBOOK = Path(__file__).parents[3] / "handbook"
MAX_FILE_BYTES = 2**20


@dataclass(frozen=True)
class Exercise:
    """One exercise, as its starter and its grader tell it."""

    name: str
    folder: Path
    title: str
    task: str
    level: Level
    asks_for: tuple[str, ...]  # what the learner's file must define: the functions and classes of the starter


@dataclass(frozen=True)
class Source:
    """A learner's file: read once, so that all ranks run the same text."""

    path: Path
    text: str


def exercise_names() -> list[str]:
    """Return the names of all exercises.

    Raises:
        BadInput: the folder of exercises is missing.
    """
    names = sorted(path.parent.name for path in EXERCISES.glob("*/grader.py"))
    if not names:
        raise BadInput(f"no exercises in {EXERCISES}; install with `pip install -e .` from a copy of the book")
    return names


def find_exercise(name: str) -> Exercise:
    """Return the exercise ``name``.

    Raises:
        BadInput: there is none of that name, or its grader does not say its level.
    """
    if name not in exercise_names():
        raise BadInput(f"no exercise is called {name!r}; choose one of {', '.join(exercise_names())}")
    folder = EXERCISES / name
    tree, grader = (ast.parse((folder / file).read_text(encoding="utf-8")) for file in ("starter.py", "grader.py"))
    title, _, task = (ast.get_docstring(tree) or "").partition("\n")
    _, level = split_level(ast.get_docstring(grader) or "", folder / "grader.py")
    asks_for = tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return Exercise(name, folder, title, task.strip(), level, asks_for)


def read_source(path: Path, exercise: Exercise) -> Source:
    """Read and compile the file at ``path``, without executing it.

    Raises:
        BadInput: it is missing, no regular file, too long, no Python, or lacks a name that the exercise asks for.
    """
    advice = f"start from a copy of {exercise.folder / 'starter.py'}"
    try:
        if path.is_dir():
            raise BadInput(f"{path} is a directory; give the Python file that you wrote")
        if path.exists() and not path.is_file():
            raise BadInput(f"{path} is not a regular file; give the Python file that you wrote")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"{path} is longer than {MAX_FILE_BYTES // 2**20} MiB; give the Python file that you wrote")
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; {advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise BadInput(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        text = importlib.util.decode_source(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, str(path), "exec", dont_inherit=True)
            symbols = symtable.symtable(text, str(path), "exec").get_symbols()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a Python file: byte {error.start} is not {error.encoding} text") from None
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else f"{path}"
        line = (error.text or "").strip()[:80]
        raise BadInput(f"{where}: {error.msg}" + (f": {line!r}" if line else "")) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise BadInput(f"{path} is not a Python file: {error or type(error).__name__}") from None
    defined = [s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()]
    for name in exercise.asks_for:
        if name not in defined and "import *" not in text:  # what a star brings is seen when it runs
            close = difflib.get_close_matches(name, defined, 1) or defined[:1]
            raise BadInput(
                f"{path} does not define {name!r}" + (f", but {close[0]!r}" if close else "") + f"; {advice}"
            )
    return Source(path.absolute(), text)


def section(label: str) -> str:
    """Return where the section of that label is: ``“Title” in handbook/file.md``."""
    for page in sorted(HANDBOOK.rglob("*.md")):
        found = re.search(
            rf"^\({re.escape(label)}\)=\n(?:\([\w-]+\)=\n)*#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        if found:
            return f"“{found[1]}” in {page.relative_to(HANDBOOK.parent)}"
    return f"the section {label!r} of the handbook"
