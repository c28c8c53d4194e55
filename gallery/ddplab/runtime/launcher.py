"""Run a worker on several ranks of this machine, from a script, a test, a notebook or a page.

Each rank is forked from a process that has imported torch (forkserver.py), and receives its worker by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .gpus import cards
from .rank import STACK_SIGNAL
from .ranks import Failure, run_ranks


class LaunchError(RuntimeError):
    """A rank failed, died or outlived the time bound; the message ends with its traceback, or where it hangs.

    Attributes:
        rank: the rank that failed first.
        outputs: what each rank had printed until then, in rank order.
    """

    def __init__(self, message: str, rank: int, outputs: list[str]) -> None:
        super().__init__(message)
        self.rank = rank
        self.outputs = outputs


def launch(
    worker: Callable[..., Any],
    nproc: int | None = None,
    *args: Any,
    timeout_s: float = 120.0,
    init: bool = True,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    up_to: int | None = None,
) -> list[Any]:
    """Run ``worker(*args)`` on ``nproc`` ranks and return what each rank returned, in rank order.

    Each rank sees the variables that ``torchrun`` would set, and an initialized process group, so the
    worker can start with ``dist.get_rank()``. With ``init=False`` it finds the variables only.
    What a rank prints is shown as its lane. NCCL is used when every rank can have a GPU of its own (or, with
    ``DDPLAB_SHARE_GPU=1``, a share of one), gloo otherwise; :func:`ddplab.device` is the rank's device.
    Launches may run side by side, each in a thread of its own.

    Args:
        worker: any callable; it is sent by value, so it may be defined in the script itself.
        nproc: number of ranks; by default one per GPU where there are several, else 2.
        timeout_s: seconds after which ranks that still run are killed; also the process group's timeout.
            ``DDPLAB_LAUNCH_LIMIT_S`` in the environment lowers it.
        init: initialize the process group before the worker, barrier and destroy it afterwards.
        env: more environment variables for the ranks.
        quiet: do not print the lanes.
        up_to: the most ranks of the launches whose results stand in one table: all of them take the backend of that
            one, else some would use NCCL and some gloo on a machine with few GPUs. By default ``nproc``.

    Raises:
        ValueError: ``nproc`` is not a whole number of at least 1, or ``timeout_s`` is not positive.
        LaunchError: a rank raised, died or hung; the message is that of the first rank to fail.
    """
    nproc = _default_nproc() if nproc is None else nproc
    run = run_ranks(worker, args, nproc, timeout_s=timeout_s, init=init, env=env, up_to=up_to)
    if not quiet:
        print(lanes(run.outputs), end="", flush=True)
    ranks, failures = run.ranks, run.failures
    if failures is None:
        unknown = f"(unknown: its worker handles {STACK_SIGNAL.name} itself, or it has just ended)"
        where = "".join(f"\n--- rank {rank} hangs here ---\n{text or unknown}" for rank, text in run.stacks.items())
        hung_ranks = sorted(run.stacks) or [r.job.rank for r in ranks if not r.reported]  # those that ended just now
        names = ", ".join(str(rank) for rank in hung_ranks)
        message = f"rank {names} of {len(ranks)} still ran after {run.timeout_s:g} s{where}"
        raise LaunchError(message, hung_ranks[0], run.outputs)
    if failures:
        first = min(failures, key=Failure.blame)
        raise LaunchError(f"rank {first.rank} of {len(ranks)} failed first:\n{first.text}", first.rank, run.outputs)
    return [r.result for r in ranks]


def lanes(outputs: list[str]) -> str:
    """Return what the ranks printed, rank after rank, each line behind its rank: ``rank 0 │ …``."""
    return "".join(f"rank {rank} │ {line}\n" for rank, text in enumerate(outputs) for line in text.splitlines())


def _default_nproc() -> int:
    """One rank per GPU where there are several, else 2."""
    return max(2, len(cards()))
