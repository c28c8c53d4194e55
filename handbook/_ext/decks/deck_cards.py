"""``{deck-card} id`` and ``{deck-cards}``: cards of the chapters as slides of a deck.

Each card is two slides: the question, then the answer, with what lies behind it as speaker notes.
"""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from typing import Any, ClassVar, cast

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ..cards.card_copies import kept_chapters
from ..cards.card_source import LEVELS, Card, Passage
from ..cards.cards import LABELS, cards_of_the_book, reasons
from ..markup import close, inline
from ..problems import BuildError, suggestion, warn_at

Chapters = dict[str, tuple[str, str]]  # of each card the document and the title of the chapter that it asks about


class speaker_notes(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """What the speaker sees. The node of sphinx-revealjs would lose paragraphs, lists and code."""


class DeckCard(SphinxDirective):
    """Two sections: the question (with the options of a quiz), then the answer."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Find the card in the chapters and make its slides."""
        return self.slides([self.arguments[0]], chapters_of_cards())

    def slides(self, names: list[str], chapters: Chapters) -> list[nodes.Node]:
        """The slides of these cards; an id that no card has is reported and left out."""
        cards, made = cards_of_the_book(), list[nodes.Node]()
        for name in names:
            if name in cards:
                made += self._slides_of(cards[name], chapters[name][1])
            else:
                warn_at(self.env, f"there is no card {name!r}{suggestion(name, cards)}", self.lineno)
        return made

    def _slides_of(self, source: Card, chapter: str) -> list[nodes.Node]:
        self.env.note_dependency(source.path)
        name, asked = f"card-{source.id}", self._inline(source.question)
        again = [nodes.inline("", "Answer: ", classes=["deck-label"]), *(node.deepcopy() for node in asked)]
        question = nodes.section("", nodes.title(source.question, "", *asked), ids=[name], classes=["deck-question"])
        answer = nodes.section("", nodes.title("", "", *again), ids=[f"{name}-answer"], classes=["deck-answer"])
        question += nodes.paragraph("", " · ".join(filter(None, [chapter, source.level])), classes=["deck-from"])
        if source.options:
            question += self._options(source, answered=False)
            answer += self._options(source, answered=True)
            why = source.parts["why"]
            answer += self._parsed(Passage(why.text.strip().splitlines()[0], why.line))  # its first sentence
        else:
            answer += self._parsed(source.parts["answer"])
        notes = speaker_notes()
        for part, text in (("weak", source.weak), ("flags", " ".join(source.flags))):
            if text:  # small and run in
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

    def _options(self, source: Card, answered: bool) -> nodes.Element:
        listed = nodes.enumerated_list(enumtype="upperalpha", classes=["deck-options"])
        for option in source.options:
            kind = ["deck-right" if option.right else "deck-wrong"] if answered else []
            listed += nodes.list_item("", nodes.paragraph("", "", *self._inline(option.text)), classes=kind)
        return listed

    def _inline(self, text: str) -> list[nodes.Node]:
        return _without_links(nodes.inline("", "", *inline(self, text)))

    def _parsed(self, passage: Passage) -> list[nodes.Node]:
        return _without_links(nodes.container("", *self.parse_text_to_nodes(passage.text)))


class DeckCards(DeckCard):
    """Interview cards by part, chapter and level, or cards by their ids."""

    required_arguments = 0
    option_spec: ClassVar[Any] = {
        **dict.fromkeys(("part", "chapter", "level", "ids"), directives.unchanged_required),
        "count": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        """Choose the cards and make their slides; a choice that finds none is reported."""
        chapters = chapters_of_cards()
        self.env.note_dependency(kept_chapters())  # a new card can be one that is asked for
        asked = {option: text.split() for option, text in self.options.items() if option != "count"}
        if "ids" in asked:
            if len(self.options) > 1:
                warn_at(self.env, "deck-cards: with :ids: no other option chooses; remove one of them", self.lineno)
            return self.slides(asked["ids"], chapters)
        interview = {name: card for name, card in cards_of_the_book().items() if card.kind == "interview"}
        known = {
            "part": dict.fromkeys(chapters[name][0].partition("/")[0] for name in interview),
            "chapter": dict.fromkeys(chapters[name][0] for name in interview),
            "level": dict.fromkeys(LEVELS),
        }
        for option, names in asked.items():
            for name in names:
                if name not in known[option]:
                    said = f"deck-cards: no interview card has the {option} {name!r}"
                    warn_at(self.env, said + suggestion(name, known[option]), self.lineno)
        found = [
            interview[name]
            for name, (chapter, _) in chapters.items()
            if name in interview
            and chapter in asked.get("chapter", [chapter])
            and chapter.partition("/")[0] in asked.get("part", [chapter.partition("/")[0]])
            and interview[name].level in asked.get("level", LEVELS)
        ]
        count = self.options.get("count", len(found))
        if count > len(found) or not found:
            warn_at(self.env, f"deck-cards: {count} cards are asked for, and there are {len(found)}", self.lineno)
        return self.slides(_spread(found, count, chapters), chapters)


def _spread(cards: list[Card], count: int, chapters: Chapters) -> list[str]:
    """The ids of ``count`` cards, of each chapter in turn; those with a weak answer first: they are asked often."""
    rows: dict[str, list[str]] = {}
    for card in sorted(cards, key=lambda card: not card.weak):
        rows.setdefault(chapters[card.id][0], []).append(card.id)
    turns = chain.from_iterable(zip_longest(*rows.values()))
    taken = set([name for name in turns if name][:count])
    return [card.id for card in cards if card.id in taken]


def chapters_of_cards() -> Chapters:
    """Of each card the chapter that it asks about, as the last build of the book found it, in reading order.

    Raises:
        BuildError: the book has not been built.
    """
    try:
        return cast(Chapters, json.loads(kept_chapters().read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise BuildError(f"the cards of the book are not in {kept_chapters()}; run: make html") from None


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
    """Register the directives and their node."""
    app.add_directive("deck-card", DeckCard)
    app.add_directive("deck-cards", DeckCards)
    app.add_node(speaker_notes, html=(visit_notes, close))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
