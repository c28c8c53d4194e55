"""Ties tests to claims: each test here proves one, no two prove the same, and an edition keeps what came out.

With DDPLAB_CLAIMS_RESULTS=folder the results are written there, a file for each file of tests, as soon as the last test
of a claim has ended. What is recorded of this machine and this code, and did not fail, is not run again, unless
DDPLAB_CLAIMS_FRESH is set. A test has DDPLAB_CLAIMS_LIMIT seconds. One that is not expected to end before
DDPLAB_CLAIMS_DEADLINE (seconds since 1970) is not started; one that does not end by then is left for the next time.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddplab.recording.child import Channel
from ddplab.recording.claims import expected_s, write_result
from ddplab.recording.edition import Edition
from ddplab.recording.items import Item
from ddplab.recording.keys import sharing_unless
from ddplab.recording.machine import machine
from ddplab.runtime import evidence

HERE = Path(__file__).parent
_SHOWN_LINES = 60  # of the output of a claim that failed
_WORST_FIRST = ("failed", "skipped", "passed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop with a clear message unless claims and tests pair up; note on each test which claims it proves."""
    tests: dict[str, str] = {}  # claim -> the test function that proves it
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        name = item.nodeid.split("[")[0]
        claims = [mark.args[0] for mark in item.iter_markers("proves")]
        if not claims:
            raise pytest.UsageError(f'{name} proves nothing; put @proves("claim-id") above it, or move it')
        for claim in claims:
            if tests.setdefault(claim, name) != name:
                raise pytest.UsageError(f"{name} proves {claim!r}, and so does {tests[claim]}; keep one of them")
        item.user_properties += [("claims", claims), ("test", name)]
    if (folder := os.environ.get("DDPLAB_CLAIMS_RESULTS")) and not os.environ.get("DDPLAB_CLAIMS_FRESH"):
        edition, here = Edition(Path(folder).parent), machine()
        done = {item for item in ours if _test_of(item.path, dict(item.user_properties)).is_recorded(edition, here)}
        items[:] = [item for item in items if item not in done]
        config.hook.pytest_deselected(items=list(done))
    cases = Counter(dict(item.user_properties)["test"] for item in items if item in ours)
    for item in items:
        item.user_properties.append(("cases", cases[item.nodeid.split("[")[0]]))


def _test_of(path: Path, properties: dict) -> Item:
    return Item(path, properties["test"].rpartition("::")[2], tuple(properties["claims"]))


_DEADLINE_S = float(os.environ.get("DDPLAB_CLAIMS_DEADLINE", "inf"))
_LIMIT_S = float(os.environ.get("DDPLAB_CLAIMS_LIMIT", "0"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    """Start nothing more when the time is up."""
    bounded = "DDPLAB_CLAIMS_DEADLINE" in os.environ
    if bounded and time.time() + expected_s(_folder(), dict(item.user_properties)["test"]) > _DEADLINE_S:
        _leave(item)
    with _bounded(item):
        return (yield)


@contextlib.contextmanager
def _bounded(item: pytest.Item) -> Iterator[None]:
    """End a test that takes too long: by an exception, or if it does not hear that, with its process."""
    if not _LIMIT_S:
        yield
        return

    left_s = max(0.001, _DEADLINE_S - time.time())

    def up(*_: object) -> None:
        if left_s < _LIMIT_S:
            _leave(item)
        pytest.fail(f"still ran after {_LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, up)
    faulthandler.dump_traceback_later(_LIMIT_S + 20, exit=True, file=sys.__stderr__)
    signal.setitimer(signal.ITIMER_REAL, min(_LIMIT_S, left_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _leave(item: pytest.Item) -> None:
    item.user_properties.append(("late", True))
    pytest.skip("the time is up")


def _folder() -> Path:
    return Path(os.environ["DDPLAB_CLAIMS_RESULTS"]).absolute()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Keep which launches the test made: ranks, backend, hardware."""
    if "DDPLAB_CLAIMS_RESULTS" not in os.environ:
        return (yield)
    with tempfile.TemporaryDirectory() as folder:
        evidence.begin(Path(folder) / "evidence.json")
        test = _test_of(item.path, dict(item.user_properties))
        try:
            with _bounded(item), sharing_unless(test.names_a_clock(imports=False)):
                return (yield)
        finally:
            kept = evidence.end()
            item.user_properties += [("launches", kept["launches"]), ("read", kept["read"])]


def _in_short(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext).strip().split("\n")[0][:300]


class Results:
    """Collects the reports of all tests, and writes the file of a test when its last case has ended."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.results: dict[str, dict] = {}
        self.recorder = Channel() if Channel.is_open() else None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tell the recorder which test it is, should this process crash in it."""
        if self.recorder:
            self.recorder.send(running=nodeid.split("[")[0])

    def pytest_runtest_logfinish(self) -> None:
        """Tell the recorder that it has not crashed."""
        if self.recorder:
            self.recorder.send(running=None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test; parameters of a test count together, and the worst outcome counts."""
        properties = dict(report.user_properties)
        if properties.get("late"):
            return
        for claim in properties.get("claims", ()):
            fresh = {"outcome": "passed", "seconds": 0.0, "launches": [], "read": [], "ended": 0}
            result = self.results.setdefault(claim, {**fresh, "test": properties["test"]})
            result["outcome"] = min(result["outcome"], report.outcome, key=_WORST_FIRST.index)
            result["seconds"] = round(result["seconds"] + report.duration, 3)
            if "why" in properties:
                result["why"] = properties["why"]
            if report.failed:
                result["why"] = _in_short(report)
                said = report.longreprtext.replace(f"{self.root}/", "").splitlines()
                result.setdefault("failed", "\n".join(said[-_SHOWN_LINES:]))  # what an edition shows of it
                if self.recorder:
                    self.recorder.send(report=report.longreprtext)
            if report.when == "call":
                for launch in properties.get("launches", ()):
                    evidence.add_launch(result["launches"], launch)
                result["read"] = sorted({*result["read"], *properties.get("read", ())})
            result["ended"] += report.when == "teardown"
            if report.when == "teardown" and result["ended"] == properties["cases"]:
                del result["ended"]
                path = self.root / result["test"].split("::")[0]
                write_result(self.folder, _test_of(path, properties), claim, result)
                if self.recorder:
                    self.recorder.send(claim=claim, outcome=result["outcome"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """That all tests are recorded is no failure."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    """Collect results where that is asked for; with xdist, in the process that collects the results of all tests."""
    config.addinivalue_line("markers", "timeout: known to pytest-timeout, which the recorder does not need")
    if os.environ.get("DDPLAB_CLAIMS_RESULTS") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(_folder(), config.rootpath))
