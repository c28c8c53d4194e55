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


RECORD = {"date": "2026-01-01T00:00:00+00:00", "launches": [], "seconds": 0.1, "test": "…"}


@pytest.fixture
def root(tmp_path):
    """A project whose four claims were recorded on this machine, each with an outcome."""
    file = tmp_path / "tests/claims/test_four.py"
    file.parent.mkdir(parents=True)
    file.write_text(CLAIMS)
    outcomes = {"plain": "passed", "timed": "passed", "failed": "failed", "skipped": "skipped"}
    kept = {
        claim: {"outcome": outcome, "key": claim_key(file, f"test_{claim}"), "read": []} | RECORD
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


def run_tests(folder: Path, processes: int, **files: str) -> str:
    """What pytest says of files with the book's own settings."""
    for name in ("conftest.py", "tools.py"):
        shutil.copy(HERE / name, folder)
    shutil.copytree(HERE / "ledger", folder / "ledger", ignore=shutil.ignore_patterns("test_*", "passes"))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = apart: of the others\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--dist=loadfile", "-n", str(processes), "-rs"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("processes", [0, 3])
@pytest.mark.parametrize(
    ("fails", "ended"),
    [("", "7 passed"), ("raise OSError('no disk')", "1 passed, 5 skipped, 1 error")],
    ids=["well", "failed"],
)
def test_what_is_built_once_fails_once(tmp_path, processes, fails, ended):
    """Six tests share a fixture; they run in one process, and in several."""
    said = run_tests(tmp_path, processes, test_six=TESTS.format(fails=fails))
    assert re.search(rf"=+ {ended} in", said), said
    if fails:
        assert "no disk" in said
        assert re.search(
            r"SKIPPED .*: (what it stands on failed in|book could not be built: see) test_six.py::test_book", said
        )


PROCESSES = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def made():
    return []

@pytest.mark.parametrize("n", range(20))
def test_stays(made, n):
    made.append(n)
    assert made == [*range(n + 1)]

@pytest.mark.apart
@pytest.mark.parametrize("n", range(20))
def test_goes(n):
    with Path(__file__).with_suffix(".log").open("a") as log:
        print(os.environ["PYTEST_XDIST_WORKER"], file=log)
"""


def test_a_file_stays_in_one_process_but_for_what_stands_apart(tmp_path):
    said = run_tests(tmp_path, 3, test_one=PROCESSES, test_two=PROCESSES)
    assert "80 passed" in said, said
    ran = [{*(tmp_path / f"test_{name}.log").read_text().split()} for name in ("one", "two")]
    assert all(len(processes) > 1 for processes in ran)
