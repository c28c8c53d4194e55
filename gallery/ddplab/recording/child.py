"""A process of the recorder that reports what it does, and that ends with all it has started when it is asked to.

Used on both sides of the channel: the recorder makes a ``Child``, the process a ``Work``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, ClassVar

from ..runtime.rank import die_with_parent
from .edition_folder import Edition

_CHANNEL = "DDPLAB_RECORDING_CHANNEL"  # number of the socket that leads to the recorder
_TIDY_S = 10.0  # to clean up after an interrupt, before a process is killed


class OverTimeError(BaseException):
    """What runs took too long; not an Exception, which a lab may catch."""


class Work:
    """The process's end: what it is to run and until when, and what became of it. JSON objects, one a line."""

    def __init__(self) -> None:
        """Take the end that the recorder has left open; what this process starts does not inherit it."""
        number = int(os.environ.pop(_CHANNEL))
        os.set_inheritable(number, False)
        self._stream = socket.socket(fileno=number).makefile("rw", encoding="utf-8")
        die_with_parent()
        asked = json.loads(self._stream.readline())
        self.edition, self.labs = Edition(Path(asked["edition"])), asked["labs"]
        self._limit_s, self._deadline_s, self._seconds = asked["limit_s"], asked["deadline_s"], asked["seconds"]

    @staticmethod
    def is_asked() -> bool:
        """Whether a recorder has started this process."""
        return _CHANNEL in os.environ

    def send(self, **message: Any) -> None:
        """Send a message to the recorder."""
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def fits(self, name: str) -> bool:
        """Whether it is expected to end in time."""
        return bool(time.monotonic() + self._seconds[name] <= self._deadline_s)

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Tell the recorder what runs, and end it by an exception when it takes too long."""

        def over(*_: object) -> None:
            raise OverTimeError(f"still ran after {self._limit_s:g} s")

        self.send(running=name)
        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.send(running=None)


class Child:
    """The recorder's end: a process in a session of its own, so that Ctrl-C reaches it through the recorder only."""

    _pids: ClassVar[set[int]] = set()

    def __init__(
        self, *arguments: str, cwd: Path, environment: dict[str, str], output: IO[bytes] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                env={**environment, _CHANNEL: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                start_new_session=True,
            )
        self._socket, self._received = ours, b""
        self._pids.add(self.process.pid)

    def send(self, **message: Any) -> None:
        """Send a message to the process; one that has ended does not get it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, until_s: float = float("inf")) -> dict[str, Any] | None:
        """The next message; None if the process has ended.

        Raises:
            TimeoutError: there is none until ``until_s`` by the monotonic clock.
        """
        while b"\n" not in self._received:
            self._reap_orphans()
            left_s = until_s - time.monotonic()
            gone = self.process.poll() is not None  # asked first: what it sent before is read now
            readable = wait([self._socket], max(0.0, min(left_s, 1.0)))  # select.select knows 1024 files only
            try:
                part = self._socket.recv(1 << 16) if readable else b""
            except ConnectionResetError:
                part = b""
            self._received += part
            if not part and (readable or gone):  # gone without an end: a process that it left may hold the channel
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_TIDY_S)
                return None
            if not readable and left_s <= 0:
                raise TimeoutError
        line, _, self._received = self._received.partition(b"\n")
        return dict(json.loads(line))

    @classmethod
    def _reap_orphans(cls) -> None:
        """Reap processes that have become the recorder's children, since those that started them are gone.

        A machine in a namespace of its own ends when all its processes are reaped, and a lab waits for that.
        """
        import psutil

        for process in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, ChildProcessError):
                if process.pid not in cls._pids and os.getsid(process.pid) != os.getsid(0):  # no program of our own
                    os.waitpid(process.pid, os.WNOHANG)

    def stop(self) -> None:
        """End the process and all that it started, in good order if it can."""
        import psutil

        below: list[Any] = []
        for sign in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    below += psutil.Process(self.process.pid).children(recursive=True)
                self.process.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_TIDY_S)
        for process in below:  # known by the time it started, too: never another that got its number
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self) -> str:
        """Stop the process, if it still runs; return how it ended."""
        self.stop()
        self._socket.close()
        code = self.process.wait()
        return f"exit status {code}" if code >= 0 else signal.Signals(-code).name
