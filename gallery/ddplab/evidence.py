"""What a script leaves as evidence while an edition is recorded: its values, its launches, its key.

Only the standard library is used here: the book reads evidence without importing torch.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import math
import os
import platform
import re
from pathlib import Path
from typing import Any

_WHERE = "DDPLAB_EVIDENCE"  # path of the evidence file of the script that runs now; unset: nothing is kept


def record(unit: str = "", **values: float | int | str) -> None:
    """Keep measured values, so that prose can say ``{measured}`lab-id.name``` and never disagree with the run.

    Args:
        unit: unit of all values of this call, as prose writes it: ``"ms"``, ``"MiB"``, ``"ranks"``; may be empty.
        values: one number or string each; numpy and torch scalars are converted.

    Raises:
        ValueError: a value is not finite, not a number or string, or its name was recorded before.
        RuntimeError: called inside a rank; return the value from the worker and record it in the script.
    """
    if "LOCAL_RANK" in os.environ:
        raise RuntimeError("record() was called inside a rank; return the value from the worker and record it there")
    plain = {name: _plain(name, value) for name, value in values.items()}
    with _Current() as kept:
        for name, value in plain.items():
            if name in kept["values"]:
                raise ValueError(f"record: {name!r} was recorded before in this script")
            kept["values"][name] = {"value": value, "unit": unit}


def note_launch(nproc: int, facts: dict[str, Any]) -> None:
    """Keep how many ranks ran on what: the stamp below the output says so."""
    with _Current() as kept:
        kept["launches"].append({"ranks": nproc, **facts})


def begin(script: Path, path: Path) -> None:
    """Start the evidence file ``path`` of ``script``, and make it the current one."""
    os.environ[_WHERE] = str(path)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    fresh = {"key": key(script), "date": started, "machine": machine(), "launches": [], "values": {}}
    write_json(path, fresh)


def end() -> None:
    """No script runs any more."""
    os.environ.pop(_WHERE, None)


def machine() -> dict[str, Any]:
    """The machine, as far as it can be told without torch; launches add torch, GPU and backend."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


# -- keys -------------------------------------------------------------------------------------------


def key(script: Path) -> str:
    """Hash of a script, of every project module that it imports, directly or not, and of what it runs by name.

    It runs by name the recipes whose file names, and the exercises whose names, stand in it as strings.

    ``from ddplab import launch`` counts as the module that defines ``launch``, not as the whole package.
    """
    digest = hashlib.sha256()
    for path in [script, *sorted(_imported(script) - {script})]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _imported(path: Path, seen: set[Path] | None = None) -> set[Path]:
    """Every module of the kit that the file at ``path`` imports, directly or not."""
    seen = set() if seen is None else seen
    for found in _direct_imports(path):
        if found not in seen:
            seen.add(found)
            _imported(found, seen)
    return seen


_KIT = Path(__file__).parent


def _direct_imports(path: Path) -> set[Path]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: {error.msg}") from error
    package = path.relative_to(_KIT.parent).parts[:-1] if path.is_relative_to(_KIT) else ()
    found: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "ddplab":
                    found |= set(_exports().values())
                elif alias.name.startswith("ddplab."):
                    found |= _modules(alias.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= _programs(node.value)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*start, *filter(None, [node.module])])
            if origin == "ddplab":
                found |= {_name(alias.name) for alias in node.names}
            elif origin.startswith("ddplab."):
                found |= _modules(origin, *(alias.name for alias in node.names))
    if path == _KIT / "launcher.py":
        found |= _modules("ddplab._preload")  # imported by name in the fork server
    return found - {path}


def _programs(name: str) -> set[Path]:
    """The recipe or the exercise of this name; with an exercise goes what grades it."""
    if not re.fullmatch(r"[\w-]{1,60}(\.\w{1,6})?", name):
        return set()
    recipe, exercise = _KIT.parent / "recipes" / name, _KIT.parent / "exercises" / name
    if recipe.is_file():
        return {recipe}
    return {*exercise.glob("*.py"), _KIT / "cli_grade.py"} if exercise.is_dir() else set()


def _modules(dotted: str, *names: str) -> set[Path]:
    """The files of the module ``dotted``; if it is a package, its own and those of the ``names`` that are modules."""
    base = _KIT.parent.joinpath(*dotted.split("."))
    if not base.is_dir():
        return {base.with_suffix(".py")}
    return {base / "__init__.py"} | {file for name in names if (file := base / f"{name}.py").exists()}


def _name(name: str) -> Path:
    """The module that ``from ddplab import name`` needs."""
    exports = _exports()
    if name in exports:
        return exports[name]
    (path,) = _modules(f"ddplab.{name}")
    if path.exists():
        return path
    raise ValueError(f"ddplab has no {name!r}; it exports {', '.join(sorted(exports))}")


def _exports() -> dict[str, Path]:
    tree = ast.parse((_KIT / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: _KIT / f"{node.module}.py"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


# -- the file ---------------------------------------------------------------------------------------


class _Current:
    """The current evidence file as a dictionary, written back whole on a clean exit."""

    def __enter__(self) -> dict[str, Any]:
        where = os.environ.get(_WHERE)
        self.path = Path(where) if where else None
        self.kept = json.loads(self.path.read_text()) if self.path else {"values": {}, "launches": []}
        return self.kept

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self.path:
            write_json(self.path, self.kept)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object whole, or leave the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def _plain(name: str, value: Any) -> float | int | str:
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"record: {name} must be a finite number or a string; got {value!r}")
    return value
