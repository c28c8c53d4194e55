"""What happens inside a rank of :func:`ddplab.launch`, from the fork to the report to its parent."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import gc
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import cloudpickle

from .gpus import loaded_nccl
from .group import join_group, leave_group
from .shared_gpu import share_gpu

# What a rank does once its worker returned: wait for all ranks and leave the group, leave at once, stay until killed.
AtEnd = Literal["meet", "leave", "stay"]


@dataclass
class Job:
    """What a rank needs to start; it travels to the rank through the fork server."""

    rank: int
    nproc: int
    up_to: int  # ranks of the largest launch beside this one, which takes the same backend
    payload: bytes
    environment: dict[str, str]
    init: bool
    timeout_s: float  # of the process group
    output: str
    stacks: str
    at_end: AtEnd = "meet"


# A rank asked by this signal writes where it is. Not SIGUSR1, which training programs take from their schedulers.
STACK_SIGNAL = signal.SIGUSR2


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing is asked)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def run_rank(job: Job, outbox: Connection, listener: socket.socket | None) -> None:
    """Run the worker of ``job`` in this process, send ``(ok, facts, value or failure)`` to the parent, and end."""
    die_with_parent()  # the parent is the fork server, which dies with the script
    os.setsid()  # so that the rank can be killed with all that it starts
    output = os.open(job.output, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.register(STACK_SIGNAL, file=open(job.stacks, "w"), all_threads=True)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by the fork server
    os.environ.clear()
    os.environ.update(job.environment)

    import torch
    import torch.distributed as dist

    # The fork server read these two variables too early.
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    facts = _facts(job)
    try:
        if job.init:
            _join(job, listener, facts["backend"])
        worker, args = cloudpickle.loads(job.payload)
        try:
            value = worker(*args)
        finally:
            gc.disable()  # what a collection destroys, such as a group whose peer has gone, may wait for ever
            _correct(facts)
        report = (True, facts, value)
        if dist.is_initialized() and job.at_end == "meet":
            leave_group()
    except BaseException as error:
        report = (False, facts, (time.monotonic(), _own_traceback(error), _error_line(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        message = cloudpickle.dumps(report)
    except Exception as error:
        text = f"rank {job.rank} returned a value that cannot be sent to the parent: {error!r}"
        message = cloudpickle.dumps((False, facts, (time.monotonic(), text)))
    outbox.send_bytes(message)
    outbox.close()
    if job.at_end == "stay" and report[0]:
        time.sleep(job.timeout_s + 3600)  # the parent will end it
    os._exit(0 if report[0] else 1)  # no destructors: a failed process group would wait for its peers in them


def _join(job: Job, listener: socket.socket | None, backend: str) -> None:
    import torch.distributed as dist

    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        int(os.environ["MASTER_PORT"]),
        job.nproc,
        is_master=job.rank == 0,
        timeout=datetime.timedelta(seconds=job.timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    join_group(store, job.rank, job.nproc, job.timeout_s, backend)
    if job.at_end != "meet":
        _wait_for_connections(store, job)


def _wait_for_connections(store: Any, job: Job) -> None:
    """All ranks have their connections: rank 0, who holds the store, may now fail without taking it from them."""
    others = range(1, job.nproc)
    if job.rank:
        store.set(f"ddplab/{job.rank} is connected", "")
        store.get("ddplab/go")
        store.set(f"ddplab/{job.rank} goes", "")
        return
    for state in ("is connected", "goes"):
        if others:
            store.wait([f"ddplab/{rank} {state}" for rank in others])
        store.set("ddplab/go", "")


def _correct(facts: dict[str, Any]) -> None:
    """A worker has shown nothing of a GPU on which it put nothing, nor of NCCL if all that it sent went by gloo."""
    import torch

    from .torch_private import backends_used, flight_progress

    if facts["gpu"] and torch.cuda.max_memory_allocated() == 0:
        facts |= {"gpu": None, "backend": "gloo"}
    if facts["backend"] == "nccl" and backends_used() == {"gloo"}:
        facts["backend"] = "gloo"
    if facts["backend"] == "gloo":
        facts.pop("shared", None)
    with contextlib.suppress(RuntimeError):  # an older torch keeps no record of gloo
        facts["collectives"] = sum(max(0, issued) for issued in flight_progress())


def _facts(job: Job) -> dict[str, Any]:
    """What this rank runs on; the parent keeps it as evidence, and never has to import torch itself."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = (loaded_nccl() or torch.cuda.nccl.version()) if gpus else None  # type: ignore[no-untyped-call]
    shared = share_gpu(job.rank, job.up_to, gpus, nccl)
    return {
        "backend": "nccl" if gpus >= job.up_to or shared else "gloo",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpus else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "gpu": torch.cuda.get_device_name(0) if gpus else None,
        "gpus": gpus,
        **({"shared": shared} if shared and job.nproc > gpus else {}),
    }


def worker_frames(stack: str) -> str:
    """What faulthandler wrote of the worker's thread, without the frames that led to the worker.

    It writes all threads: the signal may come to one of gloo's, which has no Python frames.
    """
    threads = [block.strip().splitlines() for block in stack.strip().split("\n\n")]
    ours = [(lines, i) for lines in threads for i, line in enumerate(lines) if f'"{__file__}"' in line]
    lines, end = next(((lines, i) for lines, i in ours if "run_rank" in lines[i]), (threads[0], len(threads[0])))
    return "\n".join(lines[:end])


def _own_traceback(error: BaseException) -> str:
    """The traceback without the frames of this file, which say nothing about the worker."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _error_line(error: BaseException) -> str:
    """The last lines of a traceback: the type of the exception and its text."""
    return "".join(traceback.format_exception_only(error)).rstrip()
