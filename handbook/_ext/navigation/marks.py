"""Boxes to tick: a chapter, a lab, an exercise or a step of a plan is complete. ``progress.js`` keeps them.

A page that is marked as a whole has its box behind its text. Exercises get theirs here; a step is written
``{mark}`8 minutes <name>` ``. ``{progress}`` says on the front page how much is ticked.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import ReferenceRole, SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ..markup import has_folds

SCRIPT = "progress.js"
_SET = re.compile(r".*-exercises")  # the label of a section whose list has an exercise in each item
_ONE = re.compile(r"exercise-.*|setup-exercise")  # the label of a section that is an exercise


class mark(nodes.Inline, nodes.TextElement):  # noqa: N801  docutils names nodes so
    """A box; attributes ``name`` (what is ticked), ``label`` (what is read)."""


class progress(nodes.General, nodes.Element):  # noqa: N801
    """The place where it is said how much is ticked."""


class MarkRole(ReferenceRole):
    """A box for a step of a plan."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Make it; its name counts on this page."""
        return [mark(name=f"{self.env.docname}#{self.target}", label=self.title, classes=["mark-step"])], []


class Progress(SphinxDirective):
    """Takes no argument."""

    def run(self) -> list[nodes.Node]:
        """Leave its place."""
        return [progress()]


def add_to_exercises(app: Sphinx, document: nodes.document) -> None:
    """A box at the end of each exercise of a practice page."""
    docname = app.env.docname
    if not docname.endswith("/practice"):
        return
    names: list[str] = []
    for section in document.findall(nodes.section):
        for label in section["ids"]:
            if _ONE.fullmatch(label):
                names.append(f"{docname}#{label}")
                section += _box(names[-1])
                break
            if _SET.fullmatch(label):
                lists = [child for child in section.children if isinstance(child, nodes.enumerated_list)]
                items = [item for one in lists for item in one.findall(nodes.list_item)]
                for number, item in enumerate(items, 1):
                    names.append(f"{docname}#{label}-{number}")
                    item += _box(names[-1])
                break
    app.env.metadata[docname]["marks"] = names


def _box(name: str) -> nodes.paragraph:
    tick = mark(name=name, label="Mark as complete")
    return nodes.paragraph("", "", tick, classes=["mark-exercise", "no-print"])


def is_marked(app: Sphinx, docname: str) -> bool:
    """Whether a page is marked as a whole: a chapter or a lab."""
    if "/plot_" in docname:
        return "waiting" not in app.env.metadata[docname]  # a lab that no edition has run
    return bool(re.fullmatch(app.config.reading_time_documents, docname))


def visit_mark(self: HTML5Translator, node: nodes.Element) -> None:
    """A box with its label on the web, the words of a step elsewhere."""
    if has_folds(self.builder):
        self.body.append(box(node["name"], node["label"], *node["classes"]))
    elif "mark-step" in node["classes"]:
        self.body.append(f"<strong>{escape(node['label'])}</strong>")
    raise nodes.SkipNode


def box(name: str, label: str, *classes: str) -> str:
    """The box as HTML."""
    named = " ".join(["mark", *classes])
    return f'<label class="{named}"><input type="checkbox" data-mark="{name}"> <span>{escape(label)}</span></label>'


def visit_progress(self: HTML5Translator, node: nodes.Element) -> None:
    """What there is to tick, for the script to count."""
    env = self.builder.env
    marked = [name for name in env.found_docs if is_marked(self.builder.app, name)]
    labs = sum(name.startswith("labs/") for name in marked)
    exercises = sum(len(facts.get("marks", ())) for facts in env.metadata.values())
    if has_folds(self.builder):
        self.body.append(
            f'<p class="progress" data-chapters="{len(marked) - labs}" data-labs="{labs}" '
            f'data-exercises="{exercises}">What you mark as complete at the end of a page shows here.</p>\n'
        )
    raise nodes.SkipNode


def add_box(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """The box of a whole page, for ``_templates/page.html``."""
    if app.builder.name == "html":
        context["mark"] = box(pagename, "Mark as complete") if doctree and is_marked(app, pagename) else ""


def add_script(app: Sphinx) -> None:
    """An EPUB keeps nothing."""
    if app.builder.name == "html":
        app.add_js_file(SCRIPT, loading_method="defer")
        app.add_css_file("marks.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the role, the directive and their nodes."""
    app.add_node(mark, html=(visit_mark, None))
    app.add_node(progress, html=(visit_progress, None))
    app.add_role("mark", MarkRole())
    app.add_directive("progress", Progress)
    app.connect("doctree-read", add_to_exercises)
    app.connect("builder-inited", add_script)
    app.connect("html-page-context", add_box)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
