"""What code an outcome depends on: the definitions that a file reaches, through imports, in the files of this project.

A module counts by definitions: what nothing reaches of it, such as one more function, is not part of any key. What runs
as it is imported always is, and so is a definition that a decorator of our own may register. Where a name is looked up
as the program runs (``import_module``, a module that is passed on), the whole module or package counts.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from ..runtime.evidence import write_json
from .script import code_blocks
from .words import code_lines, code_of, first_line, parse

KIT = Path(__file__).parents[1]
ALL, IMPORTED = "*", ""  # names of what is no definition: all of a file, and what runs as it is imported
# What may be the name of a file or an exercise, or a lab as a claim's test names it.
_NAME = re.compile(r"[\w-]{1,60}(\.\w{1,6})?|[a-z_]+/plot_\w+\.py")
CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|time\.time)\b|\bruntime\.clock\b")
_DOTTED = re.compile(r"(?:ddplab|_ext)(?:\.\w+)+\.?")  # a module that a string names, or the start of some names
_DYNAMIC = {"import_module", "__import__", "globals"}
# Decorators that register nothing: what they decorate is reached by its name, or not at all.
_PLAIN = {"cache", "lru_cache", "cached_property", "wraps", "contextmanager", "dataclass", "fixture", "mark", "proves"}
_PLAIN |= {"overload", "total_ordering", "no_grad", "static_graph", "hookimpl", "runtime_checkable"}


@dataclass
class Part:
    """A definition of a file, or what runs as the file is imported."""

    code: str = ""  # without comments and docstrings
    text: str = ""  # a hash of it as it stands
    uses: list[str] = field(default_factory=list)  # names, with the attributes that are taken of them: "gpus.cards"
    imports: dict[str, list[str]] = field(default_factory=dict)  # of its own: name -> module, and name in it
    runs: list[str] = field(default_factory=list)  # modules that are imported as it runs
    strings: list[str] = field(default_factory=list)


@dataclass
class Source:
    """What keys need of one Python file."""

    stamp: list[int]  # time and size of the file
    parts: dict[str, Part]
    always: list[str]  # parts that count whenever the file is imported
    clock: bool  # whether its code names a clock
    blocks: str = ""  # of a lab, its code block by block: where one ends is part of it, because each has its own output


Node = tuple[Path, str]
P = ParamSpec("P")
R = TypeVar("R")
_sources: dict[str, Source] = {}
_memory: dict[tuple[Any, ...], Any] | None = None  # None: each file is asked each time whether it has changed


def load_cache(file: Path) -> None:
    """Start with what an earlier process has parsed and kept in ``file``; a file of another kind is ignored."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["by"] == _own_stamp():
            for path, source in kept["sources"].items():
                parts = {name: Part(**part) for name, part in source.pop("parts").items()}
                _sources[path] = Source(parts=parts, **source)
    except (OSError, ValueError, TypeError, KeyError):
        return


def save_cache(file: Path) -> None:
    """Keep what was parsed for the next process."""
    sources = {
        path: {**vars(source), "parts": {name: vars(part) for name, part in source.parts.items()}}
        for path, source in _sources.items()
    }
    write_json(file, {"by": _own_stamp(), "sources": sources})


def _own_stamp() -> list[int]:
    return [stamp(Path(__file__).with_name(name))[0] for name in ("reach.py", "words.py")]


def stamp(path: Path) -> tuple[int, int]:
    """Time and size of a file.

    Raises:
        ValueError: there is none.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    return status.st_mtime_ns, status.st_size


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Inside of the block no file changes, so that each is looked at once."""
    global _memory
    _memory = {}
    try:
        yield
    finally:
        _memory = None


