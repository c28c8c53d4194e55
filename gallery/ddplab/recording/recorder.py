"""Running what is to be recorded, in processes that may hang or crash without harm.

Labs run one after the other in one process, since they measure; tests of claims side by side in a few of pytest. Not
with pytest-xdist, which a cluster may not have: a file of tests has a file of results, so processes need nothing of
each other, and the recorder can end each of them and say in what it hung or crashed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .child import Child
from .claims import write_results_of
from .edition_folder import Edition
from .items import Item
from .labs import about
from .plan import Times, dealt

_GRACE_S = 20.0  # to clean up, for what hears that its time is up
_OFF = [part for name in ("cacheprovider", "xdist", "timeout") for part in ("-p", f"no:{name}")]
_PYTEST = ["-m", "pytest", *_OFF, "-p", "ddplab.recording.as_tests"]


@dataclass
class Recorder:
    """Runs labs and tests of claims, and keeps what came out in an edition."""

    root: Path
    edition: Edition
    times: Times
    deadline_s: float  # by the monotonic clock
    say: Callable[[str], object]

    _children: set[Child] = field(default_factory=set)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _done: dict[str, str] = field(default_factory=dict)  # lab or claim -> outcome

    def record(self, items: list[Item], limit_s: float, at_once: int = 1) -> tuple[list[str], int]:
        """Run labs, in this order, or tests; return what failed, and how many are left when the time is up.

        One that is not expected to end in time is passed over; a shorter one may still fit.
        """
        self._done = {}
        shares, total = dealt(items, self.times, at_once), sum(len(item.names) for item in items)
        with ThreadPoolExecutor(max(1, len(shares))) as pool:
            try:
                for work in [pool.submit(self._run, share, limit_s, total) for share in shares]:
                    work.result()
            except BaseException:  # such as Ctrl-C: all that run end at the same time
                with self._turn:
                    self._stopped = True
                    children = list(self._children)
                for ended in [threading.Thread(target=child.stop) for child in children]:
                    ended.start()
                raise
        failed = [name for name, outcome in self._done.items() if outcome == "failed"]
        return failed, sum(not self._is_done(item) for item in items)

    def _is_done(self, item: Item) -> bool:
        return self._done.keys() >= {*item.names}

    def _run(self, share: list[Item], limit_s: float, total: int) -> None:
        """Run some; one in which the process hangs or crashes has failed, and the others go on in another."""
        by_id = {item.id: item for item in share}
        while todo := [item for item in share if not self._is_done(item)]:
            running, why, hard_s, began_s = None, "", float("inf"), 0.0
            with tempfile.TemporaryFile() as output:
                child = self._start(todo, limit_s, output)
                if child is None:
                    return
                try:
                    while (message := child.receive(min(hard_s, self.deadline_s))) is not None:
                        self._heard(message, by_id, total)
                        if "running" in message:
                            running, began_s = message["running"], time.monotonic()
                            hard_s = began_s + limit_s + _GRACE_S if running else float("inf")
                except TimeoutError:
                    why = f"still ran after {limit_s:g} s, and did not end when it was interrupted; it was ended with "
                how = child.end()
                output.seek(0)
                text = output.read().decode(errors="replace").rstrip()
            with self._turn:
                self._children.discard(child)
            if self._stopped or (why and self.deadline_s < hard_s):
                return
            if running is None:
                if how != "exit status 0" and not (todo[0].name and how == "exit status 1"):  # no failure of a test
                    self.say(text)
                return
            if not self._is_done(item := by_id[running]):
                self._crashed(item, (why or "the process that ran it ended: ") + how, time.monotonic() - began_s)
                self._heard({"done": item.id, "outcome": "failed"}, by_id, total)

    def _start(self, items: list[Item], limit_s: float, output: Any) -> Child | None:
        tests = bool(items[0].name)
        command = [*_PYTEST, *(item.id for item in items)] if tests else ["-m", "ddplab.recording.labs"]
        environment = {"MPLBACKEND": "agg", **os.environ}  # no window, whatever the machine has
        with self._turn:
            if self._stopped or time.monotonic() > self.deadline_s:
                return None
            child = Child(*command, cwd=self.root, environment=environment, output=output)
            self._children.add(child)
        child.send(
            edition=str(self.edition.folder.absolute()),
            limit_s=limit_s,
            deadline_s=self.deadline_s,
            seconds={item.id: self.times.of(item) for item in items},
            labs=[] if tests else [str(item.path) for item in items],
        )
        return child

    def _heard(self, message: dict[str, Any], by_id: dict[str, Item], total: int) -> None:
        """Take what a process says: that something runs, failed, or is done."""
        with self._turn:
            if "report" in message:  # a failure: shown at once, since the end of pytest's output may be cut off
                self.say(message["report"])
            elif "done" in message:
                item = by_id[message["done"]]
                for name in item.names:
                    self._done[name] = message["outcome"]
                    if item.name:
                        self.say(f"[{len(self._done)}/{total}] {name} {message['outcome']}")
            elif message["running"] and not (item := by_id[message["running"]]).name:
                self.say(f"[{len(self._done) + 1}/{total}] {item.names[0]}")

    def _crashed(self, item: Item, why: str, seconds: float) -> None:
        """Keep that something failed of which no process could tell."""
        if item.name:
            result = {"outcome": "failed", "seconds": 0.0, "launches": [], "read": [], "test": item.id, "why": why}
            write_results_of(item, self.edition, result)
        else:
            nothing = {"launches": [], "values": {}, "read": [], "blocks": [], "failed": why}
            self.edition.write_lab(item.names[0], about(item, [], seconds) | nothing, {})
