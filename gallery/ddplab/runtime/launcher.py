"""Run a worker on several ranks of this machine, from a script, a test, a notebook or a page.

Gallery scripts are executed cell by cell in a fake ``__main__``, so ``torch.multiprocessing.spawn`` cannot
pickle their workers, and a plain fork hangs once the parent has run a threaded operator.
Here a fork server imports torch once; each rank is forked from it and receives its worker by value.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from . import evidence
from .gpus import cards
from .rank import STACK_SIGNAL, Job, run_rank, worker_frames

# A rank whose peer died reports its broken connection, often before the parent sees the death itself.
_CONSEQUENCE = re.compile(r"Connection (closed|reset|refused|was likely closed)|Broken pipe|Socket closed")
# gloo prints this to stdout, once per rank and process group.
_CHATTER = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks.*\n?", re.MULTILINE)
_FORKSERVER = multiprocessing.get_context("forkserver")
_ONE_AT_A_TIME = threading.RLock()  # launches may run in several threads; cloudpickle and multiprocessing would not
_LASTING_THREAD = ThreadPoolExecutor(1)  # the fork server dies with the thread that started it
_GRACE_S = 0.3  # after the first failure: time for the rank that caused it to be heard


class LaunchError(RuntimeError):
    """A rank failed, died or outlived the time bound.

    ``rank`` is the rank that failed first, ``outputs`` what each rank had printed until then.
    """

    def __init__(self, message: str, rank: int, outputs: list[str]) -> None:
        super().__init__(message)
        self.rank = rank
        self.outputs = outputs


@dataclass
class _Failure:
    rank: int
    at_s: float
    text: str
    error: str = ""  # of an exception: its type and text, without the traceback

    def blame(self) -> tuple[bool, float]:
        """Sort key: causes before consequences, then the earliest."""
        return (bool(_CONSEQUENCE.search(self.text)), self.at_s)


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
    What a rank prints is shown as its lane. NCCL is used when every rank can have a GPU of its own
    (or share one, where the installed NCCL allows that), gloo otherwise; :func:`ddplab.device` is the rank's device.
    Launches may run side by side, each in a thread of its own.

    Args:
        worker: any callable; it is sent by value, so it may be defined in the script itself.
        nproc: number of ranks; by default one per GPU where there are several, else 2.
        timeout_s: seconds after which ranks that still run are killed; also the process group's timeout.
        init: initialize the process group before the worker, barrier and destroy it afterwards.
        env: more environment variables for the ranks.
        quiet: do not print the lanes.
        up_to: the most ranks of the launches whose results stand in one table: all of them take the backend of that
            one, else some would use NCCL and some gloo on a machine with few GPUs. By default ``nproc``.

    Raises:
        ValueError: ``nproc`` is not a whole number of at least 1, or ``timeout_s`` is not positive.
        LaunchError: a rank raised, died or hung; the message is that of the first rank to fail.
    """
    run = _run(worker, nproc, args, timeout_s=timeout_s, init=init, env=env, up_to=up_to)
    if not quiet:
        print(lanes(run.outputs), end="", flush=True)
    ranks, failures = run.ranks, run.failures
    if failures is None:
        unknown = f"(nothing is known: its worker has taken {STACK_SIGNAL.name}, or it has ended just now)"
        where = "".join(f"\n--- rank {rank} hangs here ---\n{text or unknown}" for rank, text in run.stacks.items())
        hung_ranks = sorted(run.stacks) or [r.job.rank for r in ranks if not r.reported]  # those that ended just now
        names = ", ".join(str(rank) for rank in hung_ranks)
        message = f"rank {names} of {len(ranks)} still ran after {timeout_s:g} s{where}"
        raise LaunchError(message, hung_ranks[0], run.outputs)
    if failures:
        first = min(failures, key=_Failure.blame)
        raise LaunchError(f"rank {first.rank} of {len(ranks)} failed first:\n{first.text}", first.rank, run.outputs)
    return [r.result for r in ranks]


@dataclass
class _Run:
    """What one launch left; no process of it is alive."""

    ranks: list[_Rank]
    failures: list[_Failure] | None  # None: the time was up before any rank failed
    outputs: list[str]
    stacks: dict[int, str]  # where each rank that still ran was
    began_s: float


