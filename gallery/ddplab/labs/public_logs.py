"""Logs of failed jobs in public repositories: what happened in each, and how often the first diagnosis is right.

``gallery/debugging/public_logs.json`` holds facts and answers, not the texts, which belong to others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..diagnose import Engine, entries
from ..diagnose.entry import FOLDER
from ..diagnose.reading import read_text

FACTS = Path(__file__).parents[2] / "debugging" / "public_logs.json"


def engine_now() -> str:
    """Return one hash of the diagnosis engine and all its entries."""
    digest = hashlib.sha256()
    for path in sorted(path for path in FOLDER.parent.rglob("*") if path.suffix in (".py", ".toml")):
        digest.update(path.relative_to(FOLDER.parent).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def load(texts: str = "") -> dict[str, Any]:
    """Return the facts, with ``stale``: whether the engine has changed since it gave the answers.

    ``texts`` is a folder with the logs, each under its ``name``: they are diagnosed now, and the file is rewritten.
    """
    facts = json.loads(FACTS.read_text())
    if texts:
        for log in facts["logs"]:
            _answer(log, Path(texts, log["name"]))
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
