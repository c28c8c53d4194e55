"""``{step-explorer}``, ``{ring-stepper}``, ``{interval-calculator}``: they move in a browser only.

Each stands in a numbered figure; the content of the directive is its caption. Where no script runs, the figure shows
a drawing (`step_drawing`, `ring_drawing`, `interval_drawing`), which is part of the page and made during the build.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ddplab.model import assignment, interval, link, step

from ..embed.figures import follow_page
from ..markup import captioned, has_folds
from ..problems import suggestion, warn_at
from .explorer_examples import EXAMPLES, page_data
from .interval_drawing import Job, interval_figure
from .ring_drawing import ring_figure
from .step_drawing import step_figure

_WITHOUT_STYLES = ("epub", "bookpdf", "anki")  # no style sheet of ours reaches their drawings
_RANKS = (2, 5)  # more would not fit a static figure


class explorer(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """Takes the place of a figure's image; attributes ``kind``, ``options``, ``data`` (JSON or empty), ``svg``."""


class Explorer(SphinxDirective):
    """Common to all: a figure with a caption. A subclass makes the node, or raises ValueError for wrong options."""

    has_content = True

    @abstractmethod
    def draw(self) -> explorer:
        """The node that the options ask for."""

    def run(self) -> list[nodes.Node]:
        """Make the figure; one that cannot be drawn is reported and left out."""
        for module in (assignment, interval, link, step):
            self.env.note_dependency(str(module.__file__))
        try:
            if not self.content:
                raise ValueError("write below it what to see; it becomes the caption")
            return [captioned(self, self.draw(), ["explorer-figure"])]
        except ValueError as error:
            warn_at(self.env, f"{self.name}: {error}", self.lineno)
            return []


class StepExplorer(Explorer):
    """A step of DDP by the cost model, with sliders."""

    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {
        "example": directives.unchanged_required,
        "name": directives.unchanged,
    }

    def draw(self) -> explorer:
        """The example that is named, or the first."""
        name = self.options.get("example", next(iter(EXAMPLES)))
        if name not in EXAMPLES:
            raise ValueError(f"there is no example {name!r}{suggestion(name, EXAMPLES)}")
        data = json.dumps(page_data(), ensure_ascii=False).replace("<", "\\u003c")
        return explorer(kind=self.name, options=f'example="{name}"', data=data, svg=step_figure(EXAMPLES[name]))


class RingStepper(Explorer):
    """A ring all-reduce, step by step."""

    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {
        "ranks": directives.nonnegative_int,
        "name": directives.unchanged,
    }

    def draw(self) -> explorer:
        """A ring of as many ranks as can be drawn."""
        ranks, (least, most) = self.options.get("ranks", 4), _RANKS
        if not least <= ranks <= most:
            raise ValueError(f"ranks must be {least} to {most}; got {ranks}")
        return explorer(kind=self.name, options=f'ranks="{ranks}"', data="", svg=ring_figure(ranks))


def _number(argument: str) -> float:
    value = float(argument)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"must be a number, 0 or more; got {argument!r}")
    return value


class IntervalCalculator(Explorer):
    """How often a job saves best, with fields; the options are what they hold at first."""

    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {
        **{name.replace("_", "-"): _number for name in asdict(Job())},
        "name": directives.unchanged,
    }

    def draw(self) -> explorer:
        """The job that the options describe."""
        job = Job(**{name.replace("-", "_"): value for name, value in self.options.items() if name != "name"})
        if not all(value > 0 for name, value in asdict(job).items() if name != "restart_s"):
            raise ValueError(f"all but restart-s must be more than 0; got {job}")
        options = " ".join(f'{name.replace("_", "-")}="{value:g}"' for name, value in asdict(job).items())
        return explorer(kind=self.name, options=options, data="", svg=interval_figure(job))


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """The element around the drawing in a browser, the drawing alone elsewhere."""
    svg = node["svg"] if self.builder.name in _WITHOUT_STYLES else follow_page(node["svg"])
    drawing = f'<div class="explorer-instead"><div class="figure-svg">{svg}</div></div>'
    if has_folds(self.builder):
        data = f'<script type="application/json">{node["data"]}</script>' if node["data"] else ""
        drawing = f"<ddp-{node['kind']} {node['options']}>{data}{drawing}</ddp-{node['kind']}>"
    self.body.append(drawing + "\n")
    raise nodes.SkipNode


def add_scripts(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only a page that has an explorer loads its script, and the style sheet of all."""
    kinds = {node["kind"] for node in doctree.findall(explorer)} if doctree and has_folds(app.builder) else set()
    for kind in sorted(kinds):
        app.add_js_file(f"{kind}.js", loading_method="defer")
    if kinds:
        app.add_css_file("explorers.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and their node."""
    app.add_node(explorer, html=(visit, None))
    for name, directive in (
        ("step-explorer", StepExplorer),
        ("ring-stepper", RingStepper),
        ("interval-calculator", IntervalCalculator),
    ):
        app.add_directive(name, directive)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
