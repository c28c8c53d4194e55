"""A plugin of pytest: a lab is a test, ``pytest gallery/museum/plot_01_….py`` runs it; what is not shown here skips.

Of the labs only those that prove claims are collected. Where the recorder has started pytest, the result of a test of
claims is kept as soon as its last case has ended, and what does not fit into the time that is left is not started.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..runtime import evidence
from ..runtime.needs import NotShownHere
from .child import Work
from .claims import write_results_of
from .items import Item, lab_item
from .keys import sharing_unless
from .script import run

_SHOWN_LINES = 60  # of the output of a claim that failed
_WORST_FIRST = ("failed", "skipped", "passed")


class LabFailedError(Exception):
    """A lab failed; the message is its traceback."""


class LabFile(pytest.File):
    """A lab's script."""

    def collect(self) -> Iterator[pytest.Item]:
        """The lab."""
        if (lab := lab_item(self.path)).claims:
            yield LabItem.from_parent(self, name="lab", lab=lab)


class LabItem(pytest.Item):
    """A lab, which passes if none of its blocks raises."""

    def __init__(self, *, lab: Item, **more: Any) -> None:
        super().__init__(**more)
        self.lab = lab
        for claim in lab.claims:
            self.add_marker(pytest.mark.proves(claim))

    def runtest(self) -> None:
        """Run it, without a window."""
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("MPLBACKEND", os.environ.get("MPLBACKEND", "agg"))
            outcome = run(self.path, lambda figure, number: "")
        if outcome.needs:
            raise NotShownHere(outcome.needs)
        if outcome.failed:
            raise LabFailedError(outcome.failed)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The lab's error, and its own traceback."""
        if not isinstance(excinfo.value, LabFailedError):
            return super().repr_failure(excinfo, style)
        said = str(excinfo.value)
        return f"{said.splitlines()[-1]}\n{said}"

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it stands."""
        return self.path, 0, self.path.name


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LabFile | None:
    """A lab stands in a folder of the gallery, and is no module of tests: pytest would run it to look for some."""
    if module_path.match("gallery/*/plot_*.py"):
        return LabFile.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """What needs more than is here is not shown here, which is not a failure."""
    try:
        return (yield)
    except NotShownHere as reason:
        item.user_properties.append(("why", str(reason)))
        pytest.skip(f"not shown here: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Keep results for the recorder."""
    config.addinivalue_line("markers", "timeout: known to pytest-timeout, which the recorder does not need")
    if Work.is_asked():
        config.pluginmanager.register(Recording(Work(), config.rootpath))


class Recording:
    """Keeps what came out of the tests that the recorder has named."""

    def __init__(self, work: Work, root: Path) -> None:
        self.work, self.root = work, root
        self.items: dict[str, Item] = {}
        self.cases: Counter[str] = Counter()  # of a test, that have not ended
        self.results: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Find which claims each test proves, and of how many cases it is."""
        for item in items:
            name = _name(item.nodeid)
            claims = tuple(mark.args[0] for mark in item.iter_markers("proves"))
            self.items[name] = Item(item.path, name.rpartition("::")[2], claims)
            self.cases[name] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Start nothing more when the time is up."""
        return None if self.work.fits(_name(item.nodeid)) else True

    @pytest.hookimpl(wrapper=True, specname="pytest_runtest_protocol")
    def pytest_runtest_protocol_is_told(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Tell which test it is, should this process hang or crash in it."""
        if not self.work.fits(name := _name(item.nodeid)):
            return (yield)
        with self.work.running(name):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep which launches the test made: ranks, backend, hardware."""
        timed = self.items[_name(item.nodeid)].names_a_clock(imports=False)
        with tempfile.TemporaryDirectory() as folder:
            evidence.begin(Path(folder) / "evidence.json")
            try:
                with sharing_unless(timed):
                    return (yield)
            finally:
                kept = evidence.end()
                item.user_properties += [("launches", kept["launches"]), ("read", kept["read"])]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test; parameters of a test count together, and the worst outcome counts."""
        name = _name(report.nodeid)
        properties: dict[str, Any] = dict(report.user_properties)
        fresh: dict[str, Any] = {"outcome": "passed", "seconds": 0.0, "launches": [], "read": [], "test": name}
        result = self.results.setdefault(name, fresh)
        result["outcome"] = min(result["outcome"], report.outcome, key=_WORST_FIRST.index)
        result["seconds"] = round(result["seconds"] + report.duration, 3)
        if "why" in properties:
            result["why"] = properties["why"]
        if report.failed:
            result["why"] = _in_short(report)
            said = report.longreprtext.replace(f"{self.root}/", "").splitlines()
            result.setdefault("failed", "\n".join(said[-_SHOWN_LINES:]))  # what an edition shows of it
            self.work.send(report=report.longreprtext)
        if report.when == "call":
            for launch in properties.get("launches", ()):
                evidence.add_launch(result["launches"], launch)
            result["read"] = sorted({*result["read"], *properties.get("read", ())})
        self.cases[name] -= report.when == "teardown"
        if not self.cases[name]:
            write_results_of(self.items[name], self.work.edition, result)
            self.work.send(done=name, outcome=result["outcome"])


def _name(nodeid: str) -> str:
    """The test, of which this may be a case."""
    return nodeid.split("[")[0]


def _in_short(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).strip().split("\n")[0][:300]
