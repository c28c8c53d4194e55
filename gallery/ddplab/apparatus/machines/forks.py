"""torchrun, or a Python program, forked from a process that has imported torch, which takes two seconds of CPU.

What runs is torchrun's own ``main``, whose ranks are started as ever, or the program as ``__main__``. Only what torch
reads from the environment while it is imported, such as ``TORCH_CPP_LOG_LEVEL``, comes too late.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from ...runtime.forkserver import forked, start_fork_server
from ...runtime.rank import die_with_parent


class Fork:
    """What :class:`Program` needs of a ``Popen``.

    Args:
        command: "torchrun" or "python", and its arguments; Python's first is the file of a program.
        env: all environment variables.
        cwd: folder to run it in, by default this process's own.
        stderr: a file for that, by default it goes where stdout goes.
        namespaces: files of the namespaces to enter first, in this order.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None = None,
        stderr: Path | None = None,
        namespaces: Sequence[str] = (),
    ) -> None:
        inbox, outbox = multiprocessing.Pipe(duplex=False)
        folder = str(cwd or Path.cwd())
        start_fork_server()
        self._process = forked(_run, list(command), dict(env), folder, outbox, stderr, list(namespaces))
        outbox.close()
        self.stdout = open(os.dup(inbox.fileno()), errors="replace")  # noqa: SIM115 (its reader closes it)
        inbox.close()
        self.pid = int(self._process.pid or 0)

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return self._process.exitcode


def _run(
    command: list[str],
    env: dict[str, str],
    folder: str,
    outbox: Connection,
    stderr: Path | None,
    namespaces: list[str],
) -> None:
    """Become the program; in namespaces its parent, since those of process numbers are entered by children only."""
    die_with_parent()
    os.setsid()
    multiprocessing.current_process().daemon = False  # it may have children
    errors = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if stderr else outbox.fileno()
    for stream, to in (sys.stdout, outbox.fileno()), (sys.stderr, errors):
        os.dup2(to, stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    outbox.close()
    os.environ.clear()
    os.environ.update(env)
    libc = ctypes.CDLL(None, use_errno=True)
    for file in [os.open(path, os.O_RDONLY) for path in namespaces]:  # opened before /proc is another
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(file)
    if namespaces and (child := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    os.chdir(folder)
    (_torchrun if command[0] == "torchrun" else _python)(command[1:])


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import main

    if level := os.environ.get("LOGLEVEL"):  # read when these modules were imported, some of them before the fork
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
            logging.getLogger(name).setLevel(level)
    main(arguments)


def _python(arguments: list[str]) -> None:
    import torch

    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")
