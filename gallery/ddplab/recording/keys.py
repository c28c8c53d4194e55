"""Keys: a hash of the code and data that an outcome depends on, so that a recording is known to be of what stands here.

Comments, docstrings, prose and blank lines are not part of a key, nor is the Python that reads the file.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..runtime import shared_gpu
from ..runtime.evidence import write_json
from .script import code_blocks

KIT = Path(__file__).parents[1]
# What may be the name of a file or an exercise, or a lab as a claim's test names it.
_NAME = re.compile(r"[\w-]{1,60}(\.\w{1,6})?|[a-z_]+/plot_\w+\.py")
_ENDINGS_TIMED = re.compile(r"\breport\((?![^()]*timed=False)")  # how ranks ended, with the seconds of each
_CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|time\.time)\b|\bruntime\.clock\b")


def lab_key(script: Path, read: Iterable[str] = ()) -> str:
    """The key of a lab: its code block by block, every project file that it depends on, and the files it has ``read``.

    Args:
        script: the lab.
        read: data files that were seen to be read, relative to the repository.

    Raises:
        ValueError: a file is not Python, or imports what the kit does not have; the message names file and line.
    """
    return _digest(_source(script).blocks, script, read)


def claim_key(path: Path, name: str, read: Iterable[str] = ()) -> str:
    """The key of the test function ``name`` in the file ``path``; as for labs, with the helpers that it uses."""
    functions = _source(path).functions
    if name not in functions:
        functions[name] = _hash(code_of(function_with_helpers(path, name), path))
    return _digest(functions[name], path, read)


def names_a_clock(path: Path, code: str = "", *, imports: bool = True) -> bool:
    """Whether a lab, or the ``code`` of a test in the file ``path``, names a clock, or a lab that the code runs does.

    A lab that reports when its ranks ended does, too.

    Args:
        path: the lab, or the file of the test.
        code: of the test, with its helpers.
        imports: whether what is imported counts, each module as a whole.
    """
    files = {KIT.parent / name for name in re.findall(r"[a-z_]+/plot_\w+\.py", code)} if code else {path}
    read = files | ({module for file in (path, *files) for module in imported(file)} if imports else set())
    if not code and _ENDINGS_TIMED.search(path.read_text(encoding="utf-8")):
        return True
    return bool(_CLOCK.search(code)) or any(_source(file).clock for file in read)


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
    return _hash("".join(_source(path).code for path in sorted(KIT.rglob("*.py"))))


def _digest(code: str, path: Path, read: Iterable[str]) -> str:
    digest = hashlib.sha256(code.encode())
    root = KIT.parents[1]
    files = {*_dependencies(path), *(root / name for name in read)} - {path}
    for file in sorted(files):
        digest.update(f"\0{file.name}\0".encode())
        if file.suffix == ".py":
            digest.update(_source(file).code.encode())
        elif file.exists():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- code without words -----------------------------------------------------------------------------


def code_of(text: str, path: Path | str = "?") -> str:
    """Python source without comments, docstrings, and blank lines outside of strings.

    Cut out of the text by position, not printed from the tree, so that every Python gives the same.
    """
    tree = _tree(text, path)
    lines = text.split("\n")
    strings = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)) or isinstance(node, ast.JoinedStr)
    ]
    literal = {id(node) for node in strings}
    in_string: set[int] = set()  # lines whose end is inside of a string
    covered: dict[int, list[tuple[int, int]]] = {}  # the columns of a line that are a string, in bytes
    for node in strings:
        last = node.end_lineno or node.lineno
        in_string.update(range(node.lineno, last))
        for row in range(node.lineno, last + 1):
            start = node.col_offset if row == node.lineno else 0
            end = (node.end_col_offset or 0) if row == last else len(lines[row - 1].encode())
            covered.setdefault(row, []).append((start, end))
    for row, line in enumerate(lines, 1):
        if "#" in line:
            lines[row - 1] = _without_comment(line, covered.get(row, []))
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and scope.body:
            first = scope.body[0]
            if isinstance(first, ast.Expr) and id(first.value) in literal and _alone(first, lines):
                for row in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    lines[row - 1] = ""
                    in_string.discard(row)
    kept = [line if row in in_string else line.rstrip() for row, line in enumerate(lines, 1)]
    return "\n".join(line for row, line in enumerate(kept, 1) if line or row in in_string)


def _without_comment(line: str, strings: list[tuple[int, int]]) -> str:
    """The line up to the first ``#`` that is not in a string."""
    raw = line.encode()
    at = raw.find(b"#")
    while at >= 0 and any(start <= at < end for start, end in strings):
        at = raw.find(b"#", at + 1)
    return line if at < 0 else raw[:at].decode()


