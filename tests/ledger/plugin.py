"""A test whose pass stands in the ledger does not run again: ``--ledger=changed``; ``--ledger=anew`` runs them all.

What runs is what has changed since its pass, the core (``@pytest.mark.core``), and 3 % of the rest, which the commit
chooses. A claim whose record stands in an edition has passed, too. Where the ledger is of another machine (see
`machine`), it says nothing: the core and the 3 % run, and the rest stays unproven here.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import inspect
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ddplab.recording import reach
from ddplab.recording.claims import standing
from ddplab.recording.keys import inputs
from ddplab.runtime.evidence import write_json

from . import here, watch
from .passes import ABOUT, FOLDER, ROOT, Pass, Passes, about, before, code_hash, folded, git, project_files

TESTS = ROOT / "tests"
OURS = tuple(str(ROOT / name) for name in ("tests", "handbook", "gallery"))
SHARE = 0.03
_CACHE = ROOT / "_build" / "keys.json"
_FOUND = ROOT / "_build" / "found.json"  # by the first process of this run
_COUNTS = pytest.StashKey[dict[str, int]]()  # why so many tests run, or do not
_SEEN = pytest.StashKey[set[str]]()  # what a test has read itself


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--ledger``."""
    parser.addoption("--ledger", choices=["changed", "anew"], help="run what has changed, or all and write it anew")


def pytest_configure(config: pytest.Config) -> None:
    """Two halves: one chooses and watches, in each process that runs tests; one writes, in the process that hears."""
    if mode := config.getoption("--ledger"):
        chosen = config.args_source is config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
        if mode == "anew" and chosen:
            raise pytest.UsageError("--ledger=anew is of all tests: leave out their names, -k and -m")
        shared = getattr(config, "workerinput", None)  # None: no process of xdist
        if shared is not None or not config.getoption("numprocesses", None):
            config.pluginmanager.register(Chooser(config, mode))
        if shared is None:
            config.pluginmanager.register(Keeper(mode, config.getoption("numprocesses", None) or 1))


