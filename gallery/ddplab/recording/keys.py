"""Keys: a hash of the code and data that an outcome depends on, so that a recording is known to be of what stands here.

Comments, docstrings, prose and blank lines are not part of a key, nor is the Python that reads the file; what code an
outcome depends on, `reach` says.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..runtime import shared_gpu
from . import reach
from .reach import ALL, Node, Part, reached, source
from .words import code_of

_ENDINGS_TIMED = re.compile(r"\breport\((?![^()]*timed=False)")  # how ranks ended, with the seconds of each


def lab_key(script: Path, read: Iterable[str] = ()) -> str:
    """The key of a lab: its code block by block, all that it reaches in other files, and the files it has ``read``.

    Args:
        script: the lab.
        read: data files that were seen to be read, relative to the repository.

    Raises:
        ValueError: a file is not Python, or imports what the kit does not have; the message names file and line.
    """
    return _digest(source(script).blocks, [(script, ALL)], read, but=script)


def claim_key(path: Path, name: str, read: Iterable[str] = ()) -> str:
    """The key of the test function ``name`` in the file ``path``; as for labs, with the helpers that it uses.

    Raises:
        ValueError: as for labs, or the file has no such function.
    """
    if name not in source(path).parts:
        raise ValueError(f"{path}: there is no function {name!r}")
    return _digest("", [(path, name)], read)


def names_a_clock(path: Path, name: str = "", *, imports: bool = True) -> bool:
    """Whether a lab, or the test ``name`` in the file ``path``, names a clock, or a lab that the test runs does.

    A lab that reports when its ranks ended does, too.

    Args:
        path: the lab, or the file of the test.
        name: of the test.
        imports: whether what is imported counts, each module as a whole.
    """
    if not name:
        timed = _ENDINGS_TIMED.search(path.read_text(encoding="utf-8")) is not None
        return timed or _clock_in({path}, imports)
    own = [part for (file, _), part in reached([(path, name)]).items() if file == path]
    labs = {reach.KIT.parent / one for part in own for one in part.strings if "/plot_" in one}
    return any(reach.CLOCK.search(part.code) for part in own) or _clock_in(labs, imports, imported_by={path})


def _clock_in(files: set[Path], imports: bool, imported_by: Iterable[Path] = ()) -> bool:
    more = {module for file in (*files, *imported_by) for module in reach.imported(file)} if imports else set()
    return any(source(file).clock for file in files | more)


@contextlib.contextmanager
def sharing_unless(timed: bool) -> Iterator[None]:
    """Let no rank share a GPU in what is ``timed``, whatever was asked: those ranks take turns."""
    asked = os.environ.get(shared_gpu.ASKED)
    if timed and asked:
        os.environ[shared_gpu.ASKED] = "0"
    try:
        yield
    finally:
        if asked:
            os.environ[shared_gpu.ASKED] = asked


def block_key(code: str) -> str:
    """A short hash of one block, by which its output is found again in an edited script."""
    return _hash(code_of(code))[:8]


def kit_key() -> str:
    """A hash of all code of the kit."""
    files = sorted(reach.KIT.rglob("*.py"))
    return _hash("".join(part.code for path in files for part in source(path).parts.values()))


def _digest(code: str, starts: list[Node], read: Iterable[str], but: Path | None = None) -> str:
    parts, data = inputs(starts)
    read_too = {reach.KIT.parents[1] / name for name in read}
    found = {(str(path), name, path.name): part.code.encode() for (path, name), part in parts.items() if path != but}
    found |= {(str(path), "", path.name): path.read_bytes() for path in data | read_too if path.is_file()}
    digest = hashlib.sha256(code.encode())
    for (_, name, file), content in sorted(found.items()):
        digest.update(f"\0{file} {name}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def inputs(starts: Iterable[Node]) -> tuple[dict[Node, Part], set[Path]]:
    """All that an outcome depends on: the definitions that it reaches, and the data files that these name.

    Args:
        starts: the definitions that it began with.
    """
    parts: dict[Node, Part] = {}
    data: set[Path] = set()
    waiting = list(starts)
    while waiting:  # a file that a string names may be a program, which reaches more
        new = {node: part for node, part in reached(waiting).items() if node not in parts}
        parts |= new
        named = {file for node in new for file in _named(*node)}
        waiting = [(file, ALL) for file in named - data if file.suffix == ".py"]
        data |= named
    return parts, {file for file in data if file.suffix != ".py" and file.is_file()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@reach.once
def _named(path: Path, part: str) -> set[Path]:
    """The files that a definition names: data beside it, a lab, a recipe, or an exercise with all that grades it."""
    folder, names = path.parent, {*source(path).parts[part].strings}
    gallery = reach.KIT.parent
    recipes, exercises = gallery / "recipes", gallery / "exercises"
    found = {recipes / name for name in names & _listing(recipes)[0]}
    found |= {gallery / name for name in names if "/plot_" in name}
    for name in names & _listing(exercises)[1]:
        found |= {*(exercises / name).glob("*.py"), reach.KIT / "cli" / "grade.py"}
    files, folders = _listing(folder)
    found |= {folder / name for name in names & files if not name.endswith(".py")}
    if folder.is_relative_to(reach.KIT):
        for inner in (folder / name for name in names & folders):
            if not any(inner.glob("*.py")):
                found |= {file for file in inner.rglob("*") if file.is_file()}
    return found


@reach.once
def _listing(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the files in a folder, and those of its folders."""
    return _listed(folder, folder.stat().st_mtime_ns) if folder.is_dir() else (frozenset(), frozenset())


@functools.cache
def _listed(folder: Path, _modified: int) -> tuple[frozenset[str], frozenset[str]]:
    entries = [(entry.name, entry.is_dir()) for entry in os.scandir(folder)]
    files, folders = ({name for name, inner in entries if inner == kind} for kind in (False, True))
    return frozenset(files), frozenset(folders)
