"""The ranks of one launch, as their parent sees them: start them, take their reports, end them."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing.connection
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from . import evidence, shared_gpu
from .environment import reserve_port, torchrun_variables
from .forkserver import CONTEXT, ONE_AT_A_TIME, ctrl_c_waits, forked, start_fork_server
from .rank import STACK_SIGNAL, AtEnd, Job, run_rank, worker_frames

GRACE_S = 0.3  # after the first failure: time for the report of the rank that caused it
LAUNCH_LIMIT = "DDPLAB_LAUNCH_LIMIT_S"
# A rank whose peer died reports its broken connection, often before the parent sees the death itself.
_CONSEQUENCE = re.compile(r"Connection (closed|reset|refused|was likely closed)|Broken pipe|Socket closed")
# gloo prints this to stdout, once per rank and process group.
_CHATTER = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks.*\n?", re.MULTILINE)


@dataclass
class Failure:
    """Why a rank failed: ``text`` for people, with the traceback or the last output."""

    rank: int
    at_s: float
    text: str
    error: str = ""  # of an exception: its type and text, without the traceback

    def blame(self) -> tuple[bool, float]:
        """Sort key: causes before consequences, then the earliest."""
        return (bool(_CONSEQUENCE.search(self.text)), self.at_s)


@dataclass
class Run:
    """What one launch left; no process of it is alive."""

    ranks: list[Rank]
    failures: list[Failure] | None  # None: the time was up before any rank failed
    outputs: list[str]
    stacks: dict[int, str]  # where each rank that still ran was
    began_s: float
    timeout_s: float  # the bound that held


class Rank:
    """One rank as its parent sees it."""

    def __init__(self, job: Job, listener: socket.socket | None) -> None:
        self.job = job
        self.result: Any = None
        self.facts: dict[str, Any] = {}
        self.reported = False
        self.failure: Failure | None = None
        self.ended_s = math.inf  # on the clock of time.monotonic
        Path(job.output).touch()
        Path(job.stacks).touch()
        self.inbox, outbox = CONTEXT.Pipe(duplex=False)
        self.process = forked(run_rank, job, outbox, listener)
        outbox.close()

    def running(self) -> bool:
        """Return whether the process has not ended."""
        with ONE_AT_A_TIME:
            return self.process.exitcode is None

    def receive(self) -> Failure | None:
        """Take the rank's report; return its failure, if it is one."""
        try:
            ok, self.facts, value = cloudpickle.loads(self.inbox.recv_bytes())
        except (EOFError, ConnectionError):
            return None  # it died without a report: its exit code will tell
        self.reported = True
        if ok:
            self.result = value
            return None
        return Failure(self.job.rank, *value)

    def death(self) -> Failure:
        """Return the failure of a rank that ended without a report."""
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = "\n".join(Path(self.job.output).read_text(errors="replace").splitlines()[-5:])
        text = f"rank {self.job.rank} {how} before its worker returned" + (
            f"; its last output:\n{tail}" if tail else ""
        )
        return Failure(self.job.rank, time.monotonic(), text)

    def dump_stacks(self) -> None:
        """Have the rank write where it is; faulthandler needs no cooperation from Python code."""
        if self.process.pid is not None and self.running():
            os.kill(self.process.pid, signal.SIGCONT)
            os.kill(self.process.pid, STACK_SIGNAL)
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the rank and what it started, and reap it."""
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # not a group leader yet, or all of it is gone
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.running():
            self.process.kill()
        self.reap()
        self.inbox.close()

    def reap(self) -> None:
        """Take the exit code, of which there is one: a start in another thread would take it, too."""
        with ONE_AT_A_TIME:
            self.process.join()


def run_ranks(
    worker: Callable[..., Any],
    args: tuple[Any, ...],
    nproc: int,
    *,
    timeout_s: float,
    init: bool = True,
    env: Mapping[str, str] | None = None,
    group_timeout_s: float | None = None,
    at_end: AtEnd = "meet",
    up_to: int | None = None,
) -> Run:
    """Start the ranks, wait for all of them, and return what each left.

    Args:
        worker: as for :func:`ddplab.launch`, and so are ``nproc``, ``timeout_s``, ``init``, ``env`` and ``up_to``.
        args: of the worker.
        group_timeout_s: timeout of the process group, by default ``timeout_s``.
        at_end: what a rank does once its worker returned. Unless they ``meet``, a failure does not end the other ranks.

    Raises:
        ValueError: ``nproc`` is not a whole number of at least 1, or ``timeout_s`` is not positive.
    """
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise ValueError(f"launch: nproc must be a whole number of ranks, at least 1; got {nproc!r}")
    if timeout_s <= 0:
        raise ValueError(f"launch: timeout_s must be a positive number of seconds; got {timeout_s!r}")
    timeout_s = min(timeout_s, _most_s())
    shared_gpu.is_asked()  # a value that it does not take is refused here, not in each rank

    payload = _by_value(worker, args)
    start_fork_server()
    with tempfile.TemporaryDirectory(prefix="ddplab-") as folder, contextlib.ExitStack() as stack:
        # The parent takes the port: no other program can before the ranks meet. Rank 0 is handed the socket to listen
        # on, or with init=False makes its own, as it would under torchrun.
        reservation = stack.enter_context(reserve_port())
        port = reservation.getsockname()[1]
        if init:
            reservation.listen()
        ranks: list[Rank] = []
        for rank in range(nproc):
            job = Job(
                rank=rank,
                nproc=nproc,
                up_to=max(nproc, up_to or nproc),
                payload=payload,
                environment={**os.environ, **torchrun_variables(rank, nproc, port), **(env or {})},
                init=init,
                timeout_s=group_timeout_s or timeout_s,
                output=f"{folder}/{rank}.out",
                stacks=f"{folder}/{rank}.stacks",
                at_end=at_end,
            )
            # A Ctrl-C waits: a rank that was just started would not be known yet, and not be ended.
            with ctrl_c_waits(), ONE_AT_A_TIME:
                ranks.append(Rank(job, reservation if init and rank == 0 else None))
                stack.callback(ranks[-1].kill)
        if init:
            reservation.close()
        began_s = time.monotonic()
        failures = _wait(ranks, began_s + timeout_s, GRACE_S if at_end == "meet" else timeout_s)
        hung = [r for r in ranks if r.running() and not r.reported] if failures is None or at_end != "meet" else []
        for r in hung:
            r.dump_stacks()
        for r in ranks:
            r.kill()
        outputs = [_CHATTER.sub("", Path(r.job.output).read_text(errors="replace")) for r in ranks]
        stacks = {r.job.rank: worker_frames(Path(r.job.stacks).read_text(errors="replace")) for r in hung}

    facts = next((r.facts for r in ranks if r.facts), None)
    if facts is not None:  # some rank reported; a launch that failed is evidence too
        chosen = {"chosen": True} if "CUDA_VISIBLE_DEVICES" in (env or {}) else {}  # the devices, by the script
        evidence.note_launch(nproc, {**facts, **chosen})
    return Run(ranks, failures, outputs, stacks, began_s, timeout_s)


def _most_s() -> float:
    """What a launch may take at most, whatever its own bound: time on a borrowed GPU is short."""
    given = os.environ.get(LAUNCH_LIMIT, "inf")
    try:
        if (seconds := float(given)) > 0:
            return seconds
    except ValueError:
        pass
    raise ValueError(f"{LAUNCH_LIMIT} is {given!r}; set it to a positive number of seconds")


def _wait(ranks: list[Rank], deadline: float, grace_s: float) -> list[Failure] | None:
    """Wait until all ranks are done or one failed ``grace_s`` ago; return the failures, or None at the deadline."""
    failures: list[Failure] = []
    waiting: dict[Any, Rank] = {end: r for r in ranks for end in (r.inbox, r.process.sentinel)}
    while waiting:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return failures or None
        ready = multiprocessing.connection.wait(list(waiting), remaining)
        # Reports before deaths: a rank that reported and then left did not die.
        for end in sorted(ready, key=lambda end: end is waiting[end].process.sentinel):
            if end not in waiting:
                continue  # the death of a rank whose report came in the same batch
            rank = waiting.pop(end)
            if end is rank.inbox:
                failure = rank.receive()
                if rank.reported and rank.job.at_end == "stay":
                    waiting.pop(rank.process.sentinel, None)
            else:
                rank.reap()
                unheard = rank.inbox in waiting and rank.inbox.poll()
                failure = None if rank.reported or unheard else rank.death()
            rank.ended_s = min(rank.ended_s, time.monotonic())
            rank.failure = failure or rank.failure
            if failure is not None:
                if not failures:
                    deadline = min(deadline, time.monotonic() + grace_s)
                failures.append(failure)
    return failures


def _by_value(worker: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a worker with all that it needs from its own module, so that no rank has to import that module."""
    module = sys.modules.get(getattr(worker, "__module__", "") or "")
    by_reference = module is None or module.__name__ == "__main__" or module.__name__.split(".")[0] == "ddplab"
    if by_reference:  # cloudpickle already sends the functions of __main__ by value
        return _dumps((worker, args))
    with ONE_AT_A_TIME:
        cloudpickle.register_pickle_by_value(module)
        try:
            return _dumps((worker, args))
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _dumps(value: Any) -> bytes:
    packed = io.BytesIO()
    _Pickler(packed).dump(value)
    return packed.getvalue()


def _with_file(code: CodeType) -> Any:
    make, arguments, *more = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if one == "<dynamic-code>" else one for one in arguments), *more


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the names of files, which cloudpickle 3.1.3 leaves out: tracebacks and flight records would lack them."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file})