class Chooser:
    """Takes out what need not run, and sees what the others depend on."""

    def __init__(self, config: pytest.Config, mode: str) -> None:
        self.config, self.mode = config, mode
        self.at_home = here.at_home(about())
        self.of_import: dict[Path, set[str]] = {}  # what a file of tests reads as it is imported
        self.of_fixture: dict[int, set[str]] = {}
        self.code: dict[str, str] = {}
        self.proved: set[str] = set()
        self.file = ""
        watch.install()
        reach.load_cache(_CACHE)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector):
        """See what a file of tests reads as it is imported; refuse ids that no other clone has."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        with watch.seen() as found:
            report = yield
        self.of_import[collector.path] = found
        if here := next((item.nodeid for item in report.result or () if str(ROOT) in item.nodeid), ""):
            report.outcome, report.result = "failed", []
            report.longrepr = f"{here} names a folder of this machine: give its parameters other ids"
        return report

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Choose."""
        found = self._found(items)
        self.code, self.proved = found["code"], {*found["proved"]}
        if self.mode == "changed":
            self._choose(config, items)

    def _found(self, items: list[pytest.Item]) -> dict[str, Any]:
        """The code of the tests, and which are proved: what one process of xdist finds, the others take over."""
        shared = getattr(self.config, "workerinput", None)
        if shared is None:
            return self._find(items)
        run = shared["testrunuid"]
        with FileLock(_FOUND.with_suffix(".lock")):
            with contextlib.suppress(OSError, ValueError):
                if (known := json.loads(_FOUND.read_text(encoding="utf-8"))).get("run") == run:
                    return known
            found = self._find(items)
            write_json(_FOUND, {"run": run, **found})
        return found

    def _find(self, items: list[pytest.Item]) -> dict[str, Any]:
        with reach.unchanged():
            code = {item.nodeid: _code(item) for item in items}
            if self.mode == "anew":
                return {"code": code, "proved": []}
            held = {item.nodeid for item in items if self.at_home and _holds(item.nodeid, code[item.nodeid])}
            claims = any(item.nodeid not in held and item.get_closest_marker("proves") for item in items)
            recorded = standing(ROOT) if claims and self.at_home else {}
        proved = held | {item.nodeid for item in items if item.nodeid.split("[")[0] in recorded}
        return {"code": code, "proved": sorted(proved)}

    def _choose(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        counts: Counter[str] = Counter()
        commit = git("rev-parse", "HEAD")
        left_out = []
        for item in items:
            core = item.get_closest_marker("core") is not None
            drawn = hashlib.sha256(f"{commit} {item.nodeid}".encode()).digest()[:4]
            chance = int.from_bytes(drawn) / 2**32 < SHARE
            stands = item.nodeid in self.proved
            why = "core" if core else "changed" if self.at_home and not stands else "sample" if chance else ""
            counts[why or ("stand" if stands else "unproven")] += 1
            if not why:
                left_out.append(item)
        if left_out:
            dropped = {*left_out}
            items[:] = [item for item in items if item not in dropped]
            config.hook.pytest_deselected(items=left_out)
        config.stash[_COUNTS] = dict(counts)
        if hasattr(config, "workeroutput"):  # a process of xdist
            config.workeroutput["ledger"] = dict(counts)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any):
        """See what a fixture reads: its tests depend on it, also those that come when it stands."""
        with watch.seen() as found:
            value = yield
        self.of_fixture[id(fixturedef)] = found
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        """See what a test reads."""
        file = item.nodeid.partition("::")[0]
        if file != self.file:
            self.file = file
            _forget()
        with watch.seen() as found:
            item.stash[_SEEN] = found
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item):
        """Tell the process that writes."""
        used = item._request._fixture_defs.values() if isinstance(item, pytest.Function) else ()
        try:
            return (yield)
        finally:
            found = set().union(
                self.of_import.get(item.path, ()),
                item.stash[_SEEN],
                *(self.of_fixture.get(id(definition), ()) for definition in used),
            )
            told = {"code": self.code[item.nodeid], "reads": sorted(found)}
            marks = {mark.name for mark in item.iter_markers()}
            told |= {"apart": "apart" in marks, "core": "core" in marks, "proved": item.nodeid in self.proved}
            item.user_properties.append(("ledger", told))

    def pytest_sessionfinish(self) -> None:
        """Keep what was parsed; one process does."""
        if getattr(self.config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0":
            reach.save_cache(_CACHE)


class Keeper:
    """Writes the ledger when all tests have ended, and says what it left out."""

    def __init__(self, mode: str, processes: int) -> None:
        self.mode = mode
        # Processes that run tests share the cores: so much of a test's elapsed time is its own.
        self.share = min(1, _cores() / processes)
        self.reports: dict[str, dict[str, Any]] = {}
        self.counts: dict[str, int] = {}
        self.contradicted: list[str] = []
        self.started, self.touched = time.time(), []
        self.at_home = here.at_home(about())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test."""
        of = self.reports.setdefault(report.nodeid, {"seconds": 0.0, "outcomes": set()})
        of["seconds"] += report.duration * self.share
        of["outcomes"].add(report.outcome)
        of |= dict(report.user_properties).get("ledger", {})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process counted: each counts the same."""
        self.counts = getattr(node, "workeroutput", {}).get("ledger", self.counts)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write, where what passed here counts."""
        self.counts = session.config.stash.get(_COUNTS, self.counts)
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.counts:
            session.exitstatus = pytest.ExitCode.OK
        self.contradicted = [
            name for name, of in self.reports.items() if of.get("proved") and "failed" in of["outcomes"]
        ]
        if not self.reports or (self.mode != "anew" and not self.at_home):
            return
        reach.load_cache(_CACHE)  # what processes of xdist have parsed
        self.touched = _written_since(self.started)
        files: dict[str, dict[str, dict[str, Any]]] = {}
        for name, of in self.reports.items():
            file, _, test = name.partition("::")
            files.setdefault(file, {})[test] = of
        for file, tests in files.items():
            self._write(file, tests)
        all_ran = self.mode == "anew" and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        for path in (path for path in FOLDER.rglob("*.json") if path != ABOUT):
            file = path.relative_to(FOLDER).with_suffix(".py")
            file = ROOT / file if file.parts[0] == "gallery" else ROOT / "tests" / file
            if not file.exists() or (all_ran and file.relative_to(ROOT).as_posix() not in files):
                path.unlink()
        if all_ran:  # what failed has no pass, so that it runs again, here and in CI
            write_json(ABOUT, {**here.here(), "whole": git("rev-parse", "HEAD")})

    def _write(self, file: str, tests: dict[str, dict[str, Any]]) -> None:
        """Put what passed into the file's passes; what failed goes, and all of the file where a pass did not hold."""
        if any(name.startswith(f"{file}::") for name in self.contradicted):
            Passes().write(file)
            return
        kept = Passes() if self.mode == "anew" else Passes.of(file)
        ran = {name: of for name, of in tests.items() if not of.get("proved")}
        passed = {name: of for name, of in ran.items() if of["outcomes"] == {"passed"}}
        passed = {name: of for name, of in passed.items() if not self._touched(of["reads"])}
        # A skipped test may have lacked a form of the book that is not built here: with it, its pass may hold again.
        skipped = {name for name, of in ran.items() if "failed" not in of["outcomes"]} - passed.keys()
        kept.tests = {name: one for name, one in kept.tests.items() if name in skipped or name not in ran}
        stale = {name for name in kept.tests if not kept.has_same_data(name)}
        kept.tests = {name: one for name, one in kept.tests.items() if name in skipped or name not in stale}
        reads = {*kept.reads} if kept.tests else set()
        kept.reads = folded(reads.union(*(of["reads"] for of in passed.values() if not of["apart"])))
        kept.tests |= {name: Pass(of["code"], "", of["seconds"], of["core"]) for name, of in passed.items()}
        kept.apart |= {name: folded(of["reads"]) for name, of in passed.items() if of["apart"]}
        for name, one in kept.tests.items():
            if name not in stale or name in passed:
                one.data = kept.data_of(name)
        kept.write(file)

    def _touched(self, reads: list[str]) -> bool:
        """Whether something was written meanwhile that a test may have read before or after."""
        return any(name == "git" or fnmatch.fnmatch(one, name.rstrip("!")) for one in self.touched for name in reads)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what did not run, and which pass did not hold."""
        say, count = terminalreporter.write_line, Counter(self.counts)
        for name in self.contradicted:
            say(f"{name} failed, with all as it was when it passed: the passes of its file are dropped", red=True)
        if self.mode == "anew":
            if not self.at_home and about():
                say("The ledger of passes is of this machine now. Do not commit it: landings could not use it.")
            return
        say(
            f"{count['changed']} tests changed since their last pass, {count['core']} of the core, and "
            f"{count['sample']} of the rest, which the commit chose; {count['stand']} stand as passed."
        )
        if count["unproven"]:
            say(f"{count['unproven']} stay unproven on this machine. To run them, too: make test-all")


# -- what a test depends on -------------------------------------------------------------------------


def _code(item: pytest.Item) -> str:
    """The hash of a test's code: its function and fixtures, the hooks above it, and the versions of what they use."""
    if not isinstance(item, pytest.Function):  # a lab
        return _code_of(frozenset({(item.path, reach.ALL)}))
    starts = {(item.path, item.function.__name__)}
    for folder in (one for one in item.path.parents if one.is_relative_to(TESTS)):
        if (above := folder / "conftest.py").is_file():
            starts |= {(above, name) for name in reach.source(above).parts if name.startswith("pytest_")}
    found = [one for those in item._fixtureinfo.name2fixturedefs.values() for one in those]
    asked = frozenset(starts | _places(found))
    for name in _asked_later(asked):
        found += item.session._fixturemanager.getfixturedefs(name, item) or ()
    return _code_of(asked | _places(found))


def _places(fixtures: list[Any]) -> set[reach.Node]:
    """Where these fixtures of ours are defined."""
    places = {(Path(inspect.getfile(one.func)), one.func.__name__) for one in fixtures}
    return {(path, name) for path, name in places if path.is_relative_to(TESTS)}


def _asked_later(starts: frozenset[reach.Node]) -> set[str]:
    """Words of which some name fixtures that a test takes by ``request.getfixturevalue``."""
    parts = _inputs(starts)[0].values()
    return {name for part in parts if "request.getfixturevalue" in part.uses for name in part.strings}


@functools.cache
def _code_of(starts: frozenset[reach.Node]) -> str:
    return code_hash(*_inputs(starts))


_inputs = functools.cache(inputs)


def _holds(test: str, code: str) -> bool:
    file, _, name = test.partition("::")
    return before(file).hold(name, code)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _forget() -> None:
    """Empty the caches of our modules, so that each file of tests is seen to read what it reads."""
    for module in [*sys.modules.values()]:
        if (getattr(module, "__file__", None) or "").startswith(OURS):
            for value in [*vars(module).values()]:
                if hasattr(value, "cache_clear") and getattr(value, "__module__", "") == module.__name__:
                    value.cache_clear()


def _written_since(start_s: float) -> list[str]:
    """The files of the project that were written after this time, but for what runs leave."""
    built = [path.relative_to(ROOT).as_posix() for path in (ROOT / "_build").rglob("*")]
    return [
        name
        for name in (*project_files(), *built)
        if watch.counts(name) and (ROOT / name).is_file() and (ROOT / name).stat().st_mtime > start_s
    ]
