"""Break what a claim says, and see its test fail: a test that stays green shows less than the claim.

    python tests/mutations.py                     # every mutation of tests/claims/mutations
    python tests/mutations.py no-sync-is-local    # those of these claims
    python tests/mutations.py --cheap             # those that run side by side; a test runs one per file

A mutation is a table `[[CLAIM]]` of `tests/claims/mutations/*.toml`: `replace` (text that stands once in the file),
`with`, and, where it is useful, `about` (what it breaks) and `file` (a lab or the kit, such as
"gallery/ddplab/checkpoint.py"; without it, the file of the claim's test, or the lab that proves it). A mutation of that
file is cheap; for another file the repository is copied and pytest starts anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddplab.errors import BadInput
from ddplab.recording.items import proofs_of

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "tests" / "claims"
LIMIT_S = 120  # for one test; a rank that a mutation hangs is seen by then


@dataclass(frozen=True)
class Mutation:
    """One change of one file, and the test that must notice it."""

    claim: str
    test: str  # the function that proves the claim, or "lab"
    test_file: Path
    file: Path  # relative to the repository
    old: str
    new: str
    about: str

    @property
    def is_cheap(self) -> bool:
        """Whether it needs no copy of the repository."""
        return ROOT / self.file == self.test_file

    def mutated(self) -> str:
        """The text of the file with the change."""
        return (ROOT / self.file).read_text(encoding="utf-8").replace(self.old, self.new)


def read() -> list[Mutation]:
    """All mutations, in the order of their files.

    Raises:
        BadInput: one names no claim that has a test, or text that does not stand once in its file.
    """
    proofs = {claim: (item.path, item.name or "lab") for item in proofs_of(ROOT) for claim in item.claims}
    return [
        _mutation(claim, table, path, proofs)
        for path in sorted((CLAIMS / "mutations").glob("*.toml"))
        for claim, tables in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for table in tables
    ]


def _mutation(claim: str, table: dict[str, str], path: Path, proofs: dict[str, tuple[Path, str]]) -> Mutation:
    where = f"{path.name}: {claim}"
    if claim not in proofs:
        raise BadInput(f"{where}: no test and no lab proves this claim")
    test_file, test = proofs[claim]
    file = Path(table.get("file", test_file.relative_to(ROOT)))
    count = (ROOT / file).read_text(encoding="utf-8").count(table["replace"])
    if count != 1:
        raise BadInput(f"{where}: {table['replace']!r} stands {count} times in {file}; it must stand there once")
    return Mutation(claim, test, test_file, file, table["replace"], table["with"], table.get("about", ""))


def outcomes(mutations: Iterable[Mutation], workers: int = 2) -> list[tuple[Mutation, str, str]]:
    """For each mutation what its test did, "caught", "survived", "skipped" or "broken", and the line it failed with."""
    mutations = list(mutations)
    cheap = [mutation for mutation in mutations if mutation.is_cheap]
    with tempfile.TemporaryDirectory(prefix="ddplab-mutations-") as folder:
        found = dict(zip(map(id, cheap), _together(cheap, Path(folder) / "together", workers), strict=True))
        for number, mutation in enumerate(mutations):
            if not mutation.is_cheap:
                found[id(mutation)] = _alone(mutation, Path(folder) / str(number))
    return [(mutation, *found[id(mutation)]) for mutation in mutations]


def _together(mutations: list[Mutation], folder: Path, workers: int) -> list[tuple[str, str]]:
    """All in one pytest: a mutated copy of the file for each, outside the repository, a lab's among its neighbors."""
    if not mutations:
        return []
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "conftest.py").symlink_to(ROOT / "tests" / "conftest.py")
    names = []
    for number, mutation in enumerate(mutations):
        place = mutation.file.parent if mutation.test == "lab" else Path("tests")
        copy = folder / place / f"{mutation.test_file.stem}_{number}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(mutation.mutated(), encoding="utf-8")
        names.append(f"{place}/{copy.name}::{mutation.test}")
    for copied in {*folder.glob("gallery/*"), *folder.glob("gallery")}:
        for path in (ROOT / copied.relative_to(folder)).iterdir():
            if not (copied / path.name).exists():
                (copied / path.name).symlink_to(path)
    paths = f"pythonpath={ROOT / 'tests'} {ROOT / 'handbook'} {CLAIMS}"
    report = _pytest(
        names, folder, ["-n", str(workers), "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", "-o", paths]
    )
    return [_outcome(report, f"{m.test_file.stem}_{number}", m.test) for number, m in enumerate(mutations)]


def _alone(mutation: Mutation, folder: Path) -> tuple[str, str]:
    """In a copy of the repository."""
    left_out = shutil.ignore_patterns("editions", "__pycache__", "site", "print")
    for name in ("gallery", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("gallery/editions", "handbook", "conf.py", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    (folder / mutation.file).write_text(mutation.mutated(), encoding="utf-8")
    file = mutation.test_file.relative_to(ROOT)
    report = _pytest([f"{file}::{mutation.test}"], folder, [], PYTHONPATH=str(folder / "gallery"))
    return _outcome(report, file.stem, mutation.test)


def _pytest(names: list[str], folder: Path, options: list[str], **environment: str) -> ET.Element:
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--timeout={LIMIT_S}", f"--junitxml={report}"]
    run = subprocess.run(
        [*command, *options, *names],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        raise BadInput(f"pytest ended with {run.returncode} before a test ran:\n{run.stdout}{run.stderr}")
    return ET.parse(report).getroot()


def _outcome(report: ET.Element, module: str, test: str) -> tuple[str, str]:
    cases = [
        case
        for case in report.iter("testcase")
        if case.get("classname", "").endswith(module) and case.get("name", "").split("[")[0] == test
    ]
    for kind, outcome in (("failure", "caught"), ("error", "broken"), ("skipped", "skipped")):
        for case in cases:
            if (child := case.find(kind)) is not None:
                return outcome, child.get("message", "").partition("\n")[0]
    return ("survived" if cases else "broken"), ""


def main() -> int:
    """Print a line for each mutation; 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", metavar="CLAIM")
    parser.add_argument("--cheap", action="store_true", help="only those that need no copy of the repository")
    arguments = parser.parse_args()
    try:
        mutations = read()
        if unknown := set(arguments.claims) - {mutation.claim for mutation in mutations}:
            raise BadInput(f"no mutation of {', '.join(sorted(unknown))} in tests/claims/mutations")
        mutations = [m for m in mutations if (not arguments.claims or m.claim in arguments.claims)]
        found = outcomes([m for m in mutations if m.is_cheap or not arguments.cheap])
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    for mutation, outcome, why in found:
        what = mutation.about or mutation.new.strip().partition("\n")[0]
        print(f"{outcome:9}{mutation.claim}: {what}\n{'':9}{why[:140]}")
    caught = sum(outcome == "caught" for _, outcome, _ in found)
    print(f"{caught} of {len(found)} caught, of {len({mutation.claim for mutation, *_ in found})} claims")
    return int(caught < len(found))


if __name__ == "__main__":
    sys.exit(main())
