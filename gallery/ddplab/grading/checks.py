"""Grade a learner's file: run it on real ranks, check by check, and say what a wrong result means.

The ``grader.py`` of an exercise holds its checks. Each observes on every rank, and judges what all ranks have seen::

    @check("Two ranks end with the mean", ranks=2, judge=equal_to_the_mean)
    def two_ranks(learner: ModuleType, witness: Witness) -> Seen:
        \"\"\"What this check does, in one sentence that a failure quotes.\"\"\"

The learner's file is only ever executed in ranks; nothing that it does ends, hangs or outlives the grader.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import multiprocessing
import multiprocessing.forkserver
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from ..runtime.launcher import LaunchError, launch
from .exercises import Exercise, Source, section
from .strays import no_strays

if TYPE_CHECKING:
    from .witness import Witness

_MAX_OUTPUT_BYTES = 2**24  # of one rank in one check: a file that prints for ever must not fill the disk
_PRINTED_LINES = 5  # of each rank are shown
_ABORT = re.compile(r"│ (terminate called after|  what\(\): )")  # C++, of a rank whose peer called something else


@dataclass(frozen=True)
class Check:
    """One small thing that a solution must do."""

    title: str
    ranks: int
    read: str  # label of the section of the handbook that explains it
    setting: str  # what the check does, in a sentence
    observe: Callable[[ModuleType, Witness], Any]  # on each rank: the learner's module -> what is seen
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
) -> Callable[[Callable[[ModuleType, Witness], Any]], Check]:
    """Make a check of the function below; its docstring is the setting that a failure quotes."""

    def decorate(observe: Callable[[ModuleType, Witness], Any]) -> Check:
        return Check(title, ranks, read, " ".join((observe.__doc__ or "").split()), observe, judge)

    return decorate


def expect(condition: object, message: str, read: str = "") -> None:
    """Raise :class:`Wrong` unless ``condition`` holds; the message says what was seen and what causes it."""
    if not condition:
        raise Wrong(message, read)


# -- running ----------------------------------------------------------------------------------------


def grade(exercise: Exercise, source: Source, timeout_s: float = 15.0) -> Iterator[Outcome]:
    """Run the checks of ``exercise`` on ``source``, in order, until one fails; the others are then not run.

    Args:
        exercise: from :func:`find_exercise`.
        source: from :func:`read_source`.
        timeout_s: seconds that one check may take; a right solution takes a fraction of one.
    """
    _start_fork_server()  # its imports of torch and ours, in the grader, run side by side
    checks = [_IMPORT, *_checks(exercise)]
    for index, check_ in enumerate(checks):
        outcome = _run(exercise, source, index - 1, check_, timeout_s)
        yield outcome
        if outcome.status == "failed":
            yield from (Outcome(later.title, later.ranks, "not run") for later in checks[index + 1 :])
            return


_IMPORT = Check(
    "The file can be imported",
    ranks=1,
    read="",
    setting="A rank runs the top level of your file, as `import` does.",
    observe=lambda learner, witness: None,
    judge=lambda seen: None,
)


def _checks(exercise: Exercise) -> list[Check]:
    grader = _load(f"grader_{exercise.name.replace('-', '_')}", exercise.folder / "grader.py")
    return [value for value in vars(grader).values() if isinstance(value, Check)]


def _load(name: str, path: Path, text: str | None = None) -> ModuleType:
    """Import the file at ``path`` as module ``name``, with ``text`` as its content."""
    text = path.read_text(encoding="utf-8") if text is None else text
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses, pickle and inspect look there
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


def _run(exercise: Exercise, source: Source, index: int, check_: Check, timeout_s: float) -> Outcome:
    from .autopsy import examine, part  # they need torch, and what is slow comes after what can be said at once
    from .witness import read_log

    lanes = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="ddplab-grade-") as name:
        folder = Path(name)
        try:
            with no_strays(), contextlib.redirect_stdout(lanes):
                seen = launch(_in_rank, check_.ranks, folder, exercise, source, index, timeout_s=timeout_s)
            parting = part([read_log(folder / f"{rank}.calls")[0] for rank in range(check_.ranks)], check_.read)
            if parting:
                raise parting
            check_.judge(seen)
        except LaunchError as error:
            wrong = examine(error, folder, source, check_, timeout_s)
        except Wrong as error:
            wrong = error
        except Exception as error:  # the judge has met what its author did not think of
            wrong = Wrong(f"Your file left something that this check cannot judge ({error!r}).")
        else:
            return Outcome(check_.title, check_.ranks, "passed")
    label = wrong.read or check_.read
    where = section(label) if label else ""
    return Outcome(
        check_.title, check_.ranks, "failed", check_.setting, wrong.message, where, _readable(lanes, check_.ranks)
    )


def _in_rank(folder: Path, exercise: Exercise, source: Source, index: int) -> Any:
    """Run check number ``index`` in this rank, -1 being the import; leave what was raised in ``folder``."""
    import torch
    import torch.distributed as dist

    from .autopsy import end_when_out_of_step, note_raised
    from .witness import Witness

    if not torch.cuda.is_available():  # NCCL keeps shared memory in files, which may be larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES))
    rank = dist.get_rank()
    check_ = _IMPORT if index < 0 else _checks(exercise)[index]
    with Witness(folder / f"{rank}.calls") as witness, end_when_out_of_step(witness, folder, rank, source):
        try:
            sys.path.append(str(source.path.parent))  # a helper beside the file can be imported, and shadows nothing
            learner = _load("learner", source.path, source.text)
            for name in exercise.asks_for:
                getattr(learner, name)
            return check_.observe(learner, witness)
        except BaseException as error:
            note_raised(error, source, folder / f"{rank}.raised")
            raise


def _readable(lanes: io.StringIO, ranks: int) -> tuple[str, ...]:
    """The last lines that each rank printed, without what a terminal would act upon."""
    lines = [line for line in lanes.getvalue().splitlines() if not _ABORT.search(line)]
    last: list[str] = []
    for rank in range(ranks):
        last += [line for line in lines if line.startswith(f"rank {rank} │")][-_PRINTED_LINES:]
    return tuple("".join(c if c.isprintable() else "�" for c in line[:200]) for line in last)


def _start_fork_server() -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ddplab.runtime.preload"])  # as launch does
    multiprocessing.forkserver.ensure_running()
