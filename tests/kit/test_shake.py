"""`make shake` stops ranks and nothing else, continues all of them, and ends as pytest ends."""

import os
import re
import subprocess
import sys

import psutil

from tools import PATIENCE_S, ROOT

TESTS = """
import os, signal, time
from pathlib import Path

from ddplab import launch

HERE = Path(__file__).parent


def test_ranks_stand_still():
    def worker():
        until, continued = time.monotonic() + 900, []
        signal.signal(signal.SIGCONT, lambda *_: continued.append(True))
        while time.monotonic() < until and not continued:
            time.sleep(0.01)
        return len(continued)

    (HERE / "pid").write_text(str(os.getpid()))
    assert min(launch(worker, 2)) >= 1


def test_that_fails():
    raise AssertionError
"""


def test_ranks_are_stopped_and_continued(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, ROOT / "tests" / "shake.py", "--seconds", "0.5", "--seed", "7", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "gallery")}
    done = subprocess.run(
        [*command, tmp_path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    first, *_, last = done.stdout.splitlines()
    assert first == "shake: seed 7, stops of up to 0.5 s"
    stops, ranks = map(int, re.fullmatch(r"shake: seed 7, (\d+) stops of (\d+) ranks", last).groups())
    assert stops >= ranks >= 2
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
