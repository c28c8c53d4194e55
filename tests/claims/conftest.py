"""Ties tests to claims: each test here proves one, no two prove the same, and an edition keeps what came out.

With DDPLAB_CLAIMS_RESULTS=folder the results are written there, a file for each file of tests, as soon as the last test
of a claim has ended. What is recorded of this machine and this code, and did not fail, is not run again, unless
DDPLAB_CLAIMS_FRESH is set. After DDPLAB_CLAIMS_DEADLINE (seconds since 1970) no test is started.
"""

import ast
import datetime
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from ddplab import evidence
from ddplab.recording.keys import claim_key
from ddplab.recording.machine import machine, same_machine

HERE = Path(__file__).parent
_SHOWN_LINES = 60  # of the output of a claim that failed
_WORST_FIRST = ("failed", "skipped", "passed")
_UNFINISHED = 3  # exit status: the time is up, and tests are left


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
    if folder := os.environ.get("DDPLAB_CLAIMS_RESULTS"):
        done = {item for item in ours if _is_recorded(Path(folder), item)}
        items[:] = [item for item in items if item not in done]
        config.hook.pytest_deselected(items=list(done))
        cases = Counter(dict(item.user_properties)["test"] for item in items if item in ours)
        for item in items:
            item.user_properties.append(("cases", cases[item.nodeid.split("[")[0]]))


def _is_recorded(folder: Path, item: pytest.Item) -> bool:
    path = folder / f"{item.path.stem}.json"
    if os.environ.get("DDPLAB_CLAIMS_FRESH") or not path.exists():
        return False
    kept, properties = json.loads(path.read_text(encoding="utf-8")), dict(item.user_properties)
    results = [kept["results"].get(claim) for claim in properties["claims"]]
    return same_machine(kept["machine"], machine()) and all(
        result
        and result["outcome"] != "failed"
        and result["key"] == _key(item.path, properties["test"], result["read"])
        for result in results
    )


def _key(path: Path, test: str, read: list[str]) -> str:
    return claim_key(path, test.rpartition("::")[2], read)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start nothing more when the time is up."""
    if time.time() > float(os.environ.get("DDPLAB_CLAIMS_DEADLINE", "inf")):
        item.user_properties.append(("late", True))
        pytest.skip("the time is up")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Keep which launches the test made: ranks, backend, hardware."""
    if "DDPLAB_CLAIMS_RESULTS" not in os.environ:
        return (yield)
    with tempfile.TemporaryDirectory() as folder:
        evidence.begin(Path(folder) / "evidence.json")
        try:
            return (yield)
        finally:
            kept = evidence.end()
            item.user_properties += [("launches", kept["launches"]), ("read", kept["read"])]


class Results:
    """Collects the reports of all tests, and writes the file of a test when its last case has ended."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.results: dict[str, dict] = {}
        self.left = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test; parameters of a test count together, and the worst outcome counts."""
        properties = dict(report.user_properties)
        if properties.get("late"):
            self.left += report.when == "call" or report.skipped
            return
        for claim in properties.get("claims", ()):
            fresh = {"outcome": "passed", "seconds": 0.0, "launches": [], "read": [], "ended": 0}
            result = self.results.setdefault(claim, {**fresh, "test": properties["test"]})
            result["outcome"] = min(result["outcome"], report.outcome, key=_WORST_FIRST.index)
            result["seconds"] = round(result["seconds"] + report.duration, 3)
            if "why" in properties:
                result["why"] = properties["why"]
            if report.failed:  # what an edition shows of it
                said = report.longreprtext.replace(f"{self.root}/", "").splitlines()
                result.setdefault("failed", "\n".join(said[-_SHOWN_LINES:]))
            if report.when == "call":
                result["launches"] += [one for one in properties.get("launches", ()) if one not in result["launches"]]
                result["read"] = sorted({*result["read"], *properties.get("read", ())})
            result["ended"] += report.when == "teardown"
            if report.when == "teardown" and result["ended"] == properties["cases"]:
                self._write(claim, {name: value for name, value in result.items() if name != "ended"})

    def _write(self, claim: str, result: dict) -> None:
        """Put one result into its file; those of tests that are gone, or of another machine, go."""
        test_file = self.root / result["test"].split("::")[0]
        path = self.folder / f"{test_file.stem}.json"
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")  # noqa: UP017  also 3.10
        result |= {"key": _key(test_file, result["test"], result["read"]), "date": date}
        here = machine()
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept = old["results"] if same_machine(old.get("machine", {}), here) else {}
        stated = {node.value for node in ast.walk(ast.parse(test_file.read_text())) if isinstance(node, ast.Constant)}
        results = {one: kept[one] for one in kept if one in stated} | {claim: result}
        evidence.write_json(path, {"machine": here, "results": results})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Say that something is left."""
        if self.left and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = _UNFINISHED
        elif exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # all of them are recorded
            session.exitstatus = pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    """Collect results where that is asked for; with xdist, in the process that hears of all tests."""
    folder = os.environ.get("DDPLAB_CLAIMS_RESULTS")
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(folder).absolute(), config.rootpath))
