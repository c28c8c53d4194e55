"""Which records of claims stand, what a failed fixture does to the tests that share it, and what processes share."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddplab.recording import claims
from ddplab.recording.keys import claim_key
from ddplab.recording.machine import machine
from ddplab.runtime.evidence import write_json

HERE = Path(__file__).parent
CLAIMS = """
import time
from proof import proves

@proves("plain")
def test_plain():
    assert 1

@proves("timed")
def test_timed():
    assert time.perf_counter()

@proves("failed")
def test_failed():
    assert 0

@proves("skipped")
def test_skipped():
    pass
"""


@pytest.fixture
def root(tmp_path):
    """A project whose four claims were recorded on this machine, each with an outcome."""
    file = tmp_path / "tests/claims/test_four.py"
    file.parent.mkdir(parents=True)
    file.write_text(CLAIMS)
    outcomes = {"plain": "passed", "timed": "passed", "failed": "failed", "skipped": "skipped"}
    kept = {
        claim: {"outcome": outcome, "key": claim_key(file, f"test_{claim}"), "read": []}
        for claim, outcome in outcomes.items()
    }
    write_json(tmp_path / "gallery/editions/here/claims/test_four.json", {"machine": machine(), "results": kept})
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "stand"),
    [
        ({}, ["plain", "timed"]),
        ({"cpu": "Another", "cores": 64}, ["plain"]),
        ({"torch": "2.12.0"}, []),
        ({"python": "3.10.1"}, []),
        ({"system": "Darwin"}, []),
        ({"gpus": ["NVIDIA H100"]}, []),
    ],
)
def test_a_pass_stands_where_its_software_is_and_where_it_reads_a_clock_its_processor(
    root, monkeypatch, changed, stand
):
    here = {**machine(), **changed}
    monkeypatch.setattr(claims, "machine", lambda: here)
    names = [name.rpartition("::test_")[2] for name in claims.standing(root)]
    assert names == stand


def test_no_record_stands_of_a_test_that_changed(root):
    file = root / "tests/claims/test_four.py"
    file.write_text(file.read_text().replace("assert 1", "assert 2"))
    assert list(claims.standing(root).values()) == ["here"]
    assert list(claims.standing(root)) == ["tests/claims/test_four.py::test_timed"]


TESTS = """
import pytest
from tools import built_once

def build(folder):
    (folder / "made").touch()
    {fails}

@pytest.fixture(scope="session")
def book():
    return built_once("book", build)

@pytest.mark.apart
@pytest.mark.parametrize("n", range(6))
def test_book(book, n):
    assert (book / "made").exists()

def test_other():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "3"])
@pytest.mark.parametrize(
    ("fails", "ended"),
    [("", "7 passed"), ("raise OSError('no disk')", "1 passed, 5 skipped, 1 error")],
    ids=["well", "failed"],
)
def test_what_is_built_once_fails_once(tmp_path, processes, fails, ended):
    """Six tests share a fixture; they run in one process, and in several."""
    for name in ("conftest.py", "tools.py"):
        shutil.copy(HERE / name, tmp_path)
    shutil.copytree(HERE / "ledger", tmp_path / "ledger", ignore=shutil.ignore_patterns("test_*", "passes"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = apart: of the others\n")
    (tmp_path / "test_six.py").write_text(TESTS.format(fails=fails))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--dist=loadgroup", "-n", processes, "-rs"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.search(rf"=+ {ended} in", ran.stdout), ran.stdout + ran.stderr
    if fails:
        assert "no disk" in ran.stdout
        assert re.search(
            r"SKIPPED .*: (what it stands on failed in|book could not be built: see) test_six.py::test_book", ran.stdout
        )
