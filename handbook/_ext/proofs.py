"""The tests that prove the claims, found without running or importing them, and their results in an edition."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.config import Config

import labs
from ddplab import evidence
from lab_pieces import stamp_text, statement_source
from problems import Stop


@dataclass(frozen=True)
class Proof:
    """A test that shows a claim."""

    claim: str
    path: Path
    name: str
    line: int
    source: str  # the test, after the helpers of its file that it uses

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


def test_files() -> list[Path]:
    """The files that hold the tests."""
    return sorted((labs.ROOT / "tests" / "claims").glob("test_*.py"))


def read_proofs() -> list[Proof]:
    """Every ``@proves("id")`` of the tests, in order.

    Raises:
        SyntaxError: a file is no Python.
    """
    return [proof for path in test_files() for proof in _proofs_of(path)]


def _proofs_of(path: Path) -> Iterator[Proof]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name(id="proves"), args=[ast.Constant(value=str(claim))]):
                        yield Proof(claim, path, node.name, node.lineno, _with_helpers(node, tree, text))


def _with_helpers(test: ast.FunctionDef, tree: ast.Module, text: str) -> str:
    """Source of a test, below what it uses of its file: a reader sees everything but the imports."""
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {name.id: node for name in ast.walk(node) if isinstance(name, ast.Name) and _is_set(name)}
    used: list[ast.stmt] = [test]
    for node in used:  # grows while it is walked
        names = [defined[name.id] for name in ast.walk(node) if isinstance(name, ast.Name) and name.id in defined]
        used += [helper for helper in dict.fromkeys(names) if helper not in used]
    helpers = sorted((node for node in used if node is not test), key=lambda node: node.lineno)
    return "\n\n".join(statement_source(node, text) for node in [*helpers, test])


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


# -- results ----------------------------------------------------------------------------------------


def results_file(config: Config) -> Path | None:
    """Where the edition that this build shows keeps the claims' results."""
    edition = labs.edition_of(config)
    return labs.EDITIONS / edition / "claims.json" if edition else None


def read_results(path: Path | None) -> dict[str, Any]:
    """The results file of an edition, as ``tests/claims/conftest.py`` writes it; empty if there is none yet.

    Raises:
        Stop: the file is not such a file.
    """
    if path is None or not path.exists():
        return {"results": {}}
    kept = labs.read_json(path, "machine", "date", "torch", "results")
    for claim, result in kept["results"].items():
        if not isinstance(result, dict) or not {"outcome", "key", "launches"} <= result.keys():
            raise Stop(f"{path} is damaged (the result of {claim!r} is not complete); record it again")
    return kept


def result_of(proof: Proof | None, kept: dict[str, Any]) -> Result:
    """What the results file says of a claim.

    Raises:
        ValueError: the test imports a name that the kit has not.
    """
    result = kept["results"].get(proof.claim) if proof else None
    if proof is None or result is None:
        return Result("not run", False, "")
    stale = result["key"] != _key(proof.path)
    ran_on = stamp_text({**kept, "launches": result["launches"], "stale": False})
    return Result(result["outcome"], stale, ran_on)


@functools.cache  # a build asks for each claim, and many share a file
def _key(path: Path) -> str:
    return evidence.key(path)


def forget_keys(*_: object) -> None:
    """A new build sees what has changed since the last one in this process."""
    _key.cache_clear()
