"""Leave no process behind, not even one that a rank has started and detached."""

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
def no_strays() -> Iterator[None]:
    """Kill at the end of the block every process that has become a child of this one inside it (Linux).

    ``launch`` kills a rank with its process group; a process that left the group outlives the rank. Orphans become
    children of the nearest ancestor that has asked for them, which is this process for as long as the block runs.
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _children()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        while strays := _children() - before:  # the children of a stray come to us when it is gone
            for pid in strays:
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
