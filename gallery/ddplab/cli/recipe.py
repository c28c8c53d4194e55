"""``ddplab recipe NAME``: write a program of the book, and all that it needs, into a folder."""

from __future__ import annotations

import argparse
import ast
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import BadInput
from ..files import shipped
from . import print_json

EXAMPLE = """\
examples:
  ddplab recipe                       list the recipes
  ddplab recipe train.py              train.py, checkpoint.py and its data, into this folder
  ddplab recipe train --to job        all that is called train: the program and its batch file
  ddplab recipe hello_ranks.py        what to run first on a new cluster

A file that is there and differs is kept, and nothing is written, unless you give --force.

exit code: 0 written, 2 the input cannot be used
"""
_NEEDS = {  # what must stand beside a recipe
    "train.py": ("checkpoint.py", "data/collectives.txt"),
    "train.sbatch": ("train.py", "hello_ranks.py"),
    "srun_python.sbatch": ("train.py", "hello_ranks.py"),
    "trainjob.yaml": ("train.py",),
    "notebook.ipynb": ("train.py",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a recipe, with or without its suffix; none lists them")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=Path(), help="where to write it (default: here)")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def recipes() -> dict[str, Path]:
    """Return the file of each recipe, by name.

    Raises:
        BadInput: the folder of recipes is missing.
    """
    found = {path.name: path for path in sorted(shipped("recipes").glob("*.*")) if path.is_file()}
    if not found:
        raise BadInput(f"no recipes in {shipped('recipes')}; install ddplab again")
    return found


def _run(arguments: argparse.Namespace) -> int:
    known = recipes()
    if arguments.name is None:
        return _list(known, arguments.json)
    names = [name for name in known if arguments.name in (name, Path(name).stem)]
    if not names:
        raise BadInput(f"there is no recipe {arguments.name!r}; there are {', '.join(known)}")
    wanted = {name: _file(name, known) for name in _with_needs(names)}
    written = _write(wanted, arguments.to, arguments.force)
    if arguments.json:
        print_json({"files": [str(arguments.to / name) for name in wanted], "written": [str(path) for path in written]})
    else:
        for name in wanted:
            path = arguments.to / name
            print(f"{path}{'' if path in written else ' is up to date'}")
    return 0


def _list(known: dict[str, Path], as_json: bool) -> int:
    titles = {name: _title(path) for name, path in known.items()}
    if as_json:
        listed = [{"name": name, "title": title, "files": _with_needs([name])} for name, title in titles.items()]
        print_json({"recipes": listed})
    else:
        width = max(map(len, titles))
        print("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
    return 0


def _with_needs(names: list[str]) -> list[str]:
    """These recipes and what must stand beside them, each once."""
    found = list(names)
    for name in found:  # grows while it is walked
        found += [other for other in _NEEDS.get(name, ()) if other not in found]
    return found


def _file(name: str, known: dict[str, Path]) -> Path:
    if name == "checkpoint.py":  # of the kit: train.py takes it from there, or from beside itself
        return Path(__file__).parents[1] / name
    return known.get(name, shipped("recipes") / name)


def _title(path: Path) -> str:
    """The first sentence of a recipe about itself: of its docstring, its first comment, or its first cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    elif path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    line = next((line for line in text.splitlines() if not line.startswith("#!")), "")
    return line.strip("# ").rstrip(".:")


def _write(wanted: dict[str, Path], folder: Path, force: bool) -> list[Path]:
    """Write what is not there yet, all of it or, where a file would be lost, nothing; return what was written.

    Raises:
        BadInput: a file is there and differs, or cannot be written.
    """
    content = {folder / name: path.read_bytes() for name, path in wanted.items()}
    try:
        missing = [path for path, new in content.items() if not path.exists() or path.read_bytes() != new]
        lost = [str(path) for path in missing if path.exists()]
        if lost and not force:
            raise BadInput(f"already there, and different: {', '.join(lost)}; give another folder, or --force")
        for path in missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content[path])
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}; nothing is written there") from None
    return missing


def _replace(path: Path, content: bytes) -> None:
    """Write the file whole, or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
