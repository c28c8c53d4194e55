"""Recording claims: their tests run side by side in a few processes of pytest, each with files of its own.

Not with pytest-xdist, which a cluster may not have: a file of tests has a file of results, so processes need nothing
of each other, and the recorder can end each of them and say which test it hung or crashed in.
"""

from __future__ import annotations

import ast
import datetime
import functools
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .child import Child
from .edition import Edition, read_results, write_results
from .keys import claim_key, names_a_clock
from .machine import is_good_for, machine
from .plan import Times, shares
from .proved import tests_in

_GRACE_S = 5.0  # beyond the deadline, for a test that ignores its alarm


@dataclass(frozen=True)
class Test:
    """A test function and the claims that it proves."""

    path: Path
    name: str
    claims: tuple[str, ...]

    @property
    def id(self) -> str:
        """Its name for pytest and in results."""
        return f"tests/claims/{self.path.name}::{self.name}"

    def names_a_clock(self, *, imports: bool = True) -> bool:
        """Whether the test or a lab that it runs names a clock; or, with ``imports``, what one of them imports."""
        return names_a_clock(self.path, self.name, imports=imports)


def tests_of(root: Path) -> Iterator[Test]:
    """Every test of a claim, found without importing it.

    Raises:
        ValueError: a file is not Python; the message names file and line.
    """
    for path in sorted((root / "tests" / "claims").glob("test_*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            raise ValueError(f"{path}:{error.lineno}: {error.msg}") from error
        for node, claims in tests_in(tree):
            yield Test(path, node.name, claims)


def is_recorded(folder: Path, test: Test) -> bool:
    """Whether a folder of results has those of this test, of this code and good for this machine, and none failed."""
    here, kept = machine(), read_results(folder / f"{test.path.stem}.json")
    results = [kept.get(claim) for claim in test.claims]
    return all(result and result["outcome"] != "failed" and _counts(test, result, here) for result in results)


def standing(root: Path) -> dict[str, str]:
    """The tests that need not run again here, each with the edition whose record of it stands.

    A record stands while its key holds, if all of the test passed on this torch, Python and system, with the same
    GPUs. The processor matters only to a test that reads a clock.

    Raises:
        DamagedError: a file of results is damaged.
        ValueError: a test is not Python; the message names file and line.
    """
    here, found = machine(), dict[str, str]()
    for test in tests_of(root):
        for file in sorted((root / "gallery" / "editions").glob(f"*/claims/{test.path.stem}.json")):
            kept = read_results(file)
            results = [kept.get(claim) for claim in test.claims]
            if all(
                result
                and result["outcome"] == "passed"
                and result["machine"]["python"].rpartition(".")[0] == here["python"].rpartition(".")[0]
                and _counts(test, result, here)
                for result in results
            ):
                found[test.id] = file.parents[1].name
                break
    return found


def _counts(test: Test, result: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether a result is of this code, and good for this machine."""
    current = result["key"] == claim_key(test.path, test.name, result["read"])
    return current and is_good_for(result["machine"], here, test.names_a_clock)


def write_result(folder: Path, test: Test, claim: str, result: dict[str, Any]) -> None:
    """Put one result into the file of its test's file; those of tests that are gone, go."""
    path = folder / f"{test.path.stem}.json"
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    result |= {"key": claim_key(test.path, test.name, result["read"]), "date": date, "machine": machine()}
    stated = {node.value for node in ast.walk(ast.parse(test.path.read_text())) if isinstance(node, ast.Constant)}
    kept = {one: old for one, old in read_results(path).items() if one in stated}
    write_results(path, kept | {claim: result})


@dataclass
class Claims:
    """Runs the tests that an edition lacks."""

    root: Path
    edition: Edition
    times: Times
    at_once: int
    limit_s: float  # of one test
    deadline_s: float  # by the monotonic clock
    fresh: bool = False
    only: Collection[str] | None = None  # claims; None: all

    _children: set[Child] = field(default_factory=set)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    @property
    def folder(self) -> Path:
        """Of the results."""
        return (self.edition.folder / "claims").absolute()

    def left(self) -> list[Test]:
        """The tests that are to run; files of tests are not read where none is wanted."""
        if self.only is not None and not self.only:
            return []
        asked = (test for test in tests_of(self.root) if self.only is None or {*test.claims} & {*self.only})
        return [test for test in asked if self.fresh or not is_recorded(self.folder, test)]

    def seconds(self, tests: list[Test]) -> float:
        """An estimate for these tests."""
        return max((sum(files.values()) for files in self._dealt(tests)), default=0.0)

    def record(self, tests: list[Test], say: Callable[[str], None]) -> tuple[list[str], int]:
        """Run the tests; return the claims that failed, and how many tests are left as the time is up."""
        done: dict[str, str] = {}  # claim -> outcome

        def count(message: dict[str, Any]) -> None:
            with self._turn:
                done[message["claim"]] = message["outcome"]
                say(f"[{len(done)}/{sum(len(test.claims) for test in tests)}] {message['claim']} {message['outcome']}")

        by_id = {test.id: test for test in tests}
        dealt = self._dealt(tests)
        with ThreadPoolExecutor(max(1, len(dealt))) as pool:
            try:
                work = [pool.submit(self._run, list(files), by_id, count, say) for files in dealt]
                patience = self.deadline_s + _GRACE_S - time.monotonic()
                wait(work, None if patience == float("inf") else max(0.0, patience))
            finally:
                self._end()
        for one in work:
            one.result()  # an error of the recorder itself
        failed = [claim for claim, outcome in done.items() if outcome == "failed"]
        return failed, sum(not all(claim in done for claim in test.claims) for test in tests)

    def _dealt(self, tests: list[Test]) -> list[dict[Path, float]]:
        files: dict[Path, float] = {}
        for test in tests:
            files[test.path] = files.get(test.path, 0.0) + self.times.test(test.id)
        return [{path: files[path] for path in share} for share in shares(files, self.at_once)]

    def _run(
        self,
        files: list[Path],
        tests: dict[str, Test],
        count: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        """Run the tests of some files; one in which the process crashes has failed, and the others go on."""
        crashed: list[str] = []
        while True:
            with tempfile.TemporaryFile() as output:
                child = self._start(files, tests, crashed, output)
                if child is None:
                    return
                running = None
                while (message := child.receive()) is not None:
                    if "claim" in message:
                        count(message)
                    elif (
                        "report" in message
                    ):  # a failure: shown at once, since the end of pytest's output may be cut off
                        say(message["report"])
                    else:
                        running = message.get("running")
                how = child.end()
                with self._turn:
                    self._children.discard(child)
                    stopped = self._stopped
                output.seek(0)
                text = output.read().decode(errors="replace")
            if running is None and how not in ("exit status 0", "exit status 1"):  # such as a test that is not Python
                say(text.rstrip())
            if running is None or stopped:
                return
            crashed.append(running)
            why = f"the process that ran it ended: {how}"
            for claim in tests[running].claims:
                result = {"outcome": "failed", "seconds": 0.0, "launches": [], "read": [], "test": running, "why": why}
                write_result(self.folder, tests[running], claim, result)
                count({"claim": claim, "outcome": "failed"})

    def _start(self, files: list[Path], tests: dict[str, Test], crashed: list[str], output: Any) -> Child | None:
        environment = {
            **os.environ,
            "DDPLAB_CLAIMS_RESULTS": str(self.folder),
            "DDPLAB_CLAIMS_LIMIT": str(self.limit_s),
            **({"DDPLAB_CLAIMS_FRESH": "1"} if self.fresh and not crashed else {}),
        }
        if self.deadline_s < float("inf"):
            environment["DDPLAB_CLAIMS_DEADLINE"] = str(time.time() + self.deadline_s - time.monotonic())
        names = [name for name, test in tests.items() if test.path in files and name not in crashed]
        if not names:
            return None
        with self._turn:
            if self._stopped:
                return None
            command = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout", *names]
            child = Child(*command, cwd=self.root, environment=environment, output=output)
            self._children.add(child)
        return child

    def _end(self) -> None:
        """End what still runs, all at the same time."""
        with self._turn:
            self._stopped = True
            running = [child for child in self._children if child.process.poll() is None]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            list(pool.map(Child.stop, running))


def about_nccl(root: Path) -> set[str]:
    """The claims that a run on NCCL would tell more of: shown for gloo only, or with words about NCCL.

    As their directives in the book say: ``:holds:`` is not "any backend", or ``:known:`` names NCCL.
    """
    found = set()
    for page in (root / "handbook").rglob("*.md"):
        for name, options in _CLAIM.findall(page.read_text(encoding="utf-8")):
            told = dict(re.findall(r":(\w+): *(.*)", options))
            if told.get("holds") != "any backend" or "NCCL" in told.get("known", ""):
                found.add(name)
    return found


_CLAIM = re.compile(r"^ *[`:]{3,}\{claim\} (\S+)\n((?: *:\w+:.*\n)*)", re.MULTILINE)


@functools.cache
def expected_s(folder: Path, test: str) -> float:
    """What a test whose results go into ``folder`` is expected to take."""
    return Times.known(Edition(folder.parent), machine()).test(test)
