"""Grade a learner's file: run it on real ranks, check by check.

The learner's file is only ever executed in ranks; nothing that it does ends, hangs or outlives the grader.
"""

from __future__ import annotations

import contextlib
import io
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..runtime.forkserver import start_fork_server
from ..runtime.launcher import LaunchError, launch
from .checks import Check, Outcome, Wrong, checks_of, load_module
from .exercises import Exercise, Source, section
from .leftovers import no_leftovers

_MAX_OUTPUT_BYTES = 2**24  # of one rank in one check: a file that prints for ever must not fill the disk
_PRINTED_LINES = 5  # of each rank are shown
_ABORT = re.compile(r"│ (terminate called after|  what\(\): )")  # C++, of a rank whose peer called something else


def grade(exercise: Exercise, source: Source, timeout_s: float = 15.0) -> Iterator[Outcome]:
    """Run the checks of ``exercise`` on ``source``, in order, until one fails; the others are then not run.

    Args:
        exercise: from :func:`find_exercise`.
        source: from :func:`read_source`.
        timeout_s: seconds that one check may take; a right solution takes a fraction of one.
    """
    start_fork_server()  # its imports of torch and ours, in the grader, run side by side
    checks = [_IMPORT, *checks_of(exercise)]
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
    observe=lambda learner, recorder: None,
    judge=lambda seen: None,
)


def _run(exercise: Exercise, source: Source, index: int, check_: Check, timeout_s: float) -> Outcome:
    from .calls import read_log
    from .explain import diverged, explain  # these need torch, which is slow to import

    lanes = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="ddplab-grade-") as name:
        folder = Path(name)
        try:
            with no_leftovers(), contextlib.redirect_stdout(lanes):
                seen = launch(_in_rank, check_.ranks, folder, exercise, source, index, timeout_s=timeout_s)
            if wrong := diverged([read_log(folder / f"{rank}.calls")[0] for rank in range(check_.ranks)], check_.read):
                raise wrong
            check_.judge(seen)
        except LaunchError as error:
            wrong = explain(error, folder, source, check_, timeout_s)
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

    from .calls import Recorder
    from .explain import end_when_out_of_step, note_raised

    if not torch.cuda.is_available():  # NCCL keeps shared memory in files, which may be larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES))
    rank = dist.get_rank()
    check_ = _IMPORT if index < 0 else checks_of(exercise)[index]
    with Recorder(folder / f"{rank}.calls") as recorder, end_when_out_of_step(recorder, folder, rank, source):
        try:
            sys.path.append(str(source.path.parent))  # a helper beside the file can be imported, and shadows nothing
            learner = load_module("learner", source.path, source.text)
            for name in exercise.asks_for:
                getattr(learner, name)
            return check_.observe(learner, recorder)
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
