"""The builder ``anki``: every card, quiz and error entry of the book as a flashcard, in one package for Anki.

They lie in a deck below the book's for each level of the interview cards, for quizzes, and for error messages, so that
a reader takes up as many as there is time for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils import new_document
from sphinx.application import Sphinx
from sphinx.util import logging

from ..building.whole_book import WholeBookBuilder
from ..explorers.error_index import error_entry
from .card_page import card, card_part
from .card_source import LEVELS, Card

if TYPE_CHECKING:
    import genanki

logger = logging.getLogger(__name__)

FILE = "ddp-handbook.apkg"
# Numbers that Anki knows a deck and the form of its notes by; another number would be another deck.
_MODEL = 1_752_034_812
_DECKS = dict(zip((*LEVELS, "quiz", "errors"), range(1_752_034_813, 1_752_034_818), strict=True))
_CSS = """
.card { font: 19px/1.5 Charter, Georgia, serif; max-width: 38em; margin: 1em auto; padding: 0 1em; text-align: left; }
.card-level, .card-label, .source { font: 13px system-ui, sans-serif; opacity: 0.75; }
.card-level::before { content: "· "; }
code, pre { font-family: ui-monospace, Menlo, monospace; font-size: 0.85em; }
pre { overflow-x: auto; }
"""
_PICTURE = re.compile(r'src="(?:\.\./)*_images/([^"]+)"')


def _is_card(node: nodes.Node) -> bool:
    return isinstance(node, card | error_entry)


class AnkiBuilder(WholeBookBuilder):
    """Renders cards as HTML does, and keeps nothing else of a page."""

    name = "anki"
    epilog = "The flashcards are in %(outdir)s/" + FILE

    def init(self) -> None:
        """Start without notes."""
        import genanki  # here, as no other form needs it, and it takes a while

        super().init()
        self.notes: dict[str, list[genanki.Note]] = {name: [] for name in _DECKS}
        self.model = genanki.Model(
            _MODEL,
            "The DDP Handbook",
            fields=[{"name": name} for name in ("Id", "Question", "Answer", "Source")],
            templates=[
                {
                    "name": "Card",
                    "qfmt": "{{Question}}",
                    "afmt": '{{FrontSide}}<hr id="answer">{{Answer}}<p class="source">{{Source}}</p>',
                }
            ],
            css=_CSS,
        )

    def write_documents(self, docnames: Set[str]) -> None:
        """Of the documents that have cards."""
        super().write_documents({name for name in docnames if any(self.env.get_doctree(name).findall(_is_card))})

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """Collect the cards of a document."""
        self.start_page(docname, doctree)
        for reference in list(doctree.findall(nodes.reference)):
            if "://" not in reference.get("refuri", ""):  # leads nowhere in Anki
                reference.replace_self(nodes.inline("", "", *reference.children))
        for node in doctree.findall(card):
            source: Card = node["source_card"]
            deck = "quiz" if source.kind == "quiz" else source.level
            self.notes[deck].append(self._card_note(node, source, docname))
        for entry in doctree.findall(error_entry):
            self.notes["errors"].append(self._error_note(entry, docname))

    def finish(self) -> None:
        """Write the package; no page, index or style sheet."""
        import genanki

        decks = [genanki.Deck(number, f"The DDP Handbook::{name}") for name, number in _DECKS.items()]
        for deck, made in zip(decks, self.notes.values(), strict=True):
            deck.notes = sorted(made, key=lambda note: str(note.fields[0]))
        notes = [note for deck in decks for note in deck.notes]
        package = genanki.Package(decks)
        used = {name for note in notes for field in note.fields for name in re.findall(r'src="([^"/]+)"', field)}
        package.media_files = [str(self.srcdir / path) for path, name in self.images.items() if name in used]
        package.write_to_file(str(self.outdir / FILE))
        logger.info("%d flashcards", len(notes))

    def _card_note(self, node: card, source: Card, docname: str) -> genanki.Note:
        shown = [child for child in node if not (isinstance(child, card_part) and child["part"] == "evidence")]
        parts = [child for child in shown if isinstance(child, card_part)]
        question = "".join(self._html(child) for child in shown if child not in parts)
        return self._note(source.id, question, parts, docname, source.kind, *([source.level] if source.level else []))

    def _error_note(self, node: error_entry, docname: str) -> genanki.Note:
        message, *answer = node.children
        question = self._html(message) + "<p>A log says this. What has happened, and what do you do?</p>"
        return self._note(f"error-{node['entry_id']}", question, answer, docname, "error")

    def _note(self, name: str, question: str, answer: Sequence[nodes.Node], docname: str, *tags: str) -> genanki.Note:
        import genanki

        return genanki.Note(
            model=self.model,
            fields=[name, question, "".join(map(self._html, answer)), self.env.titles[docname].astext()],
            guid=genanki.guid_for("ddp-handbook", name),
            tags=[docname, *tags],
        )

    def _html(self, node: nodes.Node) -> str:
        """One part, as HTML that stands alone."""
        page = new_document("card", self.docsettings)
        page += node.deepcopy()
        return _PICTURE.sub(r'src="\1"', self.render(page))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder."""
    app.add_builder(AnkiBuilder)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
