"""What an edition records, found without importing it: labs, and tests of claims.

A claim is proved by a test with ``@proves("claim-id")`` above it, or by a lab whose docstring ends with the line
``:Proves: claim-id other-claim-id``: the lab's record is the claim's result then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .edition_folder import Edition
from .keys import claim_key, lab_key, names_a_clock
from .machine import is_good_for
from .reach import KIT
from .script import lab_id

_PROVES = re.compile(r'^:Proves:([^"]+)"""', re.MULTILINE)
_SHOWN_LINES = 60  # of what a lab that failed said


@dataclass(frozen=True)
class Item:
    """A lab, or a test function of claims."""

    path: Path
    name: str = ""  # of the function; a lab has none
    claims: tuple[str, ...] = ()  # that it proves
    line: int = 1  # of ``def``, or of what a lab proves
    lines: tuple[int, int] = (1, 1)  # the first of the function, with what stands above ``def``, and its last

    @property
    def id(self) -> str:
        """Its name for pytest and in results."""
        if self.name:
            return f"tests/claims/{self.path.name}::{self.name}"
        return f"gallery/{self.path.parent.name}/{self.path.name}::lab"

    @property
    def names(self) -> tuple[str, ...]:
        """What is recorded of it: the claims of a test, or the id of a lab."""
        return self.claims if self.name else (lab_id(self.path),)

    def key(self, read: Iterable[str] = ()) -> str:
        """The key of its code, with the files that it was seen to read."""
        return claim_key(self.path, self.name, read) if self.name else lab_key(self.path, read)

    def names_a_clock(self, *, imports: bool = True) -> bool:
        """Whether it or a lab that it runs names a clock; or, with ``imports``, what one of them imports."""
        return names_a_clock(self.path, self.name, imports=imports)

    def results(self, edition: Edition) -> list[dict[str, Any] | None]:
        """What an edition has of each of its claims, or of the lab."""
        if self.name:
            kept = edition.results_of(self.path)
            return [kept.get(claim) for claim in self.claims]
        lab = edition.lab(lab_id(self.path))
        return [lab and _as_result(lab, self.id)]

    def is_recorded(self, edition: Edition, here: dict[str, Any]) -> bool:
        """Whether an edition has it of this code, good for this machine, and it did not fail."""
        return all(one and one["outcome"] != "failed" and self.holds(one, here) for one in self.results(edition))

    def holds(self, result: dict[str, Any], here: dict[str, Any]) -> bool:
        """Whether a result is of this code, and good for this machine."""
        return bool(result["key"] == self.key(result["read"])) and is_good_for(
            result["machine"], here, self.names_a_clock
        )


def _as_result(lab: dict[str, Any], name: str) -> dict[str, Any]:
    """A lab's record as the result of a claim."""
    facts = ("key", "date", "seconds", "machine", "launches", "read")
    result = {"outcome": "passed", "test": name} | {fact: lab[fact] for fact in facts}
    for reason, outcome in (("needs", "skipped"), ("failed", "failed")):
        if said := lab.get(reason, "").splitlines():
            result |= {"outcome": outcome, "why": said[-1]}
            if outcome == "failed":
                result["failed"] = "\n".join(said[-_SHOWN_LINES:])
    return result


def labs_of(root: Path) -> Iterator[Item]:
    """Every lab of a project."""
    for script in sorted((root / "gallery").glob("*/plot_*.py")):
        yield lab_item(script)


def lab_item(script: Path) -> Item:
    """A lab, with the claims that it proves."""
    text = script.read_text(encoding="utf-8")
    if found := _PROVES.search(text):
        return Item(script, "", tuple(found[1].split()), text.count("\n", 0, found.start()) + 1)
    return Item(script)


def tests_of(root: Path) -> Iterator[Item]:
    """Every test of a claim.

    Raises:
        ValueError: a file is not Python; the message names file and line.
    """
    for path in sorted((root / "tests" / "claims").glob("test_*.py")):
        try:
            yield from tests_in(path)
        except SyntaxError as error:
            raise ValueError(f"{path}:{error.lineno}: {error.msg}") from error


def tests_in(path: Path) -> Iterator[Item]:
    """Every test of a claim in a file.

    Raises:
        SyntaxError: it is not Python.
    """
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.FunctionDef) and (claims := tuple(_proved(node))):
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield Item(path, node.name, claims, node.lineno, (first, node.end_lineno or first))


def _proved(node: ast.FunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="proves"), args=[ast.Constant(value=str(claim))]):
                yield claim


def proofs_of(root: Path) -> Iterator[Item]:
    """What proves claims: tests, then labs."""
    yield from tests_of(root)
    yield from (lab for lab in labs_of(root) if lab.claims)


def results_of(edition: Edition, root: Path = KIT.parents[1]) -> dict[str, dict[str, Any]]:
    """The result of every claim that an edition has: of its test, or of the lab that proves it.

    Raises:
        DamagedError: a file of the edition is damaged.
    """
    found = edition.results()
    for lab in labs_of(root):
        if lab.claims and (result := lab.results(edition)[0]):
            found |= dict.fromkeys(lab.claims, result)
    return found
