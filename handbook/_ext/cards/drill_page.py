"""``{drill}`` and ``{mock}``: the cards of the book as a drill and as a mock interview, in a browser.

A card is written in its chapter only. The page with the drill leaves all of them, as they are rendered for the web, in
a script beside the pages: a page that was opened from a file may load scripts and nothing else. Without scripts, in
print and in an e-book there are the lists of `question_lists`.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import parse_qsl

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import ReferenceRole, SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ..markup import close, has_folds
from ..news import nothing_read, to_write
from ..order import AllRead, Resolving
from ..problems import BuildError, suggestion, warn_at
from ..style.math_svg import glyphs_of, stored
from .card_copies import chapters, copies, interview_cards
from .card_source import LEVELS
from .register import Register

DATA = "interview-cards.js"
DRILL = "interviews/drill"
SCRIPTS = {"drill": (DATA, "room.js", "drill.js"), "mock": (DATA, "room.js", "mock.js"), "keep": ("room.js",)}


class room_element(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """An element of the room: attributes ``kind`` and ``design`` (ids); the children of a drill are all cards."""


class drill_link(nodes.Inline, nodes.TextElement):  # noqa: N801
    """A link to the drill; attribute ``asked``, as in an address."""


class RoomElement(SphinxDirective):
    """``{drill}``, ``{mock}`` or ``{keep}``: the place of an element, whose script is loaded on this page only."""

    option_spec: ClassVar[Any] = {"design": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Leave its place."""
        self.env.metadata[self.env.docname]["room"] = True
        node = room_element(kind=self.name, design=self.options.get("design", "").split())
        self.set_source_info(node)
        return [node]


class DrillLink(ReferenceRole):
    """``{cards}`four core cards <level=core&chapter=understand/idea&stop=4>` ``: the drill with that choice."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Make the link; words where there are no scripts."""
        names = self.env.found_docs
        rounds = [str(cards) for cards in range(1, 100)]
        known = {"level": LEVELS, "chapter": names, "part": {name.split("/")[0] for name in names}, "stop": rounds}
        for name, value in parse_qsl(self.target):
            if value not in known.get(name, ()):
                warn_at(self.env, f"cards {self.target!r}: there is no {name} {value!r}", self.lineno)
        return [drill_link("", self.title, asked=self.target)], []


class FillRoom(SphinxPostTransform):
    """Copy the cards to where they are asked for."""

    default_priority = Resolving.COPIES

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        for element in list(self.document.findall(room_element)):
            if not has_folds(self.app.builder):
                element.parent.remove(element)
                continue
            register = cast(Register, self.env.domains["cards"])
            known = {one.id for one in register.entries() if one.content.kind == "interview"}
            for name in element["design"]:
                if name not in known:
                    raise BuildError(f"{element.source}: there is no card {name!r}{suggestion(name, known)}")
            if element["kind"] == "drill":
                cards = interview_cards(self.env)
                element["cards"] = [one.facts for one in cards]
                element += [copy for one in cards for copy in copies([one.node], one.docname, self.env.docname)]


# -- HTML -------------------------------------------------------------------------------------------


def visit_element(self: HTML5Translator, node: nodes.Element) -> None:
    """The element, empty; the cards go to the file, and what their formulas share in front of them."""
    begin, bodies, glyphs = len(self.body), [], glyphs_of(self.builder)
    before = dict(glyphs)
    glyphs.clear()
    for child in node.children:
        child.walkabout(self)
        bodies.append("".join(self.body[begin:]))
        del self.body[begin:]
    if node.children:
        facts: list[dict[str, str]] = node["cards"]
        cards = [about | {"html": body} for about, body in zip(facts, bodies, strict=True)]
        data = json.dumps({"glyphs": stored(glyphs), "cards": cards}, ensure_ascii=False)
        folder = Path(self.builder.outdir, "_static")
        folder.mkdir(exist_ok=True)
        (folder / DATA).write_text(f"const ddpCards = {data};\n", encoding="utf-8")
    glyphs.clear()
    glyphs |= before
    design = f' design="{escape(" ".join(node["design"]))}"' if node["design"] else ""
    self.body.append(f"<ddp-{node['kind']}{design}></ddp-{node['kind']}>\n")
    raise nodes.SkipNode


def visit_link(self: HTML5Translator, node: nodes.Element) -> None:
    """A link on the web, words elsewhere."""
    if has_folds(self.builder):
        page = self.builder.get_relative_uri(self.builder.current_docname, DRILL)
        self.body.append(f'<a class="reference internal" href="{page}?{escape(node["asked"])}">')
    self.context.append("</a>" if has_folds(self.builder) else "")


def add_scripts(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only the pages of the room load its scripts and its style sheet."""
    if has_folds(app.builder) and doctree and app.env.metadata.get(pagename, {}).get("room"):
        kinds = [element["kind"] for element in doctree.findall(room_element)]
        for script in dict.fromkeys(script for kind in kinds for script in SCRIPTS[kind]):
            app.add_js_file(script, loading_method="defer")
        app.add_css_file("room.css")


def changed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The pages of the room, if a card, its chapter, or what a lab says has changed since they were written."""
    if nothing_read(env):
        return []
    aloud = {name: facts["aloud"] for name, facts in env.metadata.items() if "aloud" in facts}
    shown = (cast(Register, env.domains["cards"]).shown(), chapters(env), aloud)
    rooms = [name for name, facts in env.metadata.items() if facts.get("room")]
    return to_write(app, "cards", dict.fromkeys(rooms, shown))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, their nodes, and what fills them in."""
    app.add_node(room_element, html=(visit_element, None))
    app.add_node(drill_link, html=(visit_link, close))
    for name in SCRIPTS:
        app.add_directive(name, RoomElement)
    app.add_role("cards", DrillLink())
    app.add_post_transform(FillRoom)
    app.connect("html-page-context", add_scripts)
    app.connect("env-get-updated", changed, AllRead.NUMBERED)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