def once(function: Callable[P, R]) -> Callable[P, R]:
    """Remember what a function returned until the end of a block of :func:`unchanged`; outside of one, call it."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if _memory is None:
            return function(*args, **kwargs)
        place = (function, *args)
        if place not in _memory:
            _memory[place] = function(*args, **kwargs)
        return cast(R, _memory[place])

    return called


@once
def source(path: Path) -> Source:
    """What a file defines; it is parsed once, until it changes.

    Raises:
        ValueError: it is missing or not Python; the message names file and line.
    """
    now, known = [*stamp(path)], _sources.get(str(path))
    if known is None or known.stamp != now:
        if known is not None:
            _edges.cache_clear()
            _module.cache_clear()
            _outside.cache_clear()
        known = _sources[str(path)] = _read(path, now)
    return known


def reached(starts: Iterable[Node]) -> dict[Node, Part]:
    """Every part that these definitions reach, themselves included, by file and name.

    Args:
        starts: files with the name of a definition, or with `ALL` or `IMPORTED`.

    Raises:
        ValueError: a file is not Python, or imports what the kit does not have; the message names it.
    """
    found: dict[Node, Part] = {}
    waiting = [*starts]
    seen = set(waiting)
    while waiting:
        path, name = waiting.pop()
        part = source(path).parts.get(name)
        if part is not None:
            found[path, name] = part
        new = _edges(path, name) - seen
        seen |= new
        waiting += new
    return found


def outside(parts: dict[Node, Part]) -> set[str]:
    """The modules of others that these definitions use, by the first of their names."""
    return set().union(*(_outside(path, name) for path, name in parts))


@functools.cache
def _outside(path: Path, name: str) -> set[str]:
    parts = source(path).parts
    known = parts[IMPORTED].imports | parts[name].imports
    modules = {known[first][0] for used in parts[name].uses if (first := used.partition(".")[0]) in known}
    return {dotted.partition(".")[0] for dotted in modules if dotted[0] != "." and module(path, dotted) is None}


def imported(path: Path) -> set[Path]:
    """The modules of the project that the Python file at ``path`` itself imports."""
    parts = source(path).parts.values()
    names = {(*target, "")[0] for part in parts for target in part.imports.values()}
    names |= {target[1] and f"{target[0]}.{target[1]}" for part in parts for target in part.imports.values()}
    return {file for name in names for file in [module(path, name)] if file} - {path}


# -- one file ---------------------------------------------------------------------------------------


def _read(path: Path, now: list[int]) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = parse(text, path)
    bare, rows = code_lines(text, tree), text.split("\n")
    parts = {IMPORTED: Part()}
    always = set()
    for node in tree.body:
        names = _defined(node) or [IMPORTED]
        if _only_for_types(node) or isinstance(node, ast.Import | ast.ImportFrom):
            for one in ast.walk(node):
                _add_import(parts[IMPORTED], one, runs=one is node)
            continue
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = first_line(node) - 1
        for name in names:
            part = parts.setdefault(name, Part())
            part.code += "".join(f"{line}\n" for line in bare[first : node.end_lineno] if line is not None)
            whole = part.text + "\n".join(rows[first : node.end_lineno])
            part.text = hashlib.sha256(whole.encode()).hexdigest()[:16]
            _Uses(part, fixtures=path.name.startswith(("test_", "conftest"))).visit(node)
        if any(_may_register(one) for one in decorators):
            always |= {*names}
    known = parts[IMPORTED].imports
    for part in parts.values():  # what a name stands for is part of the code that says it
        said = {used.partition(".")[0] for used in part.uses}
        part.code += "".join(f"{name}={known[name]}\n" for name in sorted(said & known.keys()))
        part.uses, part.runs, part.strings = (sorted({*one}) for one in (part.uses, part.runs, part.strings))
    clock = any(CLOCK.search(part.code) for part in parts.values())
    return Source(now, parts, sorted(always), clock, _blocks(path, text) if path.name.startswith("plot_") else "")


def _blocks(path: Path, text: str) -> str:
    try:
        return "\f".join(code_of(block.code, path) for block in code_blocks(text))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines, if that is all that it does."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    ids = [name.id for name in names if isinstance(name, ast.Name)]
    return ids if len(ids) == len(names) else []


def _only_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _may_register(decorator: ast.expr) -> bool:
    called = ast.unparse(decorator)
    return "autouse=True" in called or not _PLAIN & set(re.findall(r"\w+", called.partition("(")[0]))


def _add_import(part: Part, node: ast.AST, runs: bool) -> None:
    """Note what an import binds; and, if it ``runs`` with the part, which modules it imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            part.imports[bound] = [alias.name if alias.asname else bound, ""]
            part.runs += [alias.name] * runs
    elif isinstance(node, ast.ImportFrom):
        dotted = "." * node.level + (node.module or "")
        for alias in node.names:
            part.imports[alias.asname or alias.name] = [dotted, alias.name]
            part.runs += [dotted, f"{dotted}{'' if dotted.endswith('.') else '.'}{alias.name}"] * runs