def _run(
    worker: Callable[..., Any],
    nproc: int | None,
    args: tuple[Any, ...],
    *,
    timeout_s: float,
    init: bool,
    env: Mapping[str, str] | None,
    group_timeout_s: float | None = None,
    at_end: str = "part",
    up_to: int | None = None,
) -> _Run:
    """Start the ranks and see them end; unless they ``part`` at the end, a failure does not end the other ranks."""
    nproc = _default_nproc() if nproc is None else nproc
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise ValueError(f"launch: nproc must be a whole number of ranks, at least 1; got {nproc!r}")
    if timeout_s <= 0:
        raise ValueError(f"launch: timeout_s must be a positive number of seconds; got {timeout_s!r}")

    payload = _by_value(worker, args)
    _start_fork_server()
    with tempfile.TemporaryDirectory(prefix="ddplab-") as folder, contextlib.ExitStack() as stack:
        # The parent takes the port: no other program can before the ranks meet. Rank 0 is handed the socket to listen
        # on, or with init=False makes its own, as it would under torchrun.
        reservation = stack.enter_context(reserve_port())
        port = reservation.getsockname()[1]
        listener = reservation if init else None
        if init:
            reservation.listen()
        ranks: list[_Rank] = []
        for rank in range(nproc):
            job = Job(
                rank=rank,
                nproc=nproc,
                up_to=max(nproc, up_to or nproc),
                payload=payload,
                environment={**os.environ, **_torchrun_variables(rank, nproc, port), **(env or {})},
                init=init,
                timeout_s=group_timeout_s or timeout_s,
                output=f"{folder}/{rank}.out",
                stacks=f"{folder}/{rank}.stacks",
                at_end=at_end,
            )
            # A Ctrl-C waits: a rank that was just started would not be known yet, and not be ended.
            with _ctrl_c_waits(), _ONE_AT_A_TIME:
                ranks.append(_Rank(job, listener if rank == 0 else None))
                stack.callback(ranks[-1].kill)
        if init:
            reservation.close()
        began_s = time.monotonic()
        failures = _wait(ranks, began_s + timeout_s, _GRACE_S if at_end == "part" else timeout_s)
        unheard = failures is None or at_end != "part"
        hung = [r for r in ranks if r.running() and not r.reported] if unheard else []
        for rank_ in hung:
            rank_.dump_stacks()
        for rank_ in ranks:
            rank_.kill()
        outputs = [_CHATTER.sub("", Path(r.job.output).read_text(errors="replace")) for r in ranks]
        stacks = {r.job.rank: worker_frames(Path(r.job.stacks).read_text(errors="replace")) for r in hung}

    facts = next((r.facts for r in ranks if r.facts), None)
    if facts is not None:  # some rank reported; a launch that failed is evidence too
        chosen = {"chosen": True} if "CUDA_VISIBLE_DEVICES" in (env or {}) else {}  # the devices, by the script
        evidence.note_launch(nproc, {**facts, **chosen})
    return _Run(ranks, failures, outputs, stacks, began_s)


def lanes(outputs: list[str]) -> str:
    """Return what the ranks printed, rank after rank, each line behind its rank: ``rank 0 │ …``."""
    return "".join(f"rank {rank} │ {line}\n" for rank, text in enumerate(outputs) for line in text.splitlines())


# -- the parent's side ------------------------------------------------------------------------------


