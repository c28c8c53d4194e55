"""What tests take is bounded: who adds some makes others quicker."""

import os
from types import SimpleNamespace

import pytest

from .passes import FOLDER, Passes
from .plugin import Keeper

# For all, 4,000 is the aim; the machine that wrote the ledger last took more.
CORE_S, ALL_S = 200, 6000


@pytest.mark.core  # the ledger is no input of any test
def test_the_core_and_all_tests_together_stay_within_their_seconds():
    known = [one for path in FOLDER.rglob("test_*.json") for one in Passes.at(path).tests.values()]
    assert sum(one.seconds for one in known if one.core) <= CORE_S
    assert sum(one.seconds for one in known) <= ALL_S


def test_processes_that_share_the_cores_share_their_seconds(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)
    report = SimpleNamespace(nodeid="test_a.py::test_a", duration=3.0, outcome="passed", user_properties=())
    for processes, seconds in (1, 3.0), (2, 3.0), (4, 1.5):
        keeper = Keeper("changed", processes)
        keeper.pytest_runtest_logreport(report)
        assert keeper.reports["test_a.py::test_a"]["seconds"] == seconds
