"""The tests that prove the claims, found without running or importing them, and their results in an edition."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.config import Config

from ddplab.recording.edition import DamagedError, Edition
from ddplab.recording.keys import claim_key
from ddplab.recording.proved import tests_in

from ..problems import BuildError
from . import labs
from .lab_pieces import ranks_text, stamp_text


@dataclass(frozen=True)
class Proof:
    """A test that shows a claim."""

    claim: str
    path: Path
    name: str
    line: int
    lines: tuple[int, int]  # its first, with what stands above ``def``, and its last
    lab: str  # the lab that it runs, by its script; empty where the test itself is all

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Result:
    """What the edition says of a claim."""

    state: str  # "passed", "failed", "skipped" or "not run"
    stale: bool  # the test changed since
    where: str  # hardware, ranks, versions and date; empty if it was not run
    why: str  # of a skip: what is missing
    failed: str = ""  # of a failure: what the test printed
    ranks: str = ""  # how many, and on which backend
    backends: frozenset[str] = frozenset()


def test_files() -> list[Path]:
    """The files that hold the tests."""
    return sorted((labs.ROOT / "tests" / "claims").glob("test_*.py"))


def read_proofs() -> list[Proof]:
    """Every ``@proves("id")`` of the tests, in order.

    Raises:
        SyntaxError: a file is not valid Python.
    """
    return [proof for path in test_files() for proof in _proofs_of(path, path.stat().st_mtime_ns)]


@functools.cache
def _proofs_of(path: Path, _changed: int) -> list[Proof]:
    """Read once for as long as the file stays as it is: every page with claims asks for all of them."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node, claims in tests_in(tree):
        for claim in claims:
            first = min(decorator.lineno for decorator in node.decorator_list)
            lab = re.search(r"run_lab\([\"'](.+?)[\"']\)", ast.unparse(node))
            lines = (first, node.end_lineno or first)
            found.append(Proof(claim, path, node.name, node.lineno, lines, lab[1] if lab else ""))
    return found


# -- results ----------------------------------------------------------------------------------------


def results_edition(config: Config) -> Edition | None:
    """The edition whose results this build shows: the default one where labs were run here, which runs no claims."""
    name = config.labs_default_edition if labs.edition_of(config) == "here" else labs.edition_of(config)
    recorded = labs.edition(name) if name else None
    return recorded if recorded and recorded.has_claims() else None


def read_results(edition: Edition | None) -> dict[str, Any]:
    """The results that an edition has, by claim; empty if there is none yet.

    Raises:
        BuildError: a file of it is damaged.
    """
    try:
        return edition.results() if edition else {}
    except DamagedError as error:
        raise BuildError(str(error)) from None


def result_of(proof: Proof | None, kept: dict[str, Any]) -> Result:
    """What the results of an edition say of a claim.

    Raises:
        ValueError: the test imports a name that the kit does not have.
    """
    result = kept.get(proof.claim) if proof else None
    if proof is None or result is None:
        return Result("not run", False, "", "")
    stale = result["key"] != claim_key(proof.path, proof.name, result.get("read", ()))
    return Result(
        result["outcome"],
        stale,
        stamp_text({**result, "stale": False}),
        result.get("why", ""),
        result.get("failed", ""),
        ranks_text(result["launches"]),
        frozenset(launch["backend"] for launch in result["launches"]),
    )
