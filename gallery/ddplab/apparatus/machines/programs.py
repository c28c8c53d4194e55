"""Programs in the background: what they print, when, and how to end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from .forks import Fork

# For all that is started. This Python's own torchrun comes first; root's tools come last.
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _popen(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    )


class Program:
    """A started program: its lines as they come, each with the seconds since the start.

    Args:
        command: the program and its arguments.
        env: environment variables besides those of this process.
        start: what starts it, given the command and all variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        start: Callable[[list[str], dict[str, str]], subprocess.Popen[str] | Fork] = _popen,
    ) -> None:
        self.command = list(command)
        self.lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self._started = time.monotonic()
        self._ended_s = 0.0
        variables = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        self._process = start(self.command, variables)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the command that enters the machine; the program itself is among its descendants."""
        return self._process.pid

    @property
    def output(self) -> str:
        """Everything it has printed so far, standard error included."""
        return "".join(f"{line}\n" for _, line in self.lines)

    @property
    def returncode(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end, or until now while it runs."""
        return self._ended_s or time.monotonic() - self._started

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit code. Raises TimeoutError, after killing the program."""
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"still ran after {timeout_s:g} s: {' '.join(self.command)}\n{self.output}") from None
        self._reader.join(2)
        return int(self._process.poll() or 0)

    def wait_for(self, text: str, timeout_s: float) -> str:
        """Wait until a line has this text; return the line. Raises TimeoutError, or RuntimeError if it ends first."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._news:
            while True:
                for _, line in self.lines[seen:]:
                    if text in line:
                        return line
                seen = len(self.lines)
                if self._ended_s:
                    raise RuntimeError(f"ended without printing {text!r}: {' '.join(self.command)}\n{self.output}")
                if not self._news.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"no {text!r} after {timeout_s:g} s\n{self.output}")

    def kill(self) -> None:
        """Kill it and all that it started; torchrun's workers, for one, have sessions of their own."""
        if self.returncode is None:
            for pid in family(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(2)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:  # closed at its end: left to the garbage collector, closing may wait
            for line in lines:
                with self._news:
                    self.lines.append((time.monotonic() - self._started, line.rstrip("\n")))
                    self._news.notify_all()
        with self._news:
            self._ended_s = time.monotonic() - self._started
            self._news.notify_all()


def family(pid: int) -> list[int]:
    """Return a process and all that it started, by the numbers that this host gives them."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]
