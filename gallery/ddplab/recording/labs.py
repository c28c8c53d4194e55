"""Recording labs: one after the other, since they measure, in a process that may hang or crash without harm.

As a program (``python -m ddplab.recording.labs``) it is that process.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from ..runtime import evidence
from .child import Channel, Child
from .keys import block_key, lab_key, names_a_clock, sharing_unless
from .machine import machine
from .script import code_blocks, run, small_svg

_GRACE_S = 20.0  # for a lab to clean up once its time is up


class OverTimeError(BaseException):
    """A lab took too long; not an Exception, which a lab may catch."""


def record_lab(name: str, script: Path, limit_s: float = 0.0) -> tuple[dict[str, Any], dict[str, str]]:
    """Run one lab here; return its evidence, and its figures by file name.

    Args:
        name: its id.
        script: the file.
        limit_s: seconds after which it is interrupted and has failed; 0: none.
    """
    figures: dict[str, str] = {}

    def save(figure: Any, number: int) -> str:
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        figures[f"{name}-{number}.svg"] = small_svg(drawn.getvalue())
        return f"{name}-{number}.svg"

    def over(*_: object) -> None:
        raise OverTimeError(f"still ran after {limit_s:g} s")

    blocks = code_blocks(script.read_text(encoding="utf-8"))
    began_s = time.monotonic()
    if limit_s:
        signal.signal(signal.SIGALRM, over)
    with tempfile.TemporaryDirectory() as folder:
        evidence.begin(Path(folder) / "evidence.json")
        try:
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            with sharing_unless(names_a_clock(script)):
                outcome = run(script, save)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            kept = evidence.end()
    kept |= _about(script, kept["read"], began_s)
    kept["blocks"] = [
        {"code": block_key(block.code), **shown} for block, shown in zip(blocks, outcome.blocks, strict=False)
    ]
    kept |= {name: text for name in ("failed", "needs") if (text := getattr(outcome, name))}
    return kept, figures


def _about(script: Path, read: list[str], began_s: float) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "key": lab_key(script, read),
        "date": now.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began_s, 1),
        "machine": machine(),
    }


class Labs:
    """Runs labs in a process; where it hangs or crashes, the lab has failed, and the next one gets a new process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._child: Child | None = None

    def __enter__(self) -> Labs:
        """The process starts with the first lab."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end()

    def record(
        self, name: str, script: Path, limit_s: float, deadline_s: float
    ) -> tuple[dict[str, Any], dict[str, str]] | None:
        """The evidence and figures of one lab; None if the deadline came before its end or its limit."""
        if self._child is None:
            environment = {"MPLBACKEND": "agg", **os.environ}  # no window, whatever the machine has
            self._child = Child("-m", "ddplab.recording.labs", cwd=self._root, environment=environment)
        began_s = time.monotonic()
        self._child.send(name=name, script=str(script), limit_s=limit_s)
        hard_s = began_s + limit_s + _GRACE_S
        try:
            answer = self._child.receive(min(hard_s, deadline_s))
        except TimeoutError:
            how = self.end()
            if deadline_s < hard_s:
                return None
            how = f"still ran after {limit_s:g} s, and did not end when it was interrupted; it was ended with {how}"
        else:
            if answer:
                return answer["kept"], answer["figures"]
            how = f"the process that ran it ended: {self.end()}"
        nothing: dict[str, Any] = {"launches": [], "values": {}, "read": [], "blocks": []}
        return {**nothing, **_about(script, [], began_s), "failed": how}, {}

    def end(self) -> str:
        """End the process, if there is one; return how it ended."""
        child, self._child = self._child, None
        return child.end() if child else ""


def main() -> None:
    """Record the labs that the recorder names, until it names no more."""
    channel = Channel()
    for wanted in channel:
        kept, figures = record_lab(wanted["name"], Path(wanted["script"]), wanted["limit_s"])
        channel.send(kept=kept, figures=figures)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # from the recorder, which has printed why
        main()
