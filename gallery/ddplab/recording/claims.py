"""Results of claims: which stand, which NCCL may change, and putting one into an edition."""

from __future__ import annotations

import ast
import datetime
import re
from pathlib import Path
from typing import Any

from .edition_folder import Edition, read_results, write_results
from .items import Item, proofs_of
from .machine import machine


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


def write_results_of(test: Item, edition: Edition, result: dict[str, Any]) -> None:
    """Put what a test gave into the file of its file's results; those of tests that are gone, go."""
    path = edition.claims_file(test.path)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    result |= {"key": test.key(result["read"]), "date": date, "machine": machine()}
    stated = {node.value for node in ast.walk(ast.parse(test.path.read_text())) if isinstance(node, ast.Constant)}
    kept = {one: old for one, old in read_results(path).items() if one in stated}
    write_results(path, kept | dict.fromkeys(test.claims, result))


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
