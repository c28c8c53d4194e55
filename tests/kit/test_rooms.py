"""The house: which room may import which, and where private names and patches of libraries stand. Read, not run."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tools import ROOT

KIT, BOOK = "gallery/ddplab", "handbook/_ext"
# From the ground up. A room imports from its own level and from those below it; rooms of one level form no circle.
LEVELS = {
    KIT: [
        {"errors", "files", "wording"},
        {"runtime", ""},  # "": the package itself, which gives scripts `launch` and `record`
        {"model", "buckets", "costmodel", "checkpoint", "diagnose", "flight", "trace", "scratch"},
        {"apparatus", "grading", "recording", "cli", "__main__"},
    ],
    BOOK: [
        {"order"},
        {"", "problems", "markup", "news"},
        {"evidence"},
        {"embed"},
        {"building", "style"},
        {"cards", "explorers", "navigation"},
        {"search", "print", "decks"},
    ],
}
# Where private names of torch may stand (each path is a file or what begins so), and why.
TORCH_PRIVATE = {
    "gallery/ddplab/runtime/torch_private.py": "the one place for them",
    "gallery/ddplab/runtime/preload.py": "imports torch._dynamo early, which the first DDP would import",
    "gallery/ddplab/model/tuning": "imports it early, too, so that no measured step does",
    "tests/claims/test_buffers.py": "a claim about what is left out of DDP, which has no public name",
    "tests/claims/test_on_a_gpu.py": "counts the operators that read a value",
    "tests/kit/test_flight.py": "a short timeout for ranks that have met already",
    "tests/kit/test_postmortem.py": "reads the timeout of a group",
    "tests/simulated/sitecustomize.py": "a torch with GPUs that are not there",
}
# Where the kit and the extensions change a library, and how that is guarded.
PATCHES = {
    "gallery/ddplab/runtime/torch_private.py": "torch, each with the versions in which it was seen",
    "gallery/ddplab/grading/": "torch and multiprocessing while a learner's program runs, to see what it calls",
    "handbook/_ext/building/patches.py": "Sphinx, pydyf and WeasyPrint, each checked by `expect`",
    "handbook/_ext/building/build_steps.py": "Sphinx, each checked by `expect`",
    "handbook/_ext/style/math_svg.py": "the documented settings of ziafont",
}
STANDARD = {"sys", "os", "warnings", "tempfile", "signal"}  # their attributes are there to be set


@dataclass(frozen=True)
class Import:
    """What a file imports: the dotted module, the name in it (or none), and the name that it has in the file."""

    line: int
    module: str
    name: str
    alias: str

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def package(path: Path) -> list[str]:
    """The dotted place of a file of the kit or of the extensions; of another file its stem."""
    for root, name in ((KIT, "ddplab"), (BOOK, "_ext")):
        if path.is_relative_to(ROOT / root):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            return [name, *parts[: -1 if parts[-1] == "__init__" else None]]
    return [path.stem]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(path: Path) -> list[Import]:
    """Every import of a file, also those inside of functions, with relative ones spelled out."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    here = package(path) if path.name == "__init__.py" else package(path)[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for one in node.names:
                module = one.name if one.asname else one.name.partition(".")[0]
                yield Import(node.lineno, module, "", one.asname or module)
                if module != one.name:
                    yield Import(node.lineno, one.name, "", "")
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for one in node.names:
                yield Import(node.lineno, module, one.name, one.asname or one.name)


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as its names; empty for what is not a chain of names."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


@cache
def aliases(path: Path) -> dict[str, str]:
    """What each imported name of a file stands for."""
    return {one.alias: one.dotted for one in imports(path) if one.alias}


def spelled(path: Path, node: ast.expr) -> str:
    """A chain of names whose first one is imported, with the module in its place; else empty."""
    names = dotted(node)
    return ".".join([aliases(path)[names[0]], *names[1:]]) if names and names[0] in aliases(path) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_", "_ext")


def files(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if "editions" not in path.parts]
    assert found
    return found


def unexpected(found: dict[str, list[str]], allowed: dict[str, str]) -> list[str]:
    """What is found elsewhere than allowed, and what is allowed but not found."""
    wrong = [f"{path}:{use}" for path, uses in found.items() if not path.startswith(tuple(allowed)) for use in uses]
    return wrong + [f"{start}: no longer so" for start in allowed if not any(path.startswith(start) for path in found)]


def room(module: str) -> str:
    """``ddplab.runtime.rank`` is in the room ``runtime``; the package itself is the room ''."""
    return [*module.split("."), ""][1]


def level(root: str, name: str) -> int:
    found = [place for place, rooms in enumerate(LEVELS[root]) if name in rooms]
    assert found, f"{root}/{name} is new: say in LEVELS where it stands"
    return found[0]


