"""``{deck-card} id``: a card of a chapter as two slides of a deck, with the deeper answer as speaker notes."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ..cards.card_source import Card, Passage
from ..cards.cards import LABELS, cards_of_the_book, reasons
from ..markup import close, inline
from ..problems import suggestion, warn_at


class speaker_notes(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """What the speaker sees. The node of sphinx-revealjs would lose paragraphs, lists and code."""


class DeckCard(SphinxDirective):
    """Two sections: the question (with the options of a quiz), then the answer."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Find the card in the chapters and make its slides."""
        name = self.arguments[0]
        cards = cards_of_the_book()
        if name not in cards:
            warn_at(self.env, f"there is no card {name!r}{suggestion(name, cards)}", self.lineno)
            return []
        source = cards[name]
        self.env.note_dependency(source.path)
        title = nodes.title(source.question, "", *self._inline(source.question))
        question = nodes.section("", title, ids=[f"card-{name}"], classes=["deck-question"])
        answer = nodes.section("", nodes.title("", "Answer"), ids=[f"card-{name}-answer"], classes=["deck-answer"])
        if source.options:
            question += self._options(source, only_right=False)
            answer += self._options(source, only_right=True)
            why = source.parts["why"]
            answer += self._parsed(Passage(why.text.strip().splitlines()[0], why.line))  # its first sentence
        else:
            answer += self._parsed(source.parts["answer"])
        notes = speaker_notes()
        for part, text in (("weak", source.weak), ("flags", " ".join(source.flags))):
            if text:  # small and run in: they share a page of the handout with the answer
                label = nodes.strong("", f"{LABELS[part]}: ")
                notes += nodes.paragraph("", "", label, *self._inline(" ".join(text.split())), classes=["deck-aside"])
        for part in ("why", "depth", "follow-ups"):
            if part in source.parts:
                notes += nodes.paragraph("", "", nodes.strong("", "Why" if part == "why" else LABELS[part]))
                notes += self._parsed(source.parts[part])
        if source.options:
            notes += nodes.paragraph("", "", *reasons(source, self._inline), classes=["deck-aside"])
        if notes.children:
            answer += notes
        return [question, answer]

    def _options(self, source: Card, only_right: bool) -> nodes.Element:
        listed = nodes.enumerated_list(enumtype="upperalpha", classes=["deck-options"])
        for place, option in enumerate(source.options, 1):
            if option.right or not only_right:
                if only_right and not len(listed):
                    listed["start"] = place  # so that the answer has its letter
                listed += nodes.list_item("", nodes.paragraph("", "", *self._inline(option.text)))
        return listed

    def _inline(self, text: str) -> list[nodes.Node]:
        return _without_links(nodes.inline("", "", *inline(self, text)))

    def _parsed(self, passage: Passage) -> list[nodes.Node]:
        return _without_links(nodes.container("", *self.parse_text_to_nodes(passage.text)))


def _without_links(holder: nodes.Element) -> list[nodes.Node]:
    """Children, with the text of links into the book in place of the links: a deck is a project of its own."""
    for link in list(holder.findall(nodes.Element)):
        into_book = isinstance(link, addnodes.pending_xref) and (link["refexplicit"] or link["reftype"] == "term")
        if (into_book or link.get("id_link")) and link.children:  # without a text of its own it would say nothing
            link.replace_self(link.children)
    return list(holder.children)


def visit_notes(self: HTML5Translator, node: nodes.Element) -> None:
    """The element in which reveal.js looks for notes."""
    self.body.append('<aside class="notes">\n')
    self.context.append("</aside>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and its node."""
    app.add_directive("deck-card", DeckCard)
    app.add_node(speaker_notes, html=(visit_notes, close))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