class _Uses(ast.NodeVisitor):
    """Adds to a part what a statement uses; annotations are for readers and type checkers."""

    def __init__(self, part: Part, fixtures: bool) -> None:
        self.part, self.fixtures = part, fixtures

    def visit_Name(self, node: ast.Name) -> None:
        self.part.uses.append(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        steps, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            steps, inner = [inner.attr, *steps], inner.value
        if isinstance(inner, ast.Name):
            self.part.uses.append(".".join([inner.id, *steps]))
        else:
            self.visit(inner)

    def visit_arguments(self, node: ast.arguments) -> None:
        if self.fixtures:
            self.part.uses += [one.arg for one in (*node.posonlyargs, *node.args, *node.kwonlyargs)]
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for one in (*node.decorator_list, node.args, *node.body):
            self.visit(one)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Import(self, node: ast.Import) -> None:
        _add_import(self.part, node, runs=True)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        _add_import(self.part, node, runs=True)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (_NAME.fullmatch(node.value) or _DOTTED.search(node.value)):
            self.part.strings.append(node.value)


# -- from one definition to the next ----------------------------------------------------------------


@functools.cache
def _edges(path: Path, name: str) -> set[Node]:
    """What one definition needs: others of its file, those that it imports, and what runs as they are imported."""
    here = source(path)
    if name == ALL:
        return {(path, one) for one in here.parts} | {(path, IMPORTED)}
    part = here.parts.get(name, Part())
    found = {(path, IMPORTED), *((path, one) for one in here.always)}
    for used in part.uses:
        found |= _resolve(path, used, part)
    for dotted, bound in part.imports.values():  # also where nothing uses it, there must be such a name
        if dotted == "ddplab" and bound:
            _follow(path, [dotted, bound], [])
    for dotted in part.runs:
        found |= {(file, IMPORTED) for file in _way(path, dotted)}
    for text in part.strings:
        found |= _by_string(text)
    if _DYNAMIC & {used.rpartition(".")[2] for used in part.uses}:
        found |= {(file, ALL) for file in (path.parent.rglob("*.py") if path.is_relative_to(KIT) else [path])}
    return found - {(path, name)}


def _resolve(path: Path, used: str, part: Part | None = None) -> set[Node]:
    """Where ``name.attribute…`` of a file is defined."""
    first, *rest = used.split(".")
    here = source(path)
    if part is not None and first in part.imports:
        return _follow(path, part.imports[first], rest)
    if first in here.parts:
        return {(path, first)}
    if first in here.parts[IMPORTED].imports:
        return _follow(path, here.parts[IMPORTED].imports[first], rest)
    return set()


def _follow(path: Path, target: list[str], rest: list[str]) -> set[Node]:
    """What an import of a file leads to, and the attributes that are taken of it."""
    dotted, name = target
    file = module(path, dotted)
    if file is None:
        return set()
    steps = [name, *rest] if name else rest
    while steps and file.name == "__init__.py" and (inner := _inside(file.parent, steps[0])):
        file, steps = inner, steps[1:]
    if not steps:
        return {(file, ALL)}
    if file == KIT / "__init__.py":
        exports = _exports()
        if steps[0] in exports:
            file = exports[steps[0]]
        elif name:
            raise ValueError(f"{path}: ddplab has no {steps[0]!r}; it exports {', '.join(sorted(exports))}")
    there = source(file)
    if steps[0] in there.parts:
        return {(file, steps[0])}
    if steps[0] in there.parts[IMPORTED].imports:
        return {(file, IMPORTED)} | _follow(file, there.parts[IMPORTED].imports[steps[0]], steps[1:])
    return {(file, ALL)}  # looked up in another way


def _by_string(text: str) -> set[Node]:
    """The modules of the project that a string names: "_ext.cards.register", or all that start with "_ext.cards."."""
    found: set[Node] = set()
    for dotted in _DOTTED.findall(text):
        root = (KIT.parent if dotted.startswith("ddplab") else KIT.parents[1] / "handbook").joinpath(*dotted.split("."))
        if dotted.endswith("."):
            found |= {(file, ALL) for file in root.rglob("*.py")}
        elif file := _file(root):
            found.add((file, ALL))
    return found


def module(path: Path, dotted: str) -> Path | None:
    """The file of the project that ``import dotted`` finds in a file; None: it is somebody else's."""
    return _module(KIT, path.parent, dotted)


@functools.cache
def _module(kit: Path, folder: Path, dotted: str) -> Path | None:
    level = len(dotted) - len(dotted.lstrip("."))
    names = dotted[level:].split(".") if dotted[level:] else []
    if level:
        return _file([folder, *folder.parents][level - 1].joinpath(*names))
    if not names:
        return None
    project = kit.parents[1]
    folders = [kit.parent, project / "handbook", folder]
    if folder.is_relative_to(project / "tests"):
        folders.append(project / "tests")
    return next((file for one in folders if (file := _file(one.joinpath(*names)))), None)


def _way(path: Path, dotted: str) -> Iterator[Path]:
    """The files that run as a module is imported: those of its packages, and its own."""
    file = module(path, dotted)
    if file is None:
        return
    yield file
    folder = file.parent if file.name != "__init__.py" else file.parent.parent
    while (folder / "__init__.py").is_file():
        yield folder / "__init__.py"
        folder = folder.parent


def _file(base: Path) -> Path | None:
    return _known_files(base.parent).get(base.name)


def _inside(folder: Path, name: str) -> Path | None:
    return _known_files(folder).get(name)


def _known_files(folder: Path) -> dict[str, Path]:
    """The modules and packages in a folder, by their names."""
    try:
        return _listing(folder, folder.stat().st_mtime_ns)
    except OSError:
        return {}


@functools.cache
def _listing(folder: Path, _modified: int) -> dict[str, Path]:
    found = {path.stem: path for path in folder.glob("*.py")}
    return found | {path.parent.name: path for path in folder.glob("*/__init__.py")}


def _exports() -> dict[str, Path]:
    """Where what ``from ddplab import name`` gives is defined."""
    kit = KIT / "__init__.py"
    imports = source(kit).parts[IMPORTED].imports
    return {name: file for name, (dotted, _) in imports.items() if (file := module(kit, dotted))}
