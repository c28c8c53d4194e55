"""Ties tests to claims: each test here proves one, no two prove the same, and an edition keeps what came out.

With DDPLAB_CLAIMS_RESULTS=path the results are written there when the run is over.
A run that was interrupted writes nothing; a run of some of the tests leaves the others' results as they were,
if they are of the same machine and torch.
"""

import datetime
import json
import os
import tempfile
from pathlib import Path

import pytest
import torch

from ddplab import evidence

HERE = Path(__file__).parent
_WORST_FIRST = ("failed", "skipped", "passed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stop with a clear message unless claims and tests pair up; note on each test which claims it proves."""
    tests: dict[str, str] = {}  # claim -> the test function that proves it
    for item in items:
        if HERE not in item.path.parents:
            continue
        name = item.nodeid.split("[")[0]
        claims = [mark.args[0] for mark in item.iter_markers("proves")]
        if not claims:
            raise pytest.UsageError(f'{name} proves nothing; put @proves("claim-id") above it, or move it')
        for claim in claims:
            if tests.setdefault(claim, name) != name:
                raise pytest.UsageError(f"{name} proves {claim!r}, and so does {tests[claim]}; keep one of them")
        item.user_properties += [("claims", claims), ("test", name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Keep which launches the test made: ranks, backend, hardware."""
    if "DDPLAB_CLAIMS_RESULTS" not in os.environ:
        return (yield)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "evidence.json"
        evidence.begin(item.path, kept)
        try:
            return (yield)
        finally:
            evidence.end()
            item.user_properties.append(("launches", json.loads(kept.read_text())["launches"]))


class Results:
    """Collects the reports of all tests and writes one file."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.results: dict[str, dict] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test; parameters of a test count together, and the worst outcome counts."""
        properties = dict(report.user_properties)
        for claim in properties.get("claims", ()):
            fresh = {"outcome": "passed", "test": properties["test"], "seconds": 0.0, "launches": []}
            result = self.results.setdefault(claim, fresh)
            result["outcome"] = min(result["outcome"], report.outcome, key=_WORST_FIRST.index)
            result["seconds"] = round(result["seconds"] + report.duration, 3)
            if report.when == "call":
                new = [launch for launch in properties.get("launches", ()) if launch not in result["launches"]]
                result["launches"] += new

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file, whole or not at all."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        for result in self.results.values():
            result["key"] = evidence.key(self.root / result["test"].split("::")[0])
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        kept = {"machine": evidence.machine(), "date": date, "torch": torch.__version__, "results": self.results}
        old = json.loads(self.path.read_text()) if self.path.exists() else {}
        if [old.get("machine"), old.get("torch")] == [kept["machine"], kept["torch"]]:
            kept["results"] = {**{c: r for c, r in old["results"].items() if self._has_test(c, r)}, **self.results}
        evidence.write_json(self.path, kept)

    def _has_test(self, claim: str, result: dict) -> bool:
        module = self.root / result["test"].split("::")[0]
        return module.exists() and f'"{claim}"' in module.read_text()


def pytest_configure(config: pytest.Config) -> None:
    """Collect results where that is asked for; with xdist, in the process that hears of all tests."""
    path = os.environ.get("DDPLAB_CLAIMS_RESULTS")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(path).absolute(), config.rootpath))
