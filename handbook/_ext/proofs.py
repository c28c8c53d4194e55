"""The tests that prove the claims, found without running or importing them, and their results in an edition."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.config import Config

import labs
from ddplab import evidence


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


class ResultsError(ValueError):
    """The edition's file of results cannot be read."""


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
    lines = text.splitlines()
    helpers = sorted((node for node in used if node is not test), key=lambda node: node.lineno)
    return "\n\n\n".join("\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for node in [*helpers, test])


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


# -- results ----------------------------------------------------------------------------------------


def results_file(config: Config) -> Path | None:
    """Where the edition that this build shows keeps the claims' results."""
    edition = getattr(config, "labs_edition", "") or getattr(config, "labs_default_edition", "")
    return labs.EDITIONS / edition / "claims.json" if edition else None


def read_results(path: Path | None) -> dict[str, Any]:
    """The results file of an edition, as ``tests/claims/conftest.py`` writes it; empty if there is none yet.

    Raises:
        ResultsError: the file is not such a file.
    """
    if path is None or not path.exists():
        return {"results": {}}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        for claim in kept["results"]:
            result_of(Proof(claim, Path(__file__), "", 0, ""), kept)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ResultsError(f"no valid file of claims' results ({reason}); record it again, or restore it") from error
    return dict(kept)


def result_of(proof: Proof | None, kept: dict[str, Any]) -> Result:
    """What the results file says of a claim.

    Raises:
        ValueError: the test imports a name that the kit has not.
    """
    result = kept["results"].get(proof.claim) if proof else None
    if proof is None or result is None:
        return Result("not run", False, "")
    stale = result["key"] != evidence.key(proof.path)
    return Result(result["outcome"], stale, ran_on({**kept, "launches": result["launches"]}))


def ran_on(kept: dict[str, Any]) -> str:
    """What evidence was recorded on: ``1 × H200, nccl, 2 and 3 ranks, torch 2.13.0, 2026-11-21``."""
    launches, machine = kept["launches"], kept["machine"]
    gpus = {f"{launch['gpus']} × {launch['gpu']}" for launch in launches if launch.get("gpu")}
    hardware = ", ".join(sorted(gpus)) or f"{machine['cpu']}, {machine['cores']} cores"
    ranks = [str(count) for count in sorted({launch["ranks"] for launch in launches})]
    counted = " and ".join(filter(None, [", ".join(ranks[:-1]), *ranks[-1:]])) + (
        " rank" if ranks == ["1"] else " ranks"
    )
    torch = sorted({f"torch {launch['torch']}" for launch in launches})
    backends = sorted({launch["backend"] for launch in launches})
    return ", ".join([hardware, *backends, *([counted] if ranks else []), *torch, kept["date"][:10]])