def own_imports(root: str) -> Iterator[tuple[Path, Import, str, str]]:
    """Each import of one of our modules by another: the file, the import, and the two modules."""
    known = {".".join(package(path)) for path in files(f"{root}/**/*.py")}
    for path in files(f"{root}/**/*.py"):
        for one in imports(path):
            target = one.dotted if one.dotted in known else one.module
            if target in known and target != ".".join(package(path)):
                yield path, one, ".".join(package(path)), target


@pytest.mark.parametrize("root", LEVELS)
def test_rooms_lean_on_those_below_them(root):
    wrong = [
        f"{path.relative_to(ROOT)}:{one.line}: {room(here) or 'the package'} imports {target}"
        for path, one, here, target in own_imports(root)
        if level(root, room(here)) < level(root, room(target))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("root", LEVELS)
@pytest.mark.parametrize("of", ["modules", "rooms"])
def test_there_is_no_circle(root, of):
    leads: dict[str, set[str]] = {}
    for _, _, here, target in own_imports(root):
        a, b = (here, target) if of == "modules" else (room(here), room(target))
        if a != b:
            leads.setdefault(a, set()).add(b)
            leads.setdefault(b, set())
    while free := {name for name, to in leads.items() if not to & leads.keys()}:
        leads = {name: to for name, to in leads.items() if name not in free}
    assert not leads, {name: to & leads.keys() for name, to in leads.items()}


def test_no_module_name_stands_twice():
    """Beside the names that Python, pytest and Sphinx give."""
    stems = [path.stem for path in files(f"{KIT}/**/*.py", f"{BOOK}/**/*.py", "tests/**/*.py")]
    given = ("__init__", "__main__", "conftest", "conf")
    assert [name for name, count in Counter(stems).items() if count > 1 and name not in given] == []


def test_no_private_name_crosses_files():
    wrong = []
    for path in files("gallery/**/*.py", f"{BOOK}/**/*.py"):
        for one in imports(path):
            if one.dotted.split(".")[0] in ("ddplab", "_ext") and any(map(is_private, one.dotted.split("."))):
                wrong.append(f"{path.relative_to(ROOT)}:{one.line}: {one.dotted}")
        for node in ast.walk(tree(path)):
            name = spelled(path, node) if isinstance(node, ast.Attribute) else ""
            if name.startswith(("ddplab.", "_ext.")) and any(map(is_private, name.split("."))):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not wrong, "\n".join(wrong)


def test_private_names_of_torch_stand_in_one_file():
    found: dict[str, list[str]] = {}
    for path in files("gallery/**/*.py", f"{BOOK}/**/*.py", "tests/**/*.py"):
        names = [(one.line, one.dotted) for one in imports(path)]
        names += [
            (node.lineno, spelled(path, node)) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)
        ]
        for line, name in names:
            if name.startswith("torch") and any(map(is_private, name.split("."))):
                found.setdefault(path.relative_to(ROOT).as_posix(), []).append(f"{line}: {name}")
    assert not unexpected(found, TORCH_PRIVATE)


def test_patches_of_libraries_stand_in_one_file():
    found: dict[str, list[str]] = {}
    for path in files(f"{KIT}/**/*.py", f"{BOOK}/**/*.py"):
        for node in ast.walk(tree(path)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in [spelled(path, target) for target in targets if isinstance(target, ast.Attribute)]:
                if name and name.split(".")[0] not in {"ddplab", "_ext", *STANDARD}:
                    found.setdefault(path.relative_to(ROOT).as_posix(), []).append(f"{node.lineno}: {name}")
    assert not unexpected(found, PATCHES)


def test_the_order_of_a_build_is_named():
    """Numbers that say what comes first stand in ``order``, with the reason."""
    wrong = []
    for path in files(f"{BOOK}/**/*.py"):
        for node in ast.walk(tree(path)):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = [one.value for one in node.keywords if one.arg == "priority"]
                given += node.args[2:] if node.func.attr == "connect" else []
            elif isinstance(node, ast.Assign) and any("priority" in ast.unparse(one) for one in node.targets):
                given = [node.value]
            if any(isinstance(part, ast.Constant) for one in given for part in ast.walk(one)):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_a_script_and_a_style_name_their_python_and_it_names_them():
    """Each says at its head with which files it works, and each of these names it."""
    wrong = []
    for path in files("handbook/_static/*.css", "handbook/_static/*.js", "slides/_static/*.*"):
        said = re.search(r"\bWith ([\w./, -]+?)\.(?: \*/)?\n", path.read_text(encoding="utf-8")[:600])
        named = said[1].split(", ") if said else [f"{path.name}: its head has no line 'With …'"]
        for name in named:
            there = [one for one in (path.parent / name, ROOT / "handbook" / name, ROOT / name) if one.is_file()]
            if not there or path.stem not in there[0].read_text(encoding="utf-8"):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)
