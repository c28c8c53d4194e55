"""torchrun's agents, forked from a process that has imported torch: each saves the two seconds of that import.

Such an agent is torchrun's own ``main``, and starts its ranks as ever. Only what torch reads from the environment
while it is imported, such as ``TORCH_CPP_LOG_LEVEL``, comes too late for it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from ..launcher import forked
from ..rank import die_with_parent


class Agent:
    """What :class:`Program` needs of a ``Popen``, here of ``torchrun`` with its arguments.

    Args:
        command: the name "torchrun", and the arguments.
        env: all environment variables.
        namespaces: files of the namespaces to enter first, in this order.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], namespaces: Sequence[str] = ()) -> None:
        inbox, outbox = multiprocessing.Pipe(duplex=False)
        self._process = forked(_run, list(command[1:]), dict(env), list(namespaces), os.getcwd(), outbox)
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
            raise subprocess.TimeoutExpired("torchrun", timeout or 0)
        return self._process.exitcode


def _run(arguments: list[str], env: dict[str, str], namespaces: list[str], folder: str, outbox: Connection) -> None:
    """Become the agent; in namespaces its parent, since those of process numbers are entered by children only."""
    die_with_parent()
    os.setsid()
    for stream in (1, 2):
        os.dup2(outbox.fileno(), stream)
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
    outbox.close()

    from torch.distributed.run import main

    main(arguments)
