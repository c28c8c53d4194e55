"""What tests of several folders ask for: the built forms of the book, a browser, machines.

What only some tests need (playwright, xdist) is imported where it is used: a cluster records an edition without it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddplab.labs.machines import NamespaceError, Nodes
from ddplab.runtime.needs import NotShownHere
from tools import ROOT, make, missing, need, need_pango, not_for_readers

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from xdist.scheduler import LoadScopeScheduling

# Tests share the cores: one rank that computed with as many threads as there are cores, beside others, waits for
# threads that do not run (40 steps took minutes).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests start can be interrupted, also if they run in the background of a shell, which then ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


def pytest_configure(config: pytest.Config) -> None:
    """What torch, torchrun and others leave in the folder for temporary files goes with the tests."""
    if hasattr(config, "workerinput"):
        return  # a process of xdist inherits the folder
    before = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)  # pytest's own folders stay, for who looks into a failure
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="ddplab-tests-")
    # Behind multiprocessing's own folder in it, whose end has the priority -100.
    Finalize(None, shutil.rmtree, args=(tempfile.tempdir, True), exitpriority=-200)


@pytest.hookimpl(optionalhook=True)  # there is none without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With several processes, a file stays in one of them, and all that reads the built book in the same one."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "book" if nodeid.startswith(("tests/site", "tests/print")) else nodeid.split("::")[0]

    return Rooms(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """What needs more than is here is not shown here, which is not a failure."""
    try:
        return (yield)
    except NotShownHere as reason:
        item.user_properties.append(("why", str(reason)))
        pytest.skip(f"not shown here: {reason}")


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built web pages, brought up to date once for all tests that read them.

    Built as on a reader's machine, which has neither torch nor what only labs and tests import.
    """
    make("html", PYTHONPATH=str(ROOT / "tests" / "reader"), NOT_FOR_READERS=" ".join(not_for_readers()))
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def pdf() -> Path:
    """The folder of the built PDFs."""
    need_pango()
    make("pdf")
    return ROOT / "_build" / "pdf"


@pytest.fixture(scope="session")
def epub() -> Path:
    """The built EPUB."""
    make("epub")
    return ROOT / "_build" / "epub" / "ddp-handbook.epub"


@pytest.fixture(scope="session")
def slides() -> Path:
    """The folder of the built decks."""
    need_pango()
    make("slides")
    return ROOT / "_build" / "slides"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium without a window, which asks nothing of the network by itself."""
    from playwright.sync_api import sync_playwright

    chromium = need("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Two nodes of their own for one test, which may break them."""
    try:
        with Nodes(2) as nodes:
            yield nodes
    except NamespaceError as reason:
        missing(f"no machines of our own: {reason}")
