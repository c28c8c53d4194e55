"""Leave no process behind, not even one that a rank started and detached."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@contextlib.contextmanager
def no_leftovers() -> Iterator[None]:
    """At the end of the block, kill every process that became a child of this one inside it (Linux only).

    ``launch`` kills a rank with its process group; a process that left the group outlives the rank. Orphans go to
    the nearest ancestor that asked for them, which is this process while the block runs.
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _children()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        while leftovers := _children() - before:  # when one is gone, its children come to us
            for pid in leftovers:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _children() -> set[int]:
    """The direct children of this process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found
