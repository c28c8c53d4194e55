"""The builder ``bookpdf``: the handbook and its lab companion as PDF, and each chapter, made of the handbook's pages.

The documents are rendered as for the web, changed for print (`print_page`), joined in the order of the table of
contents, and laid out by WeasyPrint with ``_static/print.css``.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx import addnodes

from ..evidence.labs import manifest_file
from ..problems import expect
from .book_assembly import Page, entries, is_empty, join
from .book_front import Entry, book_html, cover_lines
from .patches import drop_links_out_of
from .print_page import SCHEME, prepare
from .print_tree import anchor, parse, to_html
from .weasy import Sheets, label_pages, lay_out, load_weasyprint, side_by_side, write
from .whole_book import WholeBookBuilder

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.config import Config

STATIC = Path(__file__).parents[2] / "_static"
LABS = "labs/"  # what is below it is printed in the companion


class BookPdfBuilder(WholeBookBuilder):
    """Writes the handbook, the companion of its labs, and each chapter of the root document's table of contents."""

    name = "bookpdf"
    format = "html"
    epilog = "The PDF files are in %(outdir)s."

    def init(self) -> None:
        """Look for WeasyPrint first: a gallery may run for minutes before the first PDF is made."""
        load_weasyprint()
        super().init()
        sheet = STATIC / "print.css"
        self.sheets: Sheets = ((sheet, sheet.read_text(encoding="utf-8")),)

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """A link that `print_page` turns into one inside of the PDF."""
        return SCHEME + docname

    def get_relative_uri(self, from_: str, to: str, typ: str | None = None) -> str:
        """All documents share a PDF."""
        return self.get_target_uri(to, typ)

    def write_documents(self, docnames: Set[str]) -> None:
        """Make the volumes side by side: each process renders, lays out and writes the documents of one."""
        only = self.config.bookpdf_only
        parts = [only] if only else self._children(self.config.root_doc)
        self.reading_order = {part: list(self._below(part)) for part in parts}
        labs = [name for order in self.reading_order.values() for name in order if name.startswith(LABS)]
        self.labs = {name: number for number, name in enumerate(filter(self._is_lab, labs), 1)}
        side_by_side([self._make_handbook, *([self._make_companion] if labs and not only else [])])

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """Nothing: documents are rendered by the process that needs them."""

    def finish(self) -> None:
        """Nothing is left to write."""

    def _make_handbook(self) -> None:
        """The handbook, and its chapters out of the same pages."""
        pages = []
        if not self.config.bookpdf_only:
            front = self._body(self.config.root_doc)
            pages += [] if is_empty(front) else [Page(self.config.root_doc, 1, front)]
        for part, order in self.reading_order.items():
            for name in order:
                if not name.startswith(LABS) and (not is_empty(body := self._body(name)) or name == part):
                    pages.append(Page(name, 1 if name == part else 2, body))
        body = join(pages, self.env.found_docs, self.labs)
        articles = dict(zip((page.docname for page in pages), body, strict=True))
        contents = list(entries(list(body), 2))
        name = f"{self.config.bookpdf_name}.pdf"
        document = self._lay_out(name, self.config.project, "", self._stamp(), contents, to_html(body))
        numbers = _numbers(document)
        if not self.config.bookpdf_only:
            self._write_book(document, name, self.config.project, "", contents, numbers)
        starts = [numbers[anchor(part)] for part in self.reading_order] + [len(document.pages) + 1]
        for chapter in self._chapters():
            if chapter not in self.reading_order:
                continue
            place = list(self.reading_order).index(chapter)
            first, end = starts[place : place + 2]
            listed = list(entries([articles[name] for name in self.reading_order[chapter] if name in articles], 3))
            self._write_chapter(chapter, document, first, end, listed, numbers)

    def _write_chapter(
        self, chapter: str, document: Any, first: int, end: int, listed: list[Entry], numbers: dict[str, int]
    ) -> None:
        """One chapter: a cover and contents of its own, then its pages of the handbook, which keep their numbers."""
        title, target = self.env.titles[chapter].astext(), Path(self.outdir, f"{chapter.replace('/', '-')}.pdf")
        stamp = [f"Pages {first} to {end - 1} of {self.config.project}", *self._stamp()]
        front = self._lay_out(target.name, title, self.config.project, stamp, listed, "", numbers, offprint=True)
        pages = document.pages[first - 1 : end - 1]
        drop_links_out_of(pages)
        whole = front.copy([*front.pages, *pages])
        write(whole, target, finisher=partial(label_pages, front=len(front.pages), first=first))

    def _make_companion(self) -> None:
        """The labs, by chapter."""
        pages = [
            Page(name, 2 if self._is_lab(name) else 1, self._body(name), self.labs.get(name, 0))
            for order in self.reading_order.values()
            for name in order
            if name.startswith(LABS)
        ]
        body = join(pages, self.env.found_docs, self.labs)
        name = f"{self.config.bookpdf_labs_name}.pdf"
        contents = list(entries(list(body), 1))
        title, project = self.config.bookpdf_labs_title, self.config.project
        document = self._lay_out(name, title, project, self._stamp(), contents, to_html(body))
        self._write_book(document, name, title, project, contents, _numbers(document))

    def _write_book(
        self, document: Any, name: str, title: str, series: str, contents: list[Entry], numbers: dict[str, int]
    ) -> None:
        """Write a whole book, its cover and contents set once more: only now is known on which page each heading is.

        What WeasyPrint puts there by itself can be the page before, where a heading moved on with what follows it.
        """
        front = self._lay_out(name, title, series, self._stamp(), contents, "", numbers)
        first = numbers[contents[0].id]
        expect(len(front.pages) == first - 1, "weasyprint", "contents take as many pages with their numbers as without")
        write(front.copy([*front.pages, *document.pages[first - 1 :]]), Path(self.outdir, name))

    def _lay_out(
        self,
        name: str,
        title: str,
        series: str,
        stamp: list[str],
        contents: list[Entry],
        body: str,
        numbers: Any = None,
        *,
        offprint: bool = False,
    ) -> Any:
        html = book_html(title, series, stamp, contents, body, self.config, numbers, offprint=offprint)
        return lay_out(html, self.sheets, name)

    def _stamp(self) -> list[str]:
        return cover_lines(self.config, self.confdir)

    def _body(self, docname: str) -> ET.Element:
        """Render one document and change it for print."""
        doctree = self.env.get_and_resolve_doctree(docname, self, tags=self.tags)
        self.write_doc_serialized(docname, doctree)
        self.start_page(docname, doctree)
        body = parse(self.render(doctree))
        prepare(body, docname)
        for image in body.iter("img"):
            image.set("src", self._image_file(image.get("src", "")).as_uri())
        return body

    def _children(self, docname: str) -> list[str]:
        """The documents below one; a page that is nothing without a browser says ``no-print: true`` above its title."""
        below = dict.fromkeys(self.env.toctree_includes.get(docname, []))
        return [name for name in below if "no-print" not in self.env.metadata.get(name, {})]

    def _below(self, docname: str) -> Iterator[str]:
        """A document and those below it, in reading order."""
        yield docname
        for child in self._children(docname):
            yield from self._below(child)

    def _is_lab(self, docname: str) -> bool:
        """Whether a document is a lab; one with others below it is the list of a chapter's labs."""
        return docname.startswith(LABS) and not self._children(docname)

    def _chapters(self) -> list[str]:
        """What the tables of contents of the root document list, one a part; the last of several is reference."""
        trees = list(self.env.get_doctree(self.config.root_doc).findall(addnodes.toctree))
        return list(dict.fromkeys(name for tree in trees[:-1] or trees for name in tree["includefiles"]))

    def _image_file(self, src: str) -> Path:
        """The source file of an image in a rendered document."""
        name = src.rpartition("/")[2]
        path = next((path for path, kept in self.images.items() if kept == name), src)
        return Path(self.srcdir, path).resolve()


def _numbers(document: Any) -> dict[str, int]:
    """The page of each id, from 1."""
    return {name: number for number, page in reversed(list(enumerate(document.pages, 1))) for name in page.anchors}


def name_manifest(app: Sphinx, config: Config) -> None:
    """The cover states the edition that this build renders."""
    config.bookpdf_manifest = config.bookpdf_manifest or str(manifest_file(config))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder and its configuration."""
    app.setup_extension("_ext.evidence.labs")
    app.setup_extension("_ext.embed.figures")  # drawings are part of the page
    app.add_builder(BookPdfBuilder)
    app.connect("config-inited", name_manifest)
    app.add_config_value("bookpdf_name", "ddp-handbook", "", str)
    app.add_config_value("bookpdf_labs_name", "ddp-labs", "", str)
    app.add_config_value("bookpdf_labs_title", "The lab companion", "", str)
    app.add_config_value("bookpdf_subtitle", "", "", str)
    app.add_config_value("bookpdf_manifest", "", "", str)
    app.add_config_value("bookpdf_only", "", "", str)  # the one chapter that is wanted
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
