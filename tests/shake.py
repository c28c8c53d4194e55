"""Run pytest, and stop and continue the ranks that its tests start, at random: what a busy machine does rarely.

    make shake TESTS="tests/kit/test_launch.py -k hang" SECONDS=0.5 SEED=7

A test that fails only here has a bound that is too short, or takes an order of events for granted. The seed decides
how long ranks run and stand still; which instruction that hits is up to the machine, so a seed makes a failure likely
again, not certain. What is stopped are ranks: the children of a fork server or of ``spawn``, and programs with RANK in
their environment; not pytest, the fork server, torchrun or a browser.

Limits: a rank that a test has stopped is continued with the others if this program had stopped it too. A process that
is no descendant of pytest any more, since its parent has ended, is not found. A rank that ``nsenter`` starts as another
user, or whose environment cannot be read, is left alone.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

import psutil

RUNS = 4  # times as long as it stands still, on average
TICK_S = 0.01


def is_rank(process: psutil.Process) -> bool:
    """Whether a process below pytest is a rank of some test."""
    command = " ".join(process.cmdline())
    if "multiprocessing.forkserver" in command:  # the server, or forked from it: ranks have its command line
        return "multiprocessing.forkserver" in " ".join(process.parent().cmdline())
    return "multiprocessing.spawn" in command or "RANK" in process.environ()


class Shaker:
    """The ranks below a process, each of which runs and stands still for random times."""

    def __init__(self, root: psutil.Process, seconds: float, chance: random.Random) -> None:
        self.root, self.seconds, self.chance = root, seconds, chance
        self.known: dict[psutil.Process, bool] = {}
        self.due_s: dict[psutil.Process, float] = {}  # when a rank is stopped or continued next
        self.stopped: set[psutil.Process] = set()
        self.stops = 0

    def tick(self) -> None:
        """Stop and continue the ranks whose time has come."""
        for process in self._ranks():
            now_s = time.monotonic()
            due_s = self.due_s.setdefault(process, now_s + self.chance.uniform(0, self.seconds))
            if now_s < due_s:
                continue
            try:
                if process in self.stopped:
                    self.stopped.discard(process)
                    process.resume()
                    self.due_s[process] = now_s + self.chance.uniform(0, RUNS * self.seconds)
                else:
                    self.stopped.add(process)
                    process.suspend()
                    self.stops += 1
                    self.due_s[process] = now_s + self.chance.uniform(0, self.seconds)
            except psutil.Error:  # it has ended
                self.stopped.discard(process)

    def _ranks(self) -> list[psutil.Process]:
        """The ranks that are there; those that stand still also if their parent has ended."""
        try:
            below = self.root.children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        for process in below:
            if process not in self.known:
                try:
                    self.known[process] = is_rank(process)
                except (psutil.Error, AttributeError):  # it has ended, or its parent has
                    self.known[process] = False
        return list({*(process for process in below if self.known[process]), *self.stopped})

    def continue_all(self) -> None:
        """Let no process stand still."""
        while self.stopped:
            try:
                self.stopped.pop().resume()
            except psutil.Error:
                continue


def main() -> int:
    """Return the exit status of pytest."""
    parser = argparse.ArgumentParser(description="run pytest, and stop and continue its ranks at random")
    parser.add_argument("--seconds", type=float, default=0.15, help="the longest that a rank stands still")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments, of_pytest = parser.parse_known_args()
    print(f"shake: seed {arguments.seed}, stops of up to {arguments.seconds:g} s", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the tests, and continue the ranks
    pytest = subprocess.Popen([sys.executable, "-m", "pytest", *of_pytest], start_new_session=True)
    shaker = Shaker(psutil.Process(pytest.pid), arguments.seconds, random.Random(arguments.seed))
    try:
        while pytest.poll() is None:
            shaker.tick()
            time.sleep(TICK_S)
    except KeyboardInterrupt:
        shaker.continue_all()
        os.killpg(pytest.pid, signal.SIGINT)
        pytest.wait()
    finally:
        shaker.continue_all()
        print(f"shake: seed {arguments.seed}, {shaker.stops} stops of {len(shaker.due_s)} ranks", flush=True)
    return pytest.returncode if pytest.returncode >= 0 else 128 - pytest.returncode


if __name__ == "__main__":
    sys.exit(main())
