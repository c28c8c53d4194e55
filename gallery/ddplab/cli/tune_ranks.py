"""``tune`` on ranks: on new ones of this machine, or as one rank of those that torchrun or srun started."""

from __future__ import annotations

import datetime
import os
import re
import signal
import sys
from typing import Any

from ..errors import BadInput
from ..runtime.environment import adopt_srun_variables
from ..runtime.group import gpus_differ, join_group, leave_group
from ..runtime.launcher import LaunchError, launch
from ..runtime.shared_gpu import ASKED


def answer_of_ranks(nproc: int | None, bound_s: float, task: tuple[Any, ...]) -> dict[str, Any] | None:
    """Tune on the ranks that a launcher started, of which this process is one, or else on ``nproc`` new ones.

    Args:
        nproc: ranks to start, or that must be there; None: as many as :func:`ddplab.launch` starts, or as are there.
        bound_s: seconds after which ranks that still run are ended.
        task: arguments of :func:`ddplab.model.tuning.tune.tune`.

    Returns:
        What was found; None on a rank other than 0, which has nothing to print.

    Raises:
        BadInput: the model cannot be tuned, or the launcher set no usable variables.
        SystemExit: the same on a rank other than 0, which leaves the message to rank 0.
    """
    if adopt_srun_variables():
        return _on_started_ranks(nproc, bound_s, task)
    try:
        own = {ASKED: "0"}  # ranks that share a GPU under NCCL take turns: their times would advise nothing
        ranks: list[dict[str, Any]] = launch(_on_new_rank, nproc, *task, timeout_s=bound_s, env=own, quiet=True)
    except LaunchError as error:
        raise BadInput(_one_line(str(error))) from None
    return ranks[0]


def _on_new_rank(*task: Any) -> dict[str, Any]:
    from ..model.tuning.tune import tune  # imports torch, which the parent does not need

    return tune(*task)


def _one_line(failure: str) -> str:
    """Return the message of a LaunchError without the traceback."""
    found = re.search(r"^[\w.]*\.TuningError: (.+)$", failure, re.MULTILINE)
    if found:
        return found[1]
    first, *more = failure.splitlines()
    if " still ran after " in first:
        return f"{first}; one of them hangs, maybe in your function or its model; try with fewer --seconds"
    return f"{first} {more[-1] if 'Traceback' in failure else more[0]}"


def _on_started_ranks(nproc: int | None, bound_s: float, task: tuple[Any, ...]) -> dict[str, Any] | None:
    found = None
    rank, problem = _place(nproc)
    if problem is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # Python would not run a handler while it waits in a collective
        found, problem = _as_rank(rank, bound_s, task)
    if problem is None:
        return found if rank == 0 else None
    if rank == 0:
        raise BadInput(problem)
    sys.exit(2)


def _place(nproc: int | None) -> tuple[int, str | None]:
    """Return the rank of this process, and what is wrong with the variables that its launcher set."""
    given = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    wrong = [name for name, value in given.items() if not (value.isdecimal() or (name == "MASTER_ADDR" and value))]
    rank, world = (int(given[name]) if given[name].isdecimal() else 0 for name in ("RANK", "WORLD_SIZE"))
    problem = None
    if wrong:
        problem = (
            f"RANK is set, so a launcher started this, but {wrong[0]} is {given[wrong[0]]!r}: use torchrun, or export "
            f"{wrong[0]} before srun; to start ranks here, unset RANK"
        )
    elif world == 1:
        problem = "1 rank all-reduces nothing, so bucket_cap_mb changes nothing; start 2 or more"
    elif nproc not in (None, world):
        problem = f"--ranks {nproc}, but {world} ranks are started; leave --ranks out"
    return rank, problem


def _as_rank(rank: int, bound_s: float, task: tuple[Any, ...]) -> tuple[dict[str, Any] | None, str | None]:
    """Tune as one rank; return what was found, or the problem that all ranks have. Standard output stays clean."""
    import torch.distributed as dist

    from ..model.tuning.together import TuningError
    from ..model.tuning.tune import tune

    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2 if rank == 0 else os.open(os.devnull, os.O_WRONLY), 1)
    found = problem = None
    try:
        rendezvous = dist.rendezvous("env://", timeout=datetime.timedelta(seconds=bound_s))  # type: ignore[attr-defined]
        store, rank, world = next(rendezvous)
        join_group(store, rank, world, bound_s, "nccl" if gpus_differ(store, rank, world) else "gloo")
        try:
            found = tune(*task)
        except TuningError as error:
            if not error.everywhere:
                raise
            problem = str(error)
        leave_group()
    except Exception as error:  # the other ranks do not know: exit at once, so that the launcher ends them
        message = str(error) if isinstance(error, TuningError) else f"{type(error).__name__}: {error}"
        print(f"ddplab: rank {rank}: {' '.join(message.split())[:600]}", file=sys.stderr, flush=True)
        os._exit(2)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
    return found, problem
