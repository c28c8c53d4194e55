"""What tests share: tools that may be missing, forms of the book that are built already, and how long they wait."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from ddplab.grading.ports import free_port  # noqa: F401  (tests ask for it here)

ROOT = Path(__file__).parents[1]
# The one bound of all that a test waits for; only what hangs comes near it, even on a machine that is ten times slower.
# pytest's own limit, in pyproject.toml, is longer, so that the wait that failed is the one that says so.
PATIENCE_S = 900.0


def need(tool: str, package: str) -> str:
    """The path of a system tool; without it the test is skipped, or fails where nothing may be skipped."""
    path = shutil.which(tool)
    if path is None:
        missing(f"{tool} is not installed (Debian package: {package})")
    return path


def missing(what: str) -> None:
    """Skip the test, or fail it where REQUIRE_ALL is set."""
    if os.environ.get("REQUIRE_ALL"):
        pytest.fail(f"{what}, and REQUIRE_ALL is set")
    pytest.skip(what)


def wait_until(condition: Callable[[], object], bound_s: float = PATIENCE_S) -> object:
    """Wait for an event, and return what the condition gave last; the bound is for one that never comes."""
    deadline = time.monotonic() + bound_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def gone(pid: int) -> bool:
    """Whether the process has ended; it may wait for a parent that never asks for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ended(pid: int) -> bool:
    """Whether the process has ended, or does so now."""
    return bool(wait_until(lambda: gone(pid)))


def built(form: str) -> Path:
    """What ``make all`` left in ``_build`` before the tests, which only read it."""
    path = ROOT / "_build" / form
    if not path.exists():
        missing(f"_build/{form} is not built: run `make all` first")
    return path


def built_once(name: str, build: Callable[[Path], object]) -> Path:
    """A folder that ``build`` filled, once for all processes of a test run.

    Where it fails, the test that asked first shows why, and those of other processes are skipped: the hook in
    ``conftest.py`` does the same for those of its own.
    """
    from ledger import watch

    folder = Path(tempfile.gettempdir(), "built-once", name)
    folder.parent.mkdir(exist_ok=True)
    ready, failed = folder.with_suffix(".ready"), folder.with_suffix(".failed")
    with FileLock(folder.with_suffix(".lock")):
        if failed.exists():
            pytest.skip(f"{name} could not be built: see {failed.read_text()}")
        if not ready.exists():
            folder.mkdir()
            failed.write_text(os.environ.get("PYTEST_CURRENT_TEST", "the first test that needs it"))
            with watch.seen() as found:
                build(folder)
            failed.unlink()
            ready.write_text("\n".join(sorted(found)))
    watch.note({*ready.read_text().splitlines()})
    return folder


def need_pango() -> None:
    import ctypes.util

    if ctypes.util.find_library("pango-1.0") is None:
        missing("Pango is not installed (Debian package: libpango-1.0-0)")
