"""The tests that prove the claims, found without running or importing them, and their results in an edition."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.config import Config

from ddplab.recording.edition_folder import DamagedError, Edition
from ddplab.recording.items import Item, lab_item, results_of, tests_in
from ddplab.recording.script import lab_id

from ..problems import BuildError
from . import lab_source
from .lab_pieces import counts_text, launches_text, stamp_text


@dataclass(frozen=True)
class Proof:
    """A test or a lab that shows a claim."""

    claim: str
    item: Item

    @property
    def path(self) -> Path:
        """Its file."""
        return self.item.path

    @property
    def name(self) -> str:
        """Of the test; empty: it is a lab."""
        return self.item.name

    @property
    def lab(self) -> str:
        """The id of the lab; empty: it is a test."""
        return "" if self.name else lab_id(self.path)

    @property
    def said(self) -> str:
        """The test or the lab, for a message."""
        return self.name or f"the lab {self.lab}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}:{self.item.line}"


@dataclass(frozen=True)
class Result:
    """What the edition says of a claim."""

    state: str  # "passed", "failed", "skipped" or "not run"
    stale: bool  # the test changed since
    where: str  # hardware, ranks, versions and date; empty if it was not run
    why: str  # of a skip: what is missing
    failed: str = ""  # of a failure: what the test printed
    ranks: str = ""  # how many, and on which backend


@dataclass(frozen=True)
class NcclRun:
    """What an edition says of a claim whose test had several ranks talk over NCCL."""

    edition: str
    passed: bool
    whole: bool  # no other launch of several ranks went over another backend
    where: str  # version and ranks
    stale: bool  # the test changed since

    @property
    def text(self) -> str:
        """``run on NCCL 2.28.9, 2 ranks sharing one GPU (edition h200)``."""
        did = "run on" if self.whole else "run in part on"
        stale = "; the test changed since" if self.stale else ""
        return f"{did if self.passed else 'does not hold on'} {self.where} (edition {self.edition}{stale})"


def test_files() -> list[Path]:
    """The files that hold the tests."""
    return sorted((lab_source.ROOT / "tests" / "claims").glob("test_*.py"))


def read_proofs() -> list[Proof]:
    """Every ``@proves("id")`` of the tests, in order, and every id behind ``:Proves:`` of the labs.

    Raises:
        SyntaxError: a file is not valid Python.
    """
    files = [*test_files(), *(lab.script for lab in lab_source.all_labs().values())]
    return [proof for path in files for proof in _proofs_of(path, path.stat().st_mtime_ns)]


@functools.cache
def _proofs_of(path: Path, _changed: int) -> list[Proof]:
    """Read once for as long as the file stays as it is: every page with claims asks for all of them."""
    items = tests_in(path) if path.name.startswith("test_") else [lab_item(path)]
    return [Proof(claim, item) for item in items for claim in item.claims]


# -- results ----------------------------------------------------------------------------------------


def results_edition(config: Config) -> Edition | None:
    """The edition whose results this build shows: the default one where labs were run here, which runs no claims."""
    name = config.labs_default_edition if lab_source.edition_of(config) == "here" else lab_source.edition_of(config)
    recorded = lab_source.edition(name) if name else None
    return recorded if recorded and recorded.has_claims() else None


def read_results(edition: Edition | None) -> dict[str, Any]:
    """The results that an edition has, by claim; empty if there is none yet.

    Raises:
        BuildError: a file of it is damaged.
    """
    return _read(edition, _stamps(result_files(edition)), _stamps(proving_labs())) if edition else {}


def result_files(edition: Edition) -> list[Path]:
    """The files of an edition that hold results of claims."""
    of_labs = (edition.lab_file(lab_id(script)) for script in proving_labs())
    return [*sorted(edition.folder.glob("claims/*.json")), *(path for path in of_labs if path.exists())]


def proving_labs() -> list[Path]:
    """The scripts of the labs that prove claims."""
    scripts = (lab.script for lab in lab_source.all_labs().values())
    return [script for script in scripts if _proofs_of(script, script.stat().st_mtime_ns)]


def _stamps(files: list[Path]) -> tuple[tuple[Path, int], ...]:
    return tuple((path, path.stat().st_mtime_ns) for path in files)


@functools.lru_cache(maxsize=16)
def _read(edition: Edition, _files: tuple[Any, ...], _labs: tuple[Any, ...]) -> dict[str, Any]:
    """Read once for as long as its files stay as they are: every page with claims asks for those of all editions."""
    try:
        return results_of(edition, lab_source.ROOT)
    except DamagedError as error:
        raise BuildError(str(error)) from None


def nccl_runs(proof: Proof | None) -> list[NcclRun]:
    """What the committed editions say of a claim under NCCL, by their names; a world of one sends nothing.

    Raises:
        BuildError: a file of an edition is damaged.
    """
    found: list[NcclRun] = []
    if proof is None:
        return found
    for name in lab_source.recorded_editions():
        kept = read_results(lab_source.edition(name)).get(proof.claim)
        launches = [launch for launch in kept["launches"] if launch["ranks"] > 1] if kept else []
        on_nccl = [launch for launch in launches if launch["backend"] == "nccl"]
        if kept and on_nccl and kept["outcome"] in {"passed", "failed"}:
            versions = " and ".join(sorted({launch["nccl"] for launch in on_nccl if launch.get("nccl")}))
            where = f"{f'NCCL {versions}'.strip()}, {counts_text(on_nccl)}"
            stale = kept["key"] != proof.item.key(kept.get("read", ()))
            found.append(NcclRun(name, kept["outcome"] == "passed", on_nccl == launches, where, stale))
    return found


def result_of(proof: Proof | None, kept: dict[str, Any]) -> Result:
    """What the results of an edition say of a claim.

    Raises:
        ValueError: the test imports a name that the kit does not have.
    """
    result = kept.get(proof.claim) if proof else None
    if proof is None or result is None:
        return Result("not run", False, "", "")
    stale = result["key"] != proof.item.key(result.get("read", ()))
    return Result(
        result["outcome"],
        stale,
        stamp_text({**result, "stale": False}),
        result.get("why", ""),
        result.get("failed", ""),
        launches_text(result["launches"]),
    )
