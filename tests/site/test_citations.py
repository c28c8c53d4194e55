"""What a claim's ``:known:``, or prose with NCCL's version, cites exists: the symbol, in that file, at that version.

A citation is written ``` `symbol` in `path/from/the/package.py`, torch 2.13.0 ```; several symbols of one file are
joined by a comma or "and". Python is looked up in the installed package, without importing it, where its version is
the cited one. C++ and CUDA cannot be looked up: ``handbook/sources.toml`` lists what was read and where, and
torch's own headers are asked as well.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = tomllib.loads((ROOT / "handbook/sources.toml").read_text(encoding="utf-8"))["file"]
NATIVE = (".cpp", ".hpp", ".cc", ".cuh", ".cu", ".h")
OURS = ("gallery/", "handbook/", "tests/")

TOKEN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*\.(?:py|cpp|hpp|cc|cuh|cu|h)")
JOINED = re.compile(r"\s*(?:,|and|, and)\s*")
VERSION = re.compile(r"\b(torch|NCCL|gloo|accelerate) (\d\w*(?:\.\w+)*)")
OF_NCCL = re.compile(r"`src/[\w/]+\.\w+`, NCCL \d")


def lines():
    """(place, line) of every line of the book."""
    for page in sorted((ROOT / "handbook").rglob("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            yield f"{page.relative_to(ROOT)}:{number}", line


def known():
    """(place, text) of every ``:known:`` line of the book."""
    for place, line in lines():
        if line.startswith(":known:"):
            yield place, line.removeprefix(":known:").strip()


def prose():
    """(place, citations of NCCL with its version) of every other line that has some."""
    for place, line in lines():
        if OF_NCCL.search(line) and not line.startswith(":known:"):
            yield place, [cited for cited in citations(line)[0] if cited[2] == "NCCL"]


def citations(text):
    """[(symbols, path, project, version)] and [what is wrong with the way it is written]."""
    tokens, found, wrong, cited = list(TOKEN.finditer(text)), [], [], set()
    for number, token in enumerate(tokens):
        path = token[1]
        if not FILE.fullmatch(path):
            continue
        cited.add(number)
        symbols, place = [], number
        if place and text[tokens[place - 1].end() : token.start()] == " in ":
            while True:
                place -= 1
                symbols.insert(0, tokens[place][1])
                cited.add(place)
                gap = text[tokens[place - 1].end() : tokens[place].start()] if place else ""
                if not JOINED.fullmatch(gap) or FILE.fullmatch(tokens[place - 1][1]):
                    break
        version = VERSION.search(text, token.end())
        if path.startswith(OURS):
            found.append((symbols, path, "ours", ""))
        elif "/" not in path:
            wrong.append(f"write the path of {path} from its package's or project's top")
        elif not version:
            wrong.append(f"{path} without a version")
        else:
            found.append((symbols, path, version[1], version[2]))
    for number, token in enumerate(tokens):
        behind = VERSION.match(text[token.end() :].removeprefix(", "))
        if number not in cited and (
            "::" in token[1] or (token[1].startswith("_") and token[1].isidentifier()) or behind
        ):
            wrong.append(f"say in which file {token[1]} is")
    if "source:" in text and not found:
        wrong.append("a source without a file")
    return found, wrong


def names(tree, outer=()):
    """Qualified names of a module's functions, classes, variables and attributes."""
    for node in ast.iter_child_nodes(tree):
        inside = outer
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*outer, node.name)
            yield ".".join(inside)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
            if isinstance(target, ast.Name):
                yield ".".join((*outer, target.id))
            elif isinstance(target, ast.Attribute):  # self.name, set in a method: Class.name
                yield ".".join((*outer[:-1], target.attr))
        yield from names(node, inside)


@functools.cache
def python_file(path):
    """(source, qualified names) of a file of the repository or of an installed package."""
    if path.startswith(OURS):
        file = ROOT / path
    else:
        spec = importlib.util.find_spec(path.split("/")[0])
        file = Path(spec.origin).parents[1] / path if spec and spec.origin else None
    if file is None or not file.is_file():
        return None
    source = file.read_text(encoding="utf-8")
    return source, frozenset(names(ast.parse(source)))