def _alone(node: ast.Expr, lines: list[str]) -> bool:
    """Whether nothing else stands on the lines of a docstring."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :]
    return not before.strip() and not after.strip()


def function_with_helpers(path: Path, name: str) -> str:
    """The source of a function after all that it uses of its file, fixtures included; imports are left out.

    Raises:
        ValueError: the file is not Python, or defines no such function.
    """
    text, defined = _parsed(path, _stamp(path))
    if name not in defined:
        raise ValueError(f"{path}: there is no function {name!r}")
    target = defined[name]
    used: list[ast.stmt] = [target]
    for node in used:  # grows while it is walked
        names = [found for part in ast.walk(node) if (found := _name_of(part)) in defined]
        used += [helper for name in dict.fromkeys(names) if (helper := defined[name]) not in used]
    used += [node for node in defined.values() if node not in used and _is_autouse(node)]
    helpers = sorted((node for node in used if node is not target), key=lambda node: node.lineno)
    return "\n\n".join(statement_source(node, text) for node in [*helpers, target])


@functools.cache
def _parsed(path: Path, _stamp: tuple[int, int]) -> tuple[str, dict[str, ast.stmt]]:
    """The text of a file, and its top-level functions, classes and variables."""
    text = path.read_text(encoding="utf-8")
    defined: dict[str, ast.stmt] = {}
    for node in _tree(text, path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            defined |= {part.id: node for part in targets if isinstance(part.ctx, ast.Store)}
    return text, defined


def _tree(text: str, path: Path | str) -> ast.Module:
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: {error.msg}") from error


def statement_source(node: ast.stmt, source: str) -> str:
    """The source of a statement, with its decorators: `ast.get_source_segment` leaves them out."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return textwrap.dedent("\n".join(source.splitlines()[first - 1 : node.end_lineno]))


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""


def _is_autouse(node: ast.stmt) -> bool:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return any("autouse=True" in ast.unparse(decorator) for decorator in decorators)


# -- what a file depends on -------------------------------------------------------------------------


@dataclass
class _Source:
    """What keys need of one Python file."""

    stamp: list[int]  # time and size of the file
    code: str  # hash of all its code
    blocks: str  # hash of the blocks of a lab: where one ends is part of it, because each has its own output
    functions: dict[str, str]  # hashes of functions with their helpers, as far as they were asked for
    imports: list[str]  # modules of the project
    names: list[str]  # strings that may name a data file, a recipe or an exercise
    clock: bool  # whether its code names a clock


_sources: dict[str, _Source] = {}


def load_cache(file: Path) -> None:
    """Start with what an earlier process has parsed and kept in ``file``; a file of another kind is ignored."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["by"] == _stamp(Path(__file__))[0]:
            _sources.update((path, _Source(**source)) for path, source in kept["sources"].items())
    except (OSError, ValueError, TypeError, KeyError):
        return


def save_cache(file: Path) -> None:
    """Keep what was parsed for the next process."""
    sources = {path: vars(source) for path, source in _sources.items()}
    write_json(file, {"by": _stamp(Path(__file__))[0], "sources": sources})


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    return status.st_mtime_ns, status.st_size


def _source(path: Path) -> _Source:
    """A file is parsed once, until it changes."""
    stamp, known = [*_stamp(path)], _sources.get(str(path))
    if known is None or known.stamp != stamp:
        known = _sources[str(path)] = _read_source(path, stamp)
    return known


def _read_source(path: Path, stamp: list[int]) -> _Source:
    text = path.read_text(encoding="utf-8")
    tree, blocks = _tree(text, path), ""
    if path.name.startswith("plot_"):
        try:
            blocks = _hash("\f".join(code_of(block.code, path) for block in code_blocks(text)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    names = {name for name in strings if isinstance(name, str) and _NAME.fullmatch(name)}
    imports = {str(file) for file in _imports(path, tree) - {path}}
    code = code_of(text, path)
    return _Source(stamp, _hash(code), blocks, {}, sorted(imports), sorted(names), bool(_CLOCK.search(code)))


def imported(path: Path) -> list[Path]:
    """The modules of the project that the Python file at ``path`` itself imports."""
    return [Path(name) for name in _source(path).imports]


def _dependencies(path: Path) -> set[Path]:
    """Every project file that the Python file at ``path`` depends on, directly or not."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        source = _source(one)
        for file in {*map(Path, source.imports), *_named(one, frozenset(source.names))} - found:
            found.add(file)
            if file.suffix == ".py":
                waiting.append(file)
    return found


