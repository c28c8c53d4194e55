"""The ledger: which tests have passed, and of what. A file of tests has a file of passes, sorted, written by runs only.

A pass holds while the code of the test is the same, and all that it reads. What the tests of a file read counts for
each of them, since one may keep for the next what it has read, but for a test that stands ``apart``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddplab.recording import reach
from ddplab.recording.edition_folder import read_json
from ddplab.recording.keys import inputs
from ddplab.runtime.evidence import write_json

from . import here
from .hashes import digest
from .watch import ROOT, counts

FOLDER = ROOT / "tests" / "ledger" / "passes"
ABOUT = FOLDER / "ledger.json"
_START = len(str(ROOT)) + 1  # of a path in the project


@dataclass
class Pass:
    """One test that passed: hashes of its code and of what it read, its seconds, and whether it is of the core.

    The seconds are elapsed time, by the share of a core that each process of tests had: they add up to what all cores
    together gave.
    """

    code: str
    data: str
    seconds: float
    core: bool = False

    def __str__(self) -> str:
        return f"{self.code} {self.data} {self.seconds:.1f}{' core' * self.core}"

    @classmethod
    def read(cls, text: str) -> Pass:
        """A pass as it is kept, on a line."""
        code, data, seconds, *core = text.split()
        return cls(code, data, float(seconds), bool(core))


@dataclass
class Passes:
    """What is known of one file of tests."""

    tests: dict[str, Pass] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)  # what its tests read
    apart: dict[str, list[str]] = field(default_factory=dict)  # what a test that stands apart reads alone

    @classmethod
    def of(cls, file: str) -> Passes:
        """Those of a file of tests, such as ``tests/kit/test_trace.py``."""
        return cls.at(cls.place(file))

    @classmethod
    def at(cls, path: Path) -> Passes:
        """Those that a file holds: none if it is damaged or missing."""
        try:
            kept = read_json(path, "apart", "reads", "tests")
            return cls({name: Pass.read(text) for name, text in kept["tests"].items()}, kept["reads"], kept["apart"])
        except (OSError, ValueError):
            return cls()

    @staticmethod
    def place(file: str) -> Path:
        """Where they are kept."""
        path = Path(file)  # a lab that proves claims stands in the gallery
        return FOLDER / (path.relative_to("tests") if path.is_relative_to("tests") else path).with_suffix(".json")

    def hold(self, test: str, code: str) -> bool:
        """Whether the test passed with what stands here, ``code`` being the hash of its code."""
        return test in self.tests and self.tests[test].code == code and self.has_same_data(test)

    def has_same_data(self, test: str) -> bool:
        """Whether what the test read is as it was."""
        return self.tests[test].data == self.data_of(test)

    def data_of(self, test: str) -> str:
        """The hash of what the test reads, as it stands here."""
        return hash_of(self.apart.get(test, self.reads))

    def write(self, file: str) -> None:
        """Keep them, or remove their file if there are none."""
        path = self.place(file)
        self.apart = {name: reads for name, reads in self.apart.items() if name in self.tests}
        tests = {name: str(one) for name, one in self.tests.items()}
        if tests:
            write_json(path, {"apart": self.apart, "reads": self.reads, "tests": tests})
        else:
            path.unlink(missing_ok=True)


@functools.cache
def before(file: str) -> Passes:
    """Those of a file of tests as they were when this run began."""
    return Passes.of(file)


def about() -> dict[str, str]:
    """Of which machine the ledger is, and the commit at which all tests last ran; empty if nothing says so."""
    try:
        return dict(read_json(ABOUT, "python", "system", "torch", "whole"))
    except (OSError, ValueError):
        return {}


def git(*arguments: str) -> str:
    """What git says of the project; nothing where it cannot."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def project_files() -> list[str]:
    """The files of the project, those included that are not committed yet."""
    return git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()


def hash_of(reads: Iterable[str]) -> str:
    """The hash of all that a test reads and starts, as `watch` names it."""
    return _hash(f"{name} {_content(name)}" for name in sorted(reads))


@functools.cache  # for one run, in which nothing of this changes
def _content(name: str) -> str:
    """The hash of what `watch` calls by this name."""
    if name == "git":
        return _hash(f"{one} {digest(ROOT / one)}" for one in project_files() if FOLDER not in (ROOT / one).parents)
    if not (ROOT / name.rstrip("/*!#")).exists() and "*" not in name:
        return "missing"
    if name.endswith("!"):
        return code_hash(*inputs([(ROOT / name[:-1], reach.ALL)]))
    if name.endswith("/"):
        return _hash(sorted(one for one in os.listdir(ROOT / name) if counts(f"{name}{one}")))
    name, titles = name.removesuffix("#"), "#" if name.endswith("#") else ""
    folder, _, pattern = name.rpartition("/*")
    if not folder:
        return _titles(ROOT / name) if titles else digest(ROOT / name)
    paths = (ROOT / folder).rglob("*") if pattern == "*" else (ROOT / folder).glob(f"*{pattern}")
    ours = sorted(path for path in paths if path.is_file() and counts(path.relative_to(ROOT).as_posix()))
    lines = [f"{one} {_content(f'{one}{titles}')}" for one in (path.relative_to(ROOT).as_posix() for path in ours)]
    modules = [path for path in ours if pattern == "*" and path.suffix == ".py"]  # which a program may import
    parts = {(path, name): part for path in modules for name, part in reach.source(path).parts.items()}
    return _hash([*lines, _versions(parts)])


def _titles(page: Path) -> str:
    """The hash of a page's headings, and of the labels above them."""
    return _hash(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(("#", "(")))


def code_hash(parts: dict[reach.Node, reach.Part], data: Iterable[Path]) -> str:
    """The hash of definitions with their words, as help texts are made of docstrings, of the versions, and of data."""
    lines = [_line(*node) for node in parts]
    lines += [f"{str(path)[_START:]} {_content(str(path)[_START:])}" for path in data]
    return _hash([*sorted(lines), _versions(parts)])


def _versions(parts: dict[reach.Node, reach.Part]) -> str:
    """The versions of what these definitions use of others."""
    names = {name for part in parts.values() for name in part.strings}
    return str(sorted(here.versions(reach.outside(parts), names).items()))


@reach.once
def _line(path: Path, name: str) -> str:
    part = reach.source(path).parts[name]
    return _hash([str(path)[_START:], name, part.text, part.code])


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def folded(reads: Iterable[str]) -> list[str]:
    """The same in fewer words: a folder of which all files of a kind are read is ``folder/*.html``.

    What stands below ``folder/**`` goes, and so does the list of a folder's names where a pattern says as much.
    """
    names = {*reads}
    below = tuple(name[:-2] for name in names if name.endswith("/**"))
    names = {name for name in names if name.endswith("/**") or not name.startswith(below or ("\0",))}
    kinds: dict[tuple[str, str], set[str]] = {}
    for name in names:
        path = Path(name)
        if not name.endswith(("/", "!", "*")) and path.suffix:
            kinds.setdefault((path.parent.as_posix(), path.suffix), set()).add(name)
    for (folder, suffix), those in kinds.items():
        if len(those) > 3 and len(those) == len([*(ROOT / folder).glob(f"*{suffix.removesuffix('#')}")]):
            names = names - those | {f"{folder}/*{suffix}"}
    return sorted(names)