class _Rank:
    """One rank as its parent sees it."""

    def __init__(self, job: Job, listener: socket.socket | None) -> None:
        self.job = job
        self.result: Any = None
        self.facts: dict[str, Any] = {}
        self.reported = False
        self.failure: _Failure | None = None
        self.ended_s = math.inf  # on the clock of time.monotonic
        Path(job.output).touch()
        Path(job.stacks).touch()
        self.inbox, outbox = _FORKSERVER.Pipe(duplex=False)
        self.process = _FORKSERVER.Process(target=run_rank, args=(job, outbox, listener), daemon=True)
        with _no_main():
            self.process.start()
        outbox.close()

    def running(self) -> bool:
        with _ONE_AT_A_TIME:
            return self.process.exitcode is None

    def receive(self) -> _Failure | None:
        """Take the rank's report; return its failure, if it is one."""
        try:
            ok, self.facts, value = cloudpickle.loads(self.inbox.recv_bytes())
        except (EOFError, ConnectionError):
            return None  # it died without a word: its exit code will tell
        self.reported = True
        if ok:
            self.result = value
            return None
        return _Failure(self.job.rank, *value)

    def death(self) -> _Failure:
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = "\n".join(Path(self.job.output).read_text(errors="replace").splitlines()[-5:])
        text = f"rank {self.job.rank} {how} before its worker returned" + (f"; it last said:\n{tail}" if tail else "")
        return _Failure(self.job.rank, time.monotonic(), text)

    def dump_stacks(self) -> None:
        """Have the rank write where it is; faulthandler needs no cooperation from Python code."""
        if self.process.pid is not None and self.running():
            os.kill(self.process.pid, signal.SIGCONT)
            os.kill(self.process.pid, STACK_SIGNAL)
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the rank and what it started, and reap it."""
        pid = self.process.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # not a group leader yet, or all of it is gone
                os.killpg(pid, signal.SIGKILL)
        if self.running():
            self.process.kill()
        self.reap()
        self.inbox.close()

    def reap(self) -> None:
        """Take the exit code, of which there is one: a start in another thread would take it, too."""
        with _ONE_AT_A_TIME:
            self.process.join()


def _wait(ranks: list[_Rank], deadline: float, grace_s: float) -> list[_Failure] | None:
    """Wait until all ranks are done or one failed ``grace_s`` ago; return the failures, or None at the deadline."""
    failures: list[_Failure] = []
    waiting: dict[Any, _Rank] = {end: r for r in ranks for end in (r.inbox, r.process.sentinel)}
    while waiting:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return failures or None
        ready = multiprocessing.connection.wait(list(waiting), remaining)
        # Reports before deaths: a rank that reported and then left has not died on us.
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


def forked(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """Start ``target(*args)`` in a process that has imported torch already; it ends with this one at the latest."""
    _start_fork_server()
    process = _FORKSERVER.Process(target=target, args=args, daemon=True)
    with _no_main():
        process.start()
    return process


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a socket with a port of this machine: as long as it is open, others get that port only if they ask for it.

    It does not listen, so that a program that is told the port can, with ``SO_REUSEADDR`` as servers have it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((address, 0))
    return reservation


def _default_nproc() -> int:
    """One rank per GPU where there are several, else 2."""
    return max(2, len(cards()))


def _torchrun_variables(rank: int, nproc: int, port: int) -> dict[str, str]:
    return {
        **({"OMP_NUM_THREADS": "1"} if nproc > 1 and "OMP_NUM_THREADS" not in os.environ else {}),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _by_value(worker: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a worker with all that it needs from its own module, so that no rank has to import that module."""
    module = sys.modules.get(getattr(worker, "__module__", "") or "")
    by_reference = module is None or module.__name__ == "__main__" or module.__name__.split(".")[0] == "ddplab"
    if by_reference:  # cloudpickle already sends the functions of __main__ by value
        return bytes(cloudpickle.dumps((worker, args)))
    with _ONE_AT_A_TIME:
        cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps((worker, args)))
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _start_fork_server() -> None:
    """Start what ranks are forked from, unless it runs; it ignores Ctrl-C, which is for this process."""
    _FORKSERVER.set_forkserver_preload(["ddplab.runtime.preload"])
    if threading.current_thread() is not threading.main_thread():
        _LASTING_THREAD.submit(multiprocessing.forkserver.ensure_running).result()
        return
    with _on_ctrl_c(signal.SIG_IGN):  # inherited
        multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Let a Ctrl-C that comes in this block come after it."""
    came: list[int] = []
    try:
        with _on_ctrl_c(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _on_ctrl_c(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # where no Ctrl-C arrives
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Hide ``__main__``: multiprocessing would import the script again in every rank, and so launch again."""
    with _ONE_AT_A_TIME:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
