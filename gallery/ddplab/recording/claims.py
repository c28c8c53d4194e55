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
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .child import Child
from .edition import Edition, read_results, write_results
from .items import Item, proofs_of, tests_of
from .machine import machine
from .plan import Times, shares

_GRACE_S = 5.0  # beyond the deadline, for a test that ignores its alarm


def standing(root: Path) -> dict[str, str]:
    """The tests and labs of claims that need not run again here, each with the edition whose record of it stands.

    A record stands while its key holds, if all of the test passed on this torch, Python and system, with the same
    GPUs. The processor matters only to a test that reads a clock.

    Raises:
        DamagedError: a file of results is damaged.
        ValueError: a test is not Python; the message names file and line.
    """
    here, found = machine(), dict[str, str]()
    editions = [Edition(path) for path in sorted((root / "gallery" / "editions").glob("*"))]
    for item in proofs_of(root):
        for edition in editions:
            if all(one and _stands(item, one, here) for one in item.results(edition)):
                found[item.id] = edition.name
                break
    return found


def _stands(item: Item, result: dict[str, Any], here: dict[str, Any]) -> bool:
    same_python = result["machine"]["python"].rpartition(".")[0] == here["python"].rpartition(".")[0]
    return result["outcome"] == "passed" and same_python and item.holds(result, here)


def write_result(folder: Path, test: Item, claim: str, result: dict[str, Any]) -> None:
    """Put one result into the file of its test's file; those of tests that are gone, go."""
    path = folder / f"{test.path.stem}.json"
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    result |= {"key": test.key(result["read"]), "date": date, "machine": machine()}
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

    def left(self) -> list[Item]:
        """The tests that are to run; files of tests are not read where none is wanted."""
        if self.only is not None and not self.only:
            return []
        here = machine()
        asked = (test for test in tests_of(self.root) if self.only is None or {*test.claims} & {*self.only})
        return [test for test in asked if self.fresh or not test.is_recorded(self.edition, here)]

    def seconds(self, tests: list[Item]) -> float:
        """An estimate for these tests."""
        return max((sum(files.values()) for files in self._dealt(tests)), default=0.0)

    def record(self, tests: list[Item], say: Callable[[str], None]) -> tuple[list[str], int]:
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

    def _dealt(self, tests: list[Item]) -> list[dict[Path, float]]:
        files: dict[Path, float] = {}
        for test in tests:
            files[test.path] = files.get(test.path, 0.0) + self.times.test(test.id)
        return [{path: files[path] for path in share} for share in shares(files, self.at_once)]

    def _run(
        self,
        files: list[Path],
        tests: dict[str, Item],
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

    def _start(self, files: list[Path], tests: dict[str, Item], crashed: list[str], output: Any) -> Child | None:
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
