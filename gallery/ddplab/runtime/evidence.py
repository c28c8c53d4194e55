"""What a script leaves as evidence while an edition is recorded: its values, its launches, the data that it reads.

Only the standard library is used here: the book reads evidence without importing torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

_WHERE = "DDPLAB_EVIDENCE"  # path of the evidence file of the script that runs now; unset: nothing is kept


def record(unit: str = "", **values: float | int | str) -> None:
    """Keep measured values, so that prose can say ``{measured}`lab-id.name``` and never disagree with the run.

    Args:
        unit: unit of all values of this call, as prose writes it: ``"ms"``, ``"MiB"``, ``"ranks"``; may be empty.
        values: one number or string each; numpy and torch scalars are converted.

    Raises:
        ValueError: a value is not finite, not a number or string, or its name was recorded before.
        RuntimeError: called inside a rank; return the value from the worker and record it in the script.
    """
    if "LOCAL_RANK" in os.environ:
        raise RuntimeError("record() was called inside a rank; return the value from the worker and record it there")
    plain = {name: _plain(name, value) for name, value in values.items()}
    with _Current() as kept:
        for name, value in plain.items():
            if name in kept["values"]:
                raise ValueError(f"record: {name!r} was recorded before in this script")
            kept["values"][name] = {"value": value, "unit": unit}


def note_launch(nproc: int, facts: dict[str, Any]) -> None:
    """Keep how many ranks ran on what, how often, and how many collectives a rank issued in all."""
    with _Current() as kept:
        add_launch(kept["launches"], {"ranks": nproc, "collectives": 0, **facts, "times": 1})


def add_launch(launches: list[dict[str, Any]], launch: dict[str, Any]) -> None:
    """Add a launch to a list that counts those which are alike in all else."""
    counts = dict.fromkeys(("times", "collectives"), 0)
    same = next((seen for seen in launches if seen | counts == launch | counts), None)
    if same is None:
        launches.append(dict(launch))
    else:
        same |= {name: same[name] + launch[name] for name in counts}


def begin(path: Path) -> None:
    """Start an evidence file, and make it the current one."""
    global _reads
    os.environ[_WHERE] = str(path)
    write_json(path, {"launches": [], "values": {}})
    if _reads is None:
        sys.addaudithook(_note_read)
    _reads = set()


def end() -> dict[str, Any]:
    """Take the current evidence, with the data files of the project that this process has read; its file goes."""
    path = Path(os.environ.pop(_WHERE))
    kept: dict[str, Any] = {**json.loads(path.read_text()), "read": sorted(_reads or ())}
    path.unlink()
    return kept


_ROOT = Path(__file__).parents[3]
_reads: set[str] | None = None  # None: the hook is not there yet, and it cannot be taken away again
_DATA = re.compile(rf"{re.escape(str(_ROOT))}/((?:gallery|tests)/(?!editions/)(?:[^/]+/)*[^/]+)(?<!\.py)(?<!\.pyc)")


def _note_read(event: str, arguments: tuple[Any, ...]) -> None:
    """Keep which data files a lab reads: when one changes, what was recorded is of other data."""
    if event == "open" and _WHERE in os.environ and isinstance(arguments[0], str | os.PathLike):
        path, mode = os.path.abspath(arguments[0]), arguments[1]
        found = _DATA.fullmatch(path)
        if found and (mode is None or not set(mode) & set("wax+")) and os.path.isfile(path) and _reads is not None:
            _reads.add(found[1])


# -- the file ---------------------------------------------------------------------------------------


_lock = threading.Lock()  # launches may run side by side


class _Current:
    """The current evidence file as a dictionary, written back whole on a clean exit."""

    def __enter__(self) -> dict[str, Any]:
        _lock.acquire()
        where = os.environ.get(_WHERE)
        self.path = Path(where) if where else None
        self.kept = json.loads(self.path.read_text()) if self.path else {"values": {}, "launches": []}
        return self.kept

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and self.path:
                write_json(self.path, self.kept)
        finally:
            _lock.release()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object whole, or leave the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(name: str, value: Any) -> float | int | str:
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"record: {name} must be a finite number or a string; got {value!r}")
    return value