def installed(project):
    try:
        return importlib.metadata.version(project).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def wrong_python(symbols, path):
    """What of these symbols a Python file lacks; an expression, such as a default argument, has to be in its text."""
    file = python_file(path)
    if file is None:
        return [f"there is no {path}"]
    source, defined = file
    wrong = []
    for symbol in symbols:
        if not re.fullmatch(r"[\w.]+", symbol):
            if symbol not in source:
                wrong.append(f"{path} has no {symbol}")
            continue
        matches = {name for name in defined if f".{name}".endswith(f".{symbol}")}
        if not matches:
            wrong.append(f"{path} has no {symbol}")
        elif len(matches) > 1:
            wrong.append(f"{path} has {symbol} more than once: {sorted(matches)[:4]}")
    return wrong


def wrong_native(symbols, path, project, version):
    """What of these C++ or CUDA symbols was not read, or is not in the header that torch installs."""
    read = [
        entry for entry in SOURCES if (entry["path"], entry["project"], entry["version"]) == (path, project, version)
    ]
    if len(read) != 1:
        return [f"sources.toml does not have {path} of {project} {version}: read it, and say there where"]
    wrong = [f"sources.toml does not have {s} in {path}: read it first" for s in symbols if s not in read[0]["symbols"]]
    header = read[0].get("header")
    if header and installed(project) == version:
        top = Path(importlib.util.find_spec(project).origin).parent
        text = (top / "include" / header).read_text(encoding="utf-8")
        bare = {symbol: symbol.split("::")[-1] for symbol in symbols}
        wrong += [f"{header} of {project} {version} has no {s}" for s, name in bare.items() if not has_word(text, name)]
    return wrong


def has_word(text, name):
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def wrong_in(text):
    """Everything that is wrong with one ``:known:`` text."""
    found, wrong = citations(text)
    for symbols, path, project, version in found:
        if not path.startswith(OURS) and path.endswith(NATIVE):
            wrong += wrong_native(symbols, path, project, version)
        elif project == "ours" or installed(project) == version:
            wrong += wrong_python(symbols, path)
    return wrong


def test_what_claims_cite_exists():
    lines = list(known())
    assert len(lines) > 250
    wrong = [f"{place}: {fault}" for place, text in lines for fault in wrong_in(text)]
    assert not wrong, "\n".join(wrong)


def test_what_prose_cites_of_nccl_was_read():
    found = [(place, cited) for place, all_cited in prose() for cited in all_cited]
    assert found
    wrong = [f"{place}: {fault}" for place, cited in found for fault in wrong_native(*cited)]
    assert not wrong, "\n".join(wrong)


def test_every_source_that_was_read_is_cited():
    found = [cited for _, text in known() for cited in citations(text)[0]]
    found += [cited for _, all_cited in prose() for cited in all_cited]
    cited = {(path, symbol) for symbols, path, *_ in found for symbol in symbols}
    listed = {(entry["path"], symbol) for entry in SOURCES for symbol in entry["symbols"]}
    assert not listed - cited, "sources.toml has what no claim cites"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("source: `Reducer::wish` in `torch/csrc/distributed/c10d/reducer.cpp`, torch 2.13.0", "does not have"),
        ("source: `runRing` in `src/device/all_reduce.h`, NCCL 9.9.9", "does not have"),
        ("source: `Reducer::wish`, torch 2.13.0", "say in which file"),
        ("source: `_wish` decides it", "say in which file"),
        ("source: `reducer.cpp`, torch 2.13.0", "write the path"),
        ("source: `_wish` in `torch/optim/adam.py`", "without a version"),
        ("source: it is so", "without a file"),
        ("source: `_wish` in `gallery/ddplab/checkpoint.py`", "has no _wish"),
    ],
)
def test_a_citation_that_is_made_up_or_half_written_fails(text, fault):
    assert any(fault in wrong for wrong in wrong_in(text))


def test_a_made_up_python_symbol_fails():
    version = installed("torch")
    if version is None:
        pytest.skip("torch is not installed")
    text = "source: `{}` in `torch/nn/parallel/distributed.py`, torch " + version
    assert wrong_in(text.format("_pre_forward")) == []
    assert wrong_in(text.format("DistributedDataParallel._pre_forward")) == []
    assert "has no _pre_wish" in wrong_in(text.format("_pre_wish"))[0]
    assert "more than once" in wrong_in(text.format("__init__"))[0]
    assert "there is no" in wrong_in(text.replace("distributed.py", "wish.py").format("_pre_forward"))[0]