def _imports(path: Path, tree: ast.Module) -> set[Path]:
    package = path.relative_to(KIT.parent).parts[:-1] if path.is_relative_to(KIT) else ()
    found: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "ddplab":
                    found |= set(_exports().values())
                elif alias.name.startswith("ddplab."):
                    found |= _modules(alias.name)
                else:
                    found |= _of_tests(path, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*start, *filter(None, [node.module])])
            if origin == "ddplab":
                found |= {_exported(alias.name, path) for alias in node.names}
            elif origin.startswith("ddplab."):
                found |= _modules(origin, *(alias.name for alias in node.names))
            else:
                found |= _of_tests(path, origin)
    if path == KIT / "runtime" / "forkserver.py":
        found |= _modules("ddplab.runtime.preload")  # imported by name in the fork server
    return found


def _named(path: Path, names: frozenset[str]) -> set[Path]:
    """The files that strings name: data beside the file, a lab, a recipe, or an exercise with all that grades it."""
    recipes, exercises = KIT.parent / "recipes", KIT.parent / "exercises"
    found = {recipes / name for name in names & _files(recipes)}
    found |= {KIT.parent / name for name in names if "/plot_" in name}
    for name in names & _folders(exercises):
        found |= {*(exercises / name).glob("*.py"), KIT / "cli" / "grade.py"}
    found |= {path.parent / name for name in names & _files(path.parent) if not name.endswith(".py")}
    if path.is_relative_to(KIT):
        for folder in (path.parent / name for name in names & _folders(path.parent)):
            if not any(folder.glob("*.py")):
                found |= {file for file in folder.rglob("*") if file.is_file()}
    return found


def _files(folder: Path) -> frozenset[str]:
    return _listing(folder, folder.stat().st_mtime_ns)[0] if folder.is_dir() else frozenset()


def _folders(folder: Path) -> frozenset[str]:
    return _listing(folder, folder.stat().st_mtime_ns)[1] if folder.is_dir() else frozenset()


@functools.cache
def _listing(folder: Path, _modified: int) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the files in a folder, and those of its folders."""
    entries = [(entry.name, entry.is_dir()) for entry in os.scandir(folder)]
    return frozenset(n for n, is_folder in entries if not is_folder), frozenset(
        n for n, is_folder in entries if is_folder
    )


def _of_tests(path: Path, module: str) -> set[Path]:
    """The helper of tests that a test imports: a module beside it or in ``tests/``."""
    tests = KIT.parents[1] / "tests"
    if not path.is_relative_to(tests):
        return set()
    name = module.replace(".", "/") + ".py"
    return {file for folder in (path.parent, tests) if (file := folder / name).is_file()}


def _modules(dotted: str, *names: str) -> set[Path]:
    """The files of the module ``dotted``; if it is a package, its own and those of the ``names`` that are modules."""
    base = KIT.parent.joinpath(*dotted.split("."))
    if not base.is_dir():
        return {base.with_suffix(".py")}
    return {base / "__init__.py"} | {file for name in names if (file := base / f"{name}.py").exists()}


def _exported(name: str, path: Path) -> Path:
    """The module that ``from ddplab import name`` needs; not the whole package."""
    exports = _exports()
    if name in exports:
        return exports[name]
    module, package = KIT / f"{name}.py", KIT / name / "__init__.py"
    if module.exists() or package.exists():
        return module if module.exists() else package
    raise ValueError(f"{path}: ddplab has no {name!r}; it exports {', '.join(sorted(exports))}")


def _exports() -> dict[str, Path]:
    return _read_exports(KIT, _stamp(KIT / "__init__.py"))


@functools.cache
def _read_exports(kit: Path, _stamp: tuple[int, int]) -> dict[str, Path]:
    tree = ast.parse((kit / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: kit.joinpath(*node.module.split(".")).with_suffix(".py")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    }
