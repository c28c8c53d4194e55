"""Code that only draws a figure: a closed fold on the web, one line with the path of the script elsewhere.

A block of a lab is such code if its first line is the comment ``# drawing``, with a blank line above it: right below
prose the comment would be prose. What the block drew is shown as always.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from ..markup import close, has_folds

MARK = "# drawing"


class drawing_code(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """Holds the block of code; attribute ``path``, the script that it is from."""


def fold(block: nodes.literal_block, path: str) -> nodes.Element:
    """The node to put outputs below: the block itself, or, if it is marked, the fold that now holds it."""
    first, _, code = block.astext().partition("\n")
    if first.strip() != MARK:
        return block
    folded = drawing_code("", path=path)
    block.replace_self(folded)
    folded += nodes.literal_block(code, code, **block.attributes)
    return folded


def visit(self: HTML5Translator, node: drawing_code) -> None:
    """The code in a fold, or only where it is."""
    if not has_folds(self.builder):
        self.body.append(f'<p class="drawing-code">Drawing code: <code>{escape(node["path"])}</code></p>\n')
        raise nodes.SkipNode
    self.body.append('<details class="drawing-code"><summary>Drawing code</summary>\n')
    self.context.append("</details>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the node."""
    app.add_node(drawing_code, html=(visit, close))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
