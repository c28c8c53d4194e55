"""What tests need of the system: tools that may be missing, and `make`, run as a user would."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddplab import cli
from ddplab.grading.ports import free_port  # noqa: F401  (tests ask for it here)

ROOT = Path(__file__).parents[1]


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


def wait_until(condition: Callable[[], object], bound_s: float = 150) -> object:
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


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which ``ddplab`` refuses these arguments."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # argparse's own
        code = leaving.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.fullmatch(r"ddplab[^\n]+\n", said.err), said.err
    return said.err


def make(target: str, **environment: str) -> None:
    """Bring one form of the book up to date, as a user would."""
    with subprocess.Popen(
        ["make", target],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=1800)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # make, Sphinx and the ranks' fork server
            raise
    assert process.returncode == 0, f"make {target} failed:\n{said[-4000:]}"


def need_pango() -> None:
    import ctypes.util

    if ctypes.util.find_library("pango-1.0") is None:
        missing("Pango is not installed (Debian package: libpango-1.0-0)")


def not_for_readers() -> list[str]:
    """The modules that ``pip install ddplab[book]`` does not bring: torch, and what only labs and tests import."""
    wanted, waiting = set[tuple[str, str]](), [("ddplab", ""), ("ddplab", "book")]
    while waiting:
        name, extra = waiting.pop()
        wanted.add((name, extra))
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found = {(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)}
                waiting += found - wanted
    names = {name for name, _ in wanted}
    brought = metadata.packages_distributions()
    return sorted(module for module, by in brought.items() if not names & {canonicalize_name(one) for one in by})
