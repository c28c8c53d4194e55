"""``{step-explorer}`` and ``{ring-stepper}``: elements that move in a browser, and figures everywhere else.

Each stands in a numbered figure; the content of the directive is its caption. Where no script runs, the drawing
of `step_drawing` or `ring_drawing` is what the figure shows: it is part of the page, and made while the book is built.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ddplab import buckets, costmodel

from ..cards.card_page import folds
from ..problems import complain
from . import explorer_examples, ring_drawing, step_drawing, svg_pieces
from .explorer_examples import EXAMPLES, page_data

_PAPER = ("epub", "bookpdf", "anki")  # no style sheet of ours reaches their drawings
_RANKS = (2, 5)  # more would not fit a static figure


class explorer(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """Takes the place of a figure's image; attributes ``kind``, ``options``, ``data`` (JSON or empty), ``svg``."""


class _Explorer(SphinxDirective):
    """Common to both: a figure with a caption."""

    has_content = True

    def figure(self, node: explorer) -> list[nodes.Node]:
        """A figure node, so that it is numbered and can be referred to."""
        for module in (buckets, costmodel, explorer_examples, ring_drawing, step_drawing, svg_pieces):
            self.env.note_dependency(str(module.__file__))
        said = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, said)
        if not said.children or not isinstance(said[0], nodes.paragraph):
            complain(self.env, f"{self.name}: say in a paragraph what to see; it becomes the caption", self.lineno)
            return []
        figure = nodes.figure("", node, classes=["explorer-figure"])
        self.set_source_info(figure)
        figure += nodes.caption(said[0].rawsource, "", *said[0].children)
        if len(said) > 1:
            figure += nodes.legend("", *said.children[1:])
        self.add_name(figure)
        return [figure]


class StepExplorer(_Explorer):
    """A step of DDP by the cost model, with sliders."""

    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {
        "example": directives.unchanged_required,
        "name": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Make the figure; an example that is not there is reported."""
        name = self.options.get("example", next(iter(EXAMPLES)))
        if name not in EXAMPLES:
            complain(self.env, f"{self.name}: there is no example {name!r}, but {', '.join(EXAMPLES)}", self.lineno)
            return []
        data = json.dumps(page_data(), ensure_ascii=False).replace("<", "\\u003c")
        svg = step_drawing.step_figure(EXAMPLES[name])
        return self.figure(explorer(kind="step-explorer", options=f'example="{name}"', data=data, svg=svg))


class RingStepper(_Explorer):
    """A ring all-reduce, step by step."""

    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {
        "ranks": directives.nonnegative_int,
        "name": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Make the figure; a number of ranks that cannot be drawn is reported."""
        ranks, (least, most) = self.options.get("ranks", 4), _RANKS
        if not least <= ranks <= most:
            complain(self.env, f"{self.name}: ranks must be {least} to {most}; got {ranks}", self.lineno)
            return []
        return self.figure(
            explorer(kind="ring-stepper", options=f'ranks="{ranks}"', data="", svg=ring_drawing.ring_figure(ranks))
        )


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """The element around the drawing in a browser, the drawing alone elsewhere."""
    svg = svg_pieces.recolored(node["svg"], adaptive=self.builder.name not in _PAPER)
    drawing = f'<div class="explorer-instead"><div class="figure-svg">{svg}</div></div>'
    if folds(self.builder):
        data = f'<script type="application/json">{node["data"]}</script>' if node["data"] else ""
        drawing = f"<ddp-{node['kind']} {node['options']}>{data}{drawing}</ddp-{node['kind']}>"
    self.body.append(drawing + "\n")
    raise nodes.SkipNode


def add_scripts(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only a page that has an explorer loads its script, and the style sheet of both."""
    kinds = {node["kind"] for node in doctree.findall(explorer)} if doctree and folds(app.builder) else set()
    for kind in sorted(kinds):
        app.add_js_file(f"{kind}.js", loading_method="defer")
    if kinds:
        app.add_css_file("explorers.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and their node."""
    app.add_node(explorer, html=(visit, None))
    app.add_directive("step-explorer", StepExplorer)
    app.add_directive("ring-stepper", RingStepper)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
