"""``{code-diff} old.py new.py``: what changed from one program to the next, taken from the files as they are.

Paths are relative to the page. Docstring and imports on top are left out: the page says what they say.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from ..problems import warn_at

CONTEXT_LINES = 2  # unchanged lines shown around a change


def changes(old: str, new: str) -> list[str]:
    """The lines of a unified diff without its headers; ``⋯`` stands where unchanged lines are left out."""
    diff = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=CONTEXT_LINES, lineterm=""))[2:]
    lines = ["⋯" if line.startswith("@@") else line.rstrip() for line in diff]
    return lines[1:] if lines[:1] == ["⋯"] and diff[0].startswith("@@ -1,") else lines


def without_preamble(source: str) -> str:
    """A module's source from its first statement that is neither a docstring nor an import.

    Raises:
        SyntaxError: it is not Python.
    """
    for node in ast.parse(source).body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not text and not isinstance(node, ast.Import | ast.ImportFrom):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            return "\n".join(source.splitlines()[first - 1 :])
    return ""


class CodeDiff(SphinxDirective):
    """Show how the second file differs from the first."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Make the block; a file that cannot be read is reported and the block left out."""
        texts = []
        for argument in self.arguments:
            _, path = self.env.relfn2path(argument)
            self.env.note_dependency(path)
            try:
                texts.append(without_preamble(Path(path).read_text("utf-8")))
            except (OSError, UnicodeDecodeError, SyntaxError) as error:
                warn_at(self.env, f"{self.name}: {argument} cannot be compared: {error}", self.lineno)
                return []
        lines = changes(*texts)
        if not lines:
            warn_at(self.env, f"{self.name}: {' and '.join(self.arguments)} do not differ; remove it", self.lineno)
            return []
        block = nodes.literal_block("\n".join(lines), "\n".join(lines), language="diff", classes=["code-diff"])
        self.set_source_info(block)
        old, new = (nodes.literal(text=Path(argument).name) for argument in self.arguments)
        below = nodes.paragraph("", "", nodes.Text("from "), old, nodes.Text(" to "), new, classes=["stamp"])
        return [nodes.container("", block, below, classes=["lab-code"])]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("code-diff", CodeDiff)
    return {"version": "1", "parallel_read_safe": True}
