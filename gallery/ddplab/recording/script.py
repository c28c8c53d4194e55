"""A lab's script: the blocks that sphinx-gallery makes of it, and running them as sphinx-gallery would.

Running needs no Sphinx, so that an edition can be recorded with the kit and what the labs import.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runtime.needs import NotShownHere

_SEPARATOR = re.compile(r"(?:^#{20,}.*|^# ?%%.*)\s(?:^#.*\s?)*", re.MULTILINE)  # with the prose below it
_COLOR = re.compile(r"\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")


@dataclass(frozen=True)
class Block:
    """Code between two pieces of prose."""

    code: str
    line: int  # of the script, at which it starts


@dataclass
class Outcome:
    """What running a script gave."""

    blocks: list[dict[str, Any]] = field(default_factory=list)  # per block: "printed" (lines) and "figures", if any
    failed: str = ""  # traceback of the block that raised
    needs: str = ""  # why it cannot be shown here


def lab_id(script: Path) -> str:
    """``plot_05_bucket_xray.py`` is the lab ``bucket-xray``."""
    return re.sub(r"^plot_(\d+_)?", "", script.stem).replace("_", "-")


def code_blocks(source: str) -> list[Block]:
    """The code blocks of a script, split where sphinx-gallery splits it.

    Raises:
        SyntaxError: the source is not Python.
        ValueError: it has no docstring, which is the lab's title and introduction.
    """
    first = next(iter(ast.parse(source).body), None)
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        raise ValueError("a lab starts with a docstring: its title, and the question that it answers")
    lines = source.split("\n")
    rest, offset = "\n".join(lines[first.end_lineno :]), first.end_lineno or 0
    blocks, position = [], 0
    for end, start in [*(match.span() for match in _SEPARATOR.finditer(rest)), (len(rest), len(rest))]:
        code = rest[position:end]
        if code.strip():
            blocks.append(Block(code, offset + rest[:position].count("\n") + 1))
        position = start
    return blocks


def run(script: Path, save: Callable[[Any, int], str]) -> Outcome:
    """Run a script block by block in a module of its own, as ``__main__``, in the script's folder.

    What it changes of the process (environment, working directory, ``sys.path``, ``sys.argv``) is put back.

    Args:
        script: the lab.
        save: takes a matplotlib figure and its number in the script, from 1; returns the name of its file.
    """
    outcome, figures = Outcome(), 0
    with _as_main(script) as module:
        for block in code_blocks(script.read_text(encoding="utf-8")):
            printed = io.StringIO()
            kept: dict[str, Any] = {}
            outcome.blocks.append(kept)
            try:
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    # Empty lines above it, so that a traceback has the lines of the script.
                    exec(compile("\n" * (block.line - 1) + block.code, str(script), "exec", dont_inherit=True), module)
            except NotShownHere as reason:
                outcome.needs = str(reason)
            except BaseException as error:  # a lab that exits has failed, too
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome.failed = _own_traceback(error)
            if lines := _plain(printed.getvalue()):
                kept["printed"] = lines
            for figure in _open_figures():
                figures += 1
                kept.setdefault("figures", []).append({"file": save(figure, figures), "alt": _titles(figure)})
            if outcome.failed or outcome.needs:
                break
    return outcome


@contextlib.contextmanager
def _as_main(script: Path) -> Iterator[dict[str, Any]]:
    """The namespace of a fresh ``__main__`` module; afterwards the process is as it was before."""
    spec = importlib.util.spec_from_loader("__main__", None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.copy(), Path.cwd(), sys.path[:], sys.argv[:], sys.modules["__main__"]
    gc.collect()
    _reset_figures()
    try:
        sys.modules["__main__"] = module
        sys.argv[:] = [str(script)]
        sys.path.append(str(script.parent))
        os.chdir(script.parent)
        with warnings.catch_warnings():
            yield module.__dict__
    finally:
        environment, folder, sys.path[:], sys.argv[:], sys.modules["__main__"] = before
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        _reset_figures()


def _own_traceback(error: BaseException) -> str:
    """The traceback without the frame of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _plain(text: str) -> list[str]:
    """The lines that a terminal would show, without colors, trailing space, and blank lines around them."""
    plain = "\n".join(line.rstrip() for line in _COLOR.sub("", text.expandtabs()).splitlines())
    return plain.strip("\n").splitlines()


# -- figures ----------------------------------------------------------------------------------------


def _reset_figures() -> None:
    """Close all figures and forget settings, if a lab has used matplotlib."""
    if "matplotlib.pyplot" in sys.modules:
        plt = sys.modules["matplotlib.pyplot"]
        plt.close("all")
        plt.rcdefaults()


def _open_figures() -> Iterator[Any]:
    """Every open figure, closed when it has been used."""
    plt = sys.modules.get("matplotlib.pyplot")
    for number in plt.get_fignums() if plt else ():
        figure = plt.figure(number)  # type: ignore[union-attr]
        yield figure
        plt.close(figure)  # type: ignore[union-attr]


def _titles(figure: Any) -> str:
    """What a figure shows, for those who listen to the page: its title and those of its axes."""
    titles = [axes.get_title(loc=side) for axes in figure.axes for side in ("left", "center", "right")]
    return ", ".join(filter(None, [figure.get_suptitle(), *titles]))


def small_svg(svg: str) -> str:
    """An SVG of matplotlib without what only its program needs: metadata, comments, blanks, digits beyond 1/100 pt."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    # Only in tags: between them stand the labels.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    return re.sub(r">\s+<", "><", svg).strip() + "\n"
