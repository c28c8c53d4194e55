"""Write the flight recorder of a rank: now, or as soon as the rank is stuck. Needs torch."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def write_dump(folder: str | Path) -> Path:
    """Write the flight recorder of the calling rank to ``<folder>/rank<r>``, whole or not at all; return the path.

    The file has the form of NCCL's, and names the members of every group on gloo, too, so torch's own analyser,
    ``torchfrtrace <folder> --prefix rank``, can read it.

    Raises:
        RuntimeError: there is no default process group, or it is gloo's on a torch before 2.11, which records nothing.
        OSError: the folder cannot be written.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("write_dump: this process has no process group; call init_process_group first")
    return _write(Path(folder), dist.get_rank())


@contextlib.contextmanager
def dump_when_stuck(folder: str | Path, after_s: float = 60.0) -> Iterator[None]:
    """Write this rank's dump as soon as it has issued no collective for ``after_s`` seconds, and when the block ends.

    NCCL's watchdog does the same at a timeout; this works for any backend, and ends nothing. A thread watches the
    number of collectives issued: a Python signal handler would not run while the main thread waits inside torch.
    The dump at the end, with or without an exception, is there because a rank that left early is part of the answer.
    A rank that is killed, or aborts, before ``after_s`` leaves no dump. A dump that cannot be written is reported on
    stderr and otherwise ignored.

    Raises:
        ValueError: ``after_s`` is not a positive number.
        RuntimeError: there is no default process group, or it is gloo's on a torch before 2.11, which records nothing.
    """
    import torch.distributed as dist

    from ..runtime.torch_private import flight_progress

    if not after_s > 0:
        raise ValueError(f"dump_when_stuck: after_s must be a positive number of seconds; got {after_s!r}")
    if not dist.is_initialized():
        raise RuntimeError("dump_when_stuck: this process has no process group; call init_process_group first")
    rank, done, start = dist.get_rank(), threading.Event(), flight_progress()

    def write() -> None:
        try:
            _write(Path(folder), rank)
        except OSError as problem:
            print(f"rank {rank}: no flight-recorder dump: {problem}", file=sys.stderr, flush=True)

    def watch() -> None:
        seen, since_s, written = start, time.monotonic(), False
        while not done.wait(min(after_s / 10, 5.0)):
            now = flight_progress()
            if now != seen:
                seen, since_s, written = now, time.monotonic(), False
            elif not written and time.monotonic() - since_s >= after_s:
                write()
                written = True

    watcher = threading.Thread(target=watch, name="dump_when_stuck", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        write()


def _write(folder: Path, rank: int) -> Path:
    from ..runtime.torch_private import flight_dump

    folder.mkdir(parents=True, exist_ok=True)
    path, unfinished = folder / f"rank{rank}", folder / f".rank{rank}.{os.getpid()}.part"
    try:
        unfinished.write_bytes(pickle.dumps(flight_dump(), protocol=2))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
