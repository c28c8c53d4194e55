"""Let a learner's file start processes: new and empty like spawned ones, but without importing torch again in each."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import context, forkserver
from pathlib import Path
from types import ModuleType

from .checks import text_of

_OUTPUT = "DDPLAB_GRADE_OUTPUT"  # where the processes print
_MAX_OUTPUT_BYTES = 2**24


class _QuickProcess(context.ForkServerProcess):
    """Comes from a fork server, gets its parent's variables, as a spawned process does, and ends with its parent."""

    _parent: int
    _variables: Mapping[str, str]

    def start(self) -> None:
        """Remember what the new process needs."""
        self._parent, self._variables = os.getpid(), dict(os.environ)
        super().start()

    def run(self) -> None:
        """Be the process."""
        os.setsid()
        os.environ.clear()
        os.environ.update(self._variables)
        output = os.open(os.environ[_OUTPUT], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in (1, 2):
            os.dup2(output, number)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        torch = sys.modules["torch"]  # which the fork server has imported
        torch.set_num_threads(1)
        if not torch.cuda.is_available():
            resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES))
        threading.Thread(target=self._end_with_parent, daemon=True).start()
        super().run()

    def _end_with_parent(self) -> None:
        while alive(self._parent):
            time.sleep(0.1)
        os.killpg(0, 9)


def allow_processes(folder: Path, *modules: ModuleType) -> Path:
    """In a rank: let the learner's code start processes as a program does, by ``spawn`` or a fork server.

    Args:
        folder: is made here, for the files of this function.
        modules: what new processes import by name, such as the learner's file; from :func:`load_module`.

    Returns:
        The file in which the output of the processes is collected.
    """
    folder.mkdir(parents=True)
    for module in modules:
        (folder / f"{module.__name__}.py").write_text(text_of(module), encoding="utf-8")
    sys.path.insert(0, str(folder))
    server = vars(forkserver)["_forkserver"]
    if sys.version_info < (3, 14) and server._forkserver_address:
        server.ensure_running = lambda: None  # this rank's own server serves; a newer Python starts one more
    multiprocessing.current_process().daemon = False  # it may have children
    context.SpawnContext.Process = _QuickProcess  # type: ignore[assignment]
    context.ForkServerContext.Process = _QuickProcess
    os.environ[_OUTPUT] = str(folder / "printed")
    return folder / "printed"


def alive(pid: int) -> bool:
    """Return whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
