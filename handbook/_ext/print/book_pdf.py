"""The builder ``bookpdf``: the handbook and its lab companion as PDF, and each chapter, made of the handbook's pages.

The documents are rendered as for the web, changed for print (`print_page`), joined in the order of the table of
contents, and laid out by WeasyPrint with ``_static/print.css``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from multiprocessing import SimpleQueue
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

from ..building.patches import correct_page_references
from ..building.whole_book import WholeBookBuilder
from ..evidence.lab_source import manifest_file
from ..problems import BuildError, expect
from .book_answers import answers_last
from .book_assembly import Page, entries, expect_pages, is_empty, join
from .book_back import INDEX, LIST, LabLine, labs_html, section, short_labs_html, sources_of
from .book_front import Entry, back_html, book_html, cover_lines
from .book_index import index_html, index_items
from .book_moves import say_where_it_moves
from .book_offprints import drills, write_chapter, write_labs
from .book_order import LABS, below, chapters, children, is_in_companion, is_lab, labs_of, program
from .print_labs import numbers_in_the_handbook, outputs_in_the_handbook, shorten
from .print_page import SCHEME, prepare
from .print_tree import anchor, classes, parse, to_html
from .print_words import keep_words
from .weasy import Sheets, lay_out, load_weasyprint, page_numbers, prepare_styles, side_by_side, write

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

STATIC = Path(__file__).parents[2] / "_static"
MARK = "bibtex-citation"  # the class around a number that stands for a work
BACK = [Entry("List of labs", LIST, 1), Entry("Index", INDEX, 1)]
UNKNOWN: Any = defaultdict(lambda: 888)  # page numbers in contents that are set again once the pages stand
PAPERS = {"a4": ["print.css"], "letter": ["print.css", "print-letter.css"]}


class BookPdfBuilder(WholeBookBuilder):
    """Writes the handbook, the companion of its labs, and each chapter of the root document's table of contents."""

    name = "bookpdf"
    format = "html"
    epilog = "The PDF files are in %(outdir)s."

    def init(self) -> None:
        """Look for WeasyPrint first: a gallery may run for minutes before the first PDF is made."""
        load_weasyprint()
        super().init()
        paper = self.config.bookpdf_paper
        if paper not in PAPERS:
            raise BuildError(f"bookpdf_paper is {paper!r}; it can be {' or '.join(PAPERS)}")
        sheets = [STATIC / name for name in PAPERS[paper]]
        self.sheets: Sheets = tuple((sheet, sheet.read_text(encoding="utf-8")) for sheet in sheets)
        licence = self.config.bookpdf_licence
        self.licence = Path(self.confdir, licence).read_text(encoding="utf-8") if licence else ""

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """A link that `print_page` turns into one inside of the PDF."""
        return SCHEME + docname

    def get_relative_uri(self, from_: str, to: str, typ: str | None = None) -> str:
        """All documents share a PDF."""
        return self.get_target_uri(to, typ)

    def write_documents(self, docnames: Set[str]) -> None:
        """Make the volumes side by side: each process renders, lays out and writes the documents of one."""
        only = self.config.bookpdf_only
        order = {part: list(below(self.env, part)) for part in children(self.env, self.config.root_doc)}
        labs = [name for names in order.values() for name in names if is_lab(self.env, name)]
        self.labs = {name: number for number, name in enumerate(labs, 1)}
        self.reading_order = {only: list(below(self.env, only))} if only else order
        companion = [self._make_companion] if labs and not only else []
        self.lab_pages: Any = SimpleQueue()  # from the companion to the handbook
        prepare_styles(self.sheets)
        side_by_side([*companion, self._make_handbook])

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """Nothing: documents are rendered by the process that needs them."""

    def finish(self) -> None:
        """Nothing is left to write."""

    def _make_handbook(self) -> None:
        """The handbook, and its chapters out of the same pages."""
        only, pages = self.config.bookpdf_only, []
        listed = chapters(self.env, self.config.root_doc)
        if not only:
            front = self._body(self.config.root_doc)
            pages += [] if is_empty(front) else [Page(self.config.root_doc, 1, front)]
        for part, order in self.reading_order.items():
            for name in order:
                if not is_in_companion(self.env, name) and (not is_empty(body := self._body(name)) or name == part):
                    runs_on = part not in listed  # it has no PDF of its own
                    pages.append(Page(name, 1 if name == part else 2, body, runs_on=runs_on))
        sources = self._sources(pages)
        body = join(pages, self.env.found_docs, self.labs, also=sources)
        articles = dict(zip((page.docname for page in pages), body, strict=True))
        words = [] if only else index_items(list(body))
        contents = [*entries(list(body), 2), *([] if only else BACK)]
        name, title = f"{self.config.bookpdf_name}.pdf", self.config.project
        document, numbers = self._set(name, title, "", contents, body)
        last = len(document.pages)
        self.companion = self.lab_pages.get() if self.labs and not only else {}

        def book() -> None:
            found = index_html(words, numbers)
            lists = [
                section("List of labs", LIST, self.lab_list(self.labs, short_labs_html)),
                section("Index", INDEX, found),
            ]
            left = (last + 1) % 2 == 0  # laid out behind an empty page, so that its margins are those of its side
            back = lay_out(back_html("".join(lists), last + 1 - left, self.config, left=left), self.sheets, name)
            behind = {key: last + page - left for key, page in page_numbers(back).items()}
            self._write_book(document, name, title, "", contents, {**numbers, **behind}, back.pages[left:])

        if not only:
            book()
        parts = [part for part in self.reading_order if part in articles]
        starts = [numbers[anchor(part)] for part in parts] + [last + 1]
        cards = {} if only else drills(self, articles, numbers)
        cuts = zip(parts, itertools.pairwise(starts), strict=True)
        runs = [(chapter, first, end) for chapter, (first, end) in cuts if chapter in listed]

        def offprints(runs: Iterable[tuple[str, int, int]]) -> None:
            for chapter, first, end in runs:
                inside = [articles[one] for one in self.reading_order[chapter] if one in articles]
                cut, drill = document.pages[first - 1 : end - 1], cards.get(chapter, [])
                write_chapter(self, chapter, cut, first, inside, drill, sources, numbers)

        side_by_side([partial(offprints, runs[::2]), partial(offprints, runs[1::2])])

    def _make_companion(self) -> None:
        """The labs, by chapter; the handbook, which takes longer, comes first."""
        if multiprocessing.parent_process() is not None:
            os.nice(5)
        numbers: dict[str, int] = {}
        documents = [name for order in self.reading_order.values() for name in order]
        printed = [name for name in documents if not is_in_companion(self.env, name)]
        self.outputs = outputs_in_the_handbook(self.env, [self.config.root_doc, *printed])
        try:
            pages = [
                Page(name, 2 if is_lab(self.env, name) else 1, self._lab_body(name), self.labs.get(name, 0))
                for name in documents
                if is_in_companion(self.env, name)
            ]
            body = join(pages, self.env.found_docs, self.labs)
            name = f"{self.config.bookpdf_labs_name}.pdf"
            contents = list(entries(list(body), 1))
            title, project = self.config.bookpdf_labs_title, self.config.project
            document, numbers = self._set(name, title, project, contents, body)
        finally:
            self.lab_pages.put({name: numbers.get(anchor(name), 0) for name in self.labs})  # the handbook waits for it

        self._write_book(document, name, title, project, contents, numbers)
        for chapter in chapters(self.env, self.config.root_doc):
            write_labs(self, chapter, document, contents, numbers)

    def _set(
        self, name: str, title: str, series: str, contents: list[Entry], body: ET.Element
    ) -> tuple[Any, dict[str, int]]:
        """A volume, whole but for the page numbers of its contents; and the page of each id."""
        expect_pages(body)
        document = self.lay_out(name, title, series, contents, to_html(body), UNKNOWN)
        numbers = page_numbers(document)
        correct_page_references(document, numbers)
        return document, numbers

    def _write_book(
        self,
        document: Any,
        name: str,
        title: str,
        series: str,
        contents: list[Entry],
        numbers: dict[str, int],
        back: Sequence[Any] = (),
    ) -> None:
        """Write a whole book, its cover and contents set once more: only now is known on which page each heading is."""
        front = self.lay_out(name, title, series, contents, "", numbers)
        first = numbers[contents[0].id]
        expect(len(front.pages) == first - 1, "weasyprint", "contents take as many pages with their numbers as without")
        write(front.copy([*front.pages, *document.pages[first - 1 :], *back]), Path(self.outdir, name))

    def labs_of(self, chapter: str) -> list[str]:
        """The labs of a chapter and of the pages below it, in the order of the companion."""
        return labs_of(self.env, self.reading_order.get(chapter, [chapter]), self.labs)

    def lab_list(self, labs: Iterable[str], html: Callable[[Iterable[LabLine], str], str] = labs_html) -> str:
        """A list of labs."""
        return html(
            (
                LabLine(self.labs[name], self.env.titles[name].astext(), program(name), self.companion.get(name, 0))
                for name in labs
            ),
            self.config.bookpdf_labs_title,
        )

    def _sources(self, pages: list[Page]) -> dict[str, ET.Element]:
        """The works that the pages may cite, by id; a bibliography that is not among the pages is read for this."""
        marks = [mark for page in pages for mark in page.body.iter("span") if MARK in classes(mark)]
        cited = {link.get("href", "")[1:].partition("--")[0] for mark in marks for link in mark.iter("a")}
        own = {page.docname: page.body for page in pages}
        names = [name for name in sorted(self.env.found_docs) if anchor(name) in cited]
        bodies = [own[name] if name in own else self._body(name) for name in names]
        return {key: work for body in bodies for key, work in sources_of(body).items()}

    def lay_out(
        self,
        name: str,
        title: str,
        series: str,
        contents: list[Entry],
        body: str,
        numbers: Any,
        *,
        offprint: list[str] | None = None,
    ) -> Any:
        """Lay out a cover, a page of rights, contents, and a body; an offprint says first where it comes from."""
        stamp = [*(offprint or []), *cover_lines(self.config, self.confdir)]
        rights = self.licence if offprint is None else ""
        kept = offprint is not None
        html = book_html(title, series, stamp, contents, body, self.config, numbers, offprint=kept, licence=rights)
        return lay_out(html, self.sheets, name)

    def _body(self, docname: str) -> ET.Element:
        """Render one document and change it for print."""
        doctree = self.env.get_and_resolve_doctree(docname, self, tags=self.tags)
        self.write_doc_serialized(docname, doctree)
        self.start_page(docname, doctree)
        body = parse(self.render(doctree))
        prepare(body, docname)
        answers_last(body, docname)
        say_where_it_moves(body, docname, str(getattr(self.config, "ogp_site_url", "")))
        keep_words(body)
        for image in body.iter("img"):
            image.set("src", self._image_file(image.get("src", "")).as_uri())
        return body

    def _lab_body(self, docname: str) -> ET.Element:
        """A lab, or the list of a chapter's labs, for the companion."""
        body = self._body(docname)
        if docname in self.labs:
            figures = list(numbers_in_the_handbook(self.env, docname, LABS))
            shorten(body, figures, self.outputs.get(docname))
        return body

    def _image_file(self, src: str) -> Path:
        """The source file of an image in a rendered document."""
        name = src.rpartition("/")[2]
        path = next((path for path, kept in self.images.items() if kept == name), src)
        return Path(self.srcdir, path).resolve()


def name_manifest(app: Sphinx, config: Config) -> None:
    """The cover states the edition that this build renders."""
    config.bookpdf_manifest = config.bookpdf_manifest or str(manifest_file(config))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder and its configuration."""
    app.setup_extension("_ext.evidence.lab_source")
    app.setup_extension("_ext.embed.figures")  # drawings are part of the page
    app.add_builder(BookPdfBuilder)
    app.connect("config-inited", name_manifest)
    app.add_config_value("bookpdf_name", "ddp-handbook", "", str)
    app.add_config_value("bookpdf_labs_name", "ddp-labs", "", str)
    app.add_config_value("bookpdf_labs_title", "The lab companion", "", str)
    app.add_config_value("bookpdf_subtitle", "", "", str)
    app.add_config_value("bookpdf_manifest", "", "", str)
    app.add_config_value("bookpdf_licence", "", "", str)  # a file, from the folder of conf.py
    app.add_config_value("bookpdf_paper", "a4", "", str)
    app.add_config_value("bookpdf_only", "", "", str)  # the one chapter that is wanted
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
