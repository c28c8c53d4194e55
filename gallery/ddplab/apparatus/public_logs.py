"""Logs of failed jobs in public repositories: what happened in each, and how often the first diagnosis is right.

``gallery/debugging/public_logs.json`` holds facts and answers, not the texts, which belong to others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnose import Engine, entries
from ..diagnose.entry import FOLDER, Entry
from ..diagnose.reading import read_text
from ..diagnose.tables import tables
from ..recording.words import code_of

FACTS = Path(__file__).parents[2] / "debugging" / "public_logs.json"


def engine_now(known: Mapping[str, Entry] | None = None) -> str:
    """Return one hash of what decides an answer: the engine's code and tables, and what it reads of the entries.

    The texts of the entries are not part of it, nor are comments: better words leave the answers as they are.
    """
    code = {path.name: code_of(path.read_text("utf-8"), path) for path in sorted(FOLDER.parent.glob("*.py"))}
    read = {
        name: [
            entry.role,
            entry.family,
            entry.explains,
            [(m.needle, m.regex and m.regex.pattern, m.nearby) for m in entry.matches],
        ]
        for name, entry in (known or entries()).items()
    }
    return hashlib.sha256(json.dumps([code, tables, read]).encode()).hexdigest()


def load(texts: str = "") -> dict[str, Any]:
    """Return the facts, with ``stale``: whether the engine has changed since it gave the answers.

    ``texts`` is a folder with the logs, each under its ``name``: they are diagnosed now, and the file is rewritten.
    Where the answer is another one, ``frozen`` keeps that of the tool that had not seen the unseen half.
    """
    facts = json.loads(FACTS.read_text())
    if texts:
        for log in facts["logs"]:
            before = {key: log.get(key) for key in ("answer", "answer_exception")}
            _answer(log, Path(texts, log["name"]))
            if any(log.get(key) != value for key, value in before.items()):
                log.setdefault("frozen", before)
        facts["engine"] = engine_now()
        FACTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return {**facts, "stale": facts["engine"] != engine_now()}


def _answer(log: dict[str, Any], path: Path) -> None:
    engine = Engine(entries())
    engine.start("")
    with path.open("rb") as stream:
        for text in read_text(stream, log["name"]):
            engine.feed(text)
    first = next(iter(engine.finish()), None)
    log["answer"] = first.id if first and first.id != "last-error" else "unknown"  # that one says so itself
    log.pop("answer_exception", None)
    if first and first.id == "python-exception":
        log["answer_exception"] = first.title.split(": ")[1]


def right(log: dict[str, Any], corrected: bool = False) -> bool:
    """Return whether the answer is the label, and of an ordinary exception its type too; or a ``corrected`` label."""
    if corrected and log["answer"] in log.get("corrected", []):
        return True
    answered = log.get("answer_exception")
    same_type = answered is None or answered == log.get("exception", answered)
    return same_type and log["answer"] in [log["label"], *log["also"]]


def by_frozen(logs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the logs with the answers of the tool that had not seen the unseen half."""
    return [{**log, **log.get("frozen", {})} for log in logs]


def count(
    logs: Sequence[dict[str, Any]], half: str, corrected: bool = False, areas: Collection[str] = ()
) -> tuple[int, int]:
    """Return how many logs of a half ("seen", "unseen") have the right answer, and how many there are.

    ``areas``: only logs whose label starts with one of these words.
    """
    of = [log for log in logs if log["half"] == half and (not areas or log["label"].split("-")[0] in areas)]
    return sum(right(log, corrected) for log in of), len(of)


def wilson(successes: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share, by default the 95 % one."""
    middle = (successes + z * z / 2) / (tries + z * z)
    reach = z / (tries + z * z) * math.sqrt(successes * (tries - successes) / tries + z * z / 4)
    return middle - reach, middle + reach
