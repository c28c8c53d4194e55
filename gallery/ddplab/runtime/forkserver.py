"""The fork server: a process that has imported torch once, from which every rank is forked.

Gallery scripts are executed cell by cell in a fake ``__main__``, so ``torch.multiprocessing.spawn`` cannot pickle
their workers, and a plain fork hangs once the parent has run a threaded operator.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
ONE_AT_A_TIME = threading.RLock()  # launches may run in several threads; cloudpickle and multiprocessing would not
_LASTING_THREAD = ThreadPoolExecutor(1)  # the fork server dies with the thread that started it
_started_by: int | None = None  # the process whose fork server it is


def start_fork_server() -> None:
    """Start the fork server, unless it runs; its imports go on in the background. It ends with this process.

    It ignores Ctrl-C, which is for this process.
    """
    global _started_by
    CONTEXT.set_forkserver_preload(["ddplab.runtime.preload"])
    if threading.current_thread() is not threading.main_thread():
        _LASTING_THREAD.submit(multiprocessing.forkserver.ensure_running).result()
        return
    # What is ignored is inherited, and a Ctrl-C that comes meanwhile is lost: so only for the start itself.
    with ctrl_c_waits() if _started_by == os.getpid() else _on_ctrl_c(signal.SIG_IGN):
        multiprocessing.forkserver.ensure_running()
    _started_by = os.getpid()


def forked(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """Start ``target(*args)`` in a process that has imported torch already; it ends with this one at the latest.

    Call :func:`start_fork_server` first.
    """
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    with ONE_AT_A_TIME:
        # Hide __main__: multiprocessing would import the script again in every rank, which would launch again.
        main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
    return process


@contextlib.contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay a Ctrl-C that comes inside the block until its end."""
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
