"""Running a lab for an edition: what it printed, drew, recorded and launched.

As a program (``python -m ddplab.recording.labs``) it runs the labs that the recorder asks for.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from ..runtime import evidence
from .child import Work
from .items import Item
from .keys import block_key, sharing_unless
from .machine import machine
from .script import code_blocks, lab_id, run, small_svg


def record_lab(script: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Run one lab here; return its evidence, and its figures by file name."""
    name, item = lab_id(script), Item(script)
    figures: dict[str, str] = {}

    def save(figure: Any, number: int) -> str:
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        figures[f"{name}-{number}.svg"] = small_svg(drawn.getvalue())
        return f"{name}-{number}.svg"

    blocks = code_blocks(script.read_text(encoding="utf-8"))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        evidence.begin(Path(folder) / "evidence.json")
        try:
            with sharing_unless(item.names_a_clock()):
                outcome = run(script, save)
        finally:
            kept = evidence.end()
    kept |= about(item, kept["read"], time.monotonic() - began_s)
    kept["blocks"] = [
        {"code": block_key(block.code), **shown} for block, shown in zip(blocks, outcome.blocks, strict=False)
    ]
    kept |= {name: text for name in ("failed", "needs") if (text := getattr(outcome, name))}
    return kept, figures


def about(item: Item, read: list[str], seconds: float) -> dict[str, Any]:
    """What is kept of any lab: the key of its code, and when, for how long and on what it ran."""
    now = datetime.datetime.now(datetime.timezone.utc)
    facts = {"key": item.key(read), "date": now.isoformat(timespec="seconds"), "machine": machine()}
    return {**facts, "seconds": round(seconds, 1)}


def main() -> None:
    """Record the labs that the recorder names, of which each has its time."""
    work = Work()
    for item in (Item(Path(script)) for script in work.labs):
        if work.fits(item.id):
            with work.running(item.id):
                kept, figures = record_lab(item.path)
            work.edition.write_lab(item.names[0], kept, figures)
            work.send(done=item.id, outcome="failed" if kept.get("failed") else "passed")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # from the recorder, which has printed why
        main()
