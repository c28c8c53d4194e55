"""Decks: the builder ``revealjs`` as this book uses it, and ``{notes}`` for what the speaker says.

Code is coloured while the deck is built, sections keep their ids and classes, every slide names the edition below it,
and each deck also becomes two PDFs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator
from sphinx_revealjs.builders import RevealjsHTMLBuilder
from sphinx_revealjs.writers import RevealjsSlideTranslator

from ..print.weasy import load_weasyprint, prepare_styles, side_by_side
from ..problems import expect
from . import deck_pdf, deck_sizes
from .deck_cards import speaker_notes


class Notes(SphinxDirective):
    """Speaker notes of the slide that they stand in."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Paragraphs, lists and code are kept."""
        self.assert_has_content()
        notes = speaker_notes()
        self.state.nested_parse(self.content, self.content_offset, notes)
        return [notes]


class DeckTranslator(RevealjsSlideTranslator):  # type: ignore[misc]
    """Sections become slides; everything in them is written as for the web pages."""

    visit_literal_block = HTML5Translator.visit_literal_block
    depart_literal_block = HTML5Translator.depart_literal_block

    def visit_section(self, node: nodes.Element) -> None:
        """Give the slide its id and classes; ``deck-title`` is the first, a ``deck-part`` has nothing but a title."""
        super().visit_section(node)
        if self.section_level >= 4:
            return
        own = [child for child in node.children if not isinstance(child, nodes.section | nodes.target | nodes.comment)]
        first = node is next(self.document.findall(nodes.section))
        bare = all(isinstance(child, nodes.title | speaker_notes) for child in own)
        kinds = ["deck-title"] if first else ["deck-part"] if bare and "deck-question" not in node["classes"] else []
        classes = escape(" ".join([*node["classes"], *kinds]), quote=True)
        style = f' style="{node["style"]}"' if "style" in node else ""
        tag = f'<section id="{escape(node["ids"][0], quote=True)}" class="{classes}"{style}'
        expect("<section" in self.body[-1], "sphinx-revealjs", "the last thing written for a slide is not its section")
        self.body[-1] = self.body[-1].replace("<section", tag, 1)


def add_footer(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Below every slide: the book, the deck, and whose measurements it shows. It is in the PDFs, too."""
    if app.builder.name == DeckBuilder.name and page in app.env.titles and page != app.config.root_doc:
        edition = getattr(app.config, "labs_edition", "") or getattr(app.config, "labs_default_edition", "")
        names = [app.config.project, app.env.titles[page].astext(), f"edition {edition}" if edition else ""]
        footer = " · ".join(escape(name) for name in names if name)
        context["body"] = f'<p class="deck-footer">{footer}</p>{context["body"]}'


class DeckBuilder(RevealjsHTMLBuilder):  # type: ignore[misc]
    """Writes ``<deck>.html``, ``<deck>.pdf`` and ``<deck>-notes.pdf`` for every document but the root."""

    default_translator_class = DeckTranslator

    def init(self) -> None:
        """Look for WeasyPrint first, so that a build without it ends at once."""
        load_weasyprint()
        given = list(self.config.revealjs_static_path)
        super().init()
        self.config.revealjs_static_path = given  # else the configuration looks changed in each build

    def decks(self) -> list[str]:
        """Every document but the list of decks."""
        return sorted(self.env.found_docs - {self.config.root_doc})

    def get_outdated_docs(self) -> Iterator[str]:
        """Also decks that were made with another style, or by another version of the code that makes them."""
        yield from super().get_outdated_docs()
        modules = [Path(str(module)) for module in (__file__, deck_pdf.__file__, deck_sizes.__file__)]
        newest = max(map(_age, [*self._style_files(), *modules]))
        yield from (name for name in self.env.found_docs if _age(self._file(name, ".html")) < newest)

    def finish(self) -> None:
        """Make the PDFs of decks whose HTML is newer."""
        super().finish()
        static, jobs = Path(self.outdir, "_static"), list[Callable[[], None]]()
        for name in self.decks():
            page, slides, handout = (self._file(name, ending) for ending in (".html", ".pdf", "-notes.pdf"))
            if min(_age(slides), _age(handout)) < _age(page):
                jobs.append(partial(deck_pdf.make, page, slides, handout, static))
        if jobs:
            prepare_styles(deck_pdf.sheets(static))
        side_by_side(jobs)

    def _style_files(self) -> Iterator[Path]:
        scripts = [name for name, _ in self.config.revealjs_js_files]
        names = [self.config.revealjs_style_theme, *self.config.revealjs_css_files, *scripts, "deck-print.css"]
        for folder in self.config.revealjs_static_path:
            yield from (Path(self.confdir, folder, name) for name in names)

    def _file(self, name: str, ending: str) -> Path:
        return Path(self.outdir, name + ending)


def _age(path: Path) -> float:
    """When the file was written; long ago if it is not there."""
    return path.stat().st_mtime if path.exists() else 0.0


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder in place of that of sphinx-revealjs, and the directive."""
    app.setup_extension("sphinx_revealjs")
    app.setup_extension("_ext.decks.deck_cards")
    app.setup_extension("_ext.decks.deck_sizes")
    app.add_builder(DeckBuilder, override=True)
    app.add_directive("notes", Notes)
    app.connect("html-page-context", add_footer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
