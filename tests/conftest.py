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
from typing import TYPE_CHECKING

import pytest

from ddplab.apparatus.machines import NamespaceError, Nodes
from tools import PATIENCE_S, built, missing, need

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Tests share the cores: one rank that computed with as many threads as there are cores, beside others, waits for
# threads that do not run (40 steps took minutes).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests start can be interrupted, also if they run in the background of a shell, which then ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["ledger.plugin", "ledger.scheduler"]

FAILED = pytest.StashKey[dict[int, tuple[str, BaseException]]]()  # what went wrong before a test -> the first it ended

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


def pytest_configure(config: pytest.Config) -> None:
    """What torch, torchrun and others leave in the folder for temporary files goes with the tests."""
    if hasattr(config, "workerinput"):  # a process of xdist, which inherits the folder
        return
    before = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)  # pytest's own folders stay, for who looks into a failure
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="ddplab-tests-")
    # Behind multiprocessing's own folder in it, whose end has the priority -100.
    Finalize(None, shutil.rmtree, args=(tempfile.tempdir, True), exitpriority=-200)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    """A fixture that failed fails the test that asked first; those that share it are skipped."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        first = item.session.stash.setdefault(FAILED, {}).setdefault(id(error), (item.nodeid, error))[0]
        if first != item.nodeid:
            pytest.skip(f"what it stands on failed in {first}")
        raise


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the web pages."""
    return built("html")


@pytest.fixture(scope="session")
def pdf() -> Path:
    """The folder of the PDFs."""
    return built("pdf")


@pytest.fixture(scope="session")
def epub() -> Path:
    """The EPUB."""
    return built("epub/ddp-handbook.epub")


@pytest.fixture(scope="session")
def slides() -> Path:
    """The folder of the decks."""
    return built("slides")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium without a window, which asks nothing of the network by itself."""
    from playwright.sync_api import expect, sync_playwright

    from ledger.watch import note_url

    chromium, patience_ms = need("chromium", "chromium"), PATIENCE_S * 1000
    expect.set_options(timeout=patience_ms)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET, timeout=patience_ms)
        browser.on("context", lambda context: context.set_default_timeout(patience_ms))
        browser.on("context", lambda context: context.on("request", lambda request: note_url(request.url)))
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
