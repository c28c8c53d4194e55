"""The builder ``bookpdf``: the whole book, and each chapter with its labs, as PDF.

The documents are rendered as for the web, changed for print (`print_page`), joined in the order of the table of
contents, and set by WeasyPrint with ``_static/print.css``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx import addnodes
from sphinx.util import logging

from book_assembly import Page, assemble, cover_lines
from print_page import SCHEME, is_empty, prepare
from print_tree import parse
from weasy import load_weasyprint, set_pdf
from whole_book import WholeBookBuilder

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parents[1] / "_static"


class BookPdfBuilder(WholeBookBuilder):
    """Writes ``ddp-handbook.pdf`` and one PDF for each chapter of the root document's table of contents."""

    name = "bookpdf"
    format = "html"
    epilog = "The PDF files are in %(outdir)s."

    def init(self) -> None:
        """Look for WeasyPrint first: a gallery may run for minutes before the first PDF is made."""
        load_weasyprint()
        super().init()
        self.bodies: dict[str, ET.Element] = {}

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """A link that `print_page` turns into one inside of the PDF."""
        return SCHEME + docname

    def get_relative_uri(self, from_: str, to: str, typ: str | None = None) -> str:
        """All documents share a PDF."""
        return self.get_target_uri(to, typ)

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """Render one document and change it for print."""
        self.start_page(docname, doctree)
        body = parse(self.render(doctree))
        prepare(body, docname)
        for image in body.iter("img"):
            image.set("src", self._image_file(image.get("src", "")).as_uri())
        self.bodies[docname] = body

    def finish(self) -> None:
        """Set the book and each chapter."""
        root = self.config.root_doc
        parts = list(dict.fromkeys(self.env.toctree_includes.get(root, [])))
        front = [] if is_empty(self.bodies[root]) else [Page(root, 1, self.bodies[root])]
        pages = {part: list(self._pages(part)) for part in parts}
        book = [*front, *(page for part in parts for page in pages[part])]
        name = self.config.bookpdf_name
        contents = {name: self._content(self.config.project, "", book, toc_levels=2)}  # first: it takes the longest
        for chapter in self._chapters(root):
            title = self.env.titles[chapter].astext()
            content = self._content(title, self.config.project, pages[chapter], toc_levels=3)
            contents[chapter.replace("/", "-")] = content
        # Forked while this process has one thread: the PDFs share nothing, and a book takes minutes.
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        with ProcessPoolExecutor(cores, multiprocessing.get_context("fork")) as pool:
            for problems in pool.map(_set, contents.values(), [Path(self.outdir, f"{name}.pdf") for name in contents]):
                for problem in problems:
                    logger.warning(problem)

    def _chapters(self, root: str) -> list[str]:
        """What the first table of contents of the root document lists; what follows it is reference."""
        first = next(self.env.get_doctree(root).findall(addnodes.toctree), None)
        return list(dict.fromkeys(first["includefiles"])) if first else []

    def _pages(self, docname: str, depth: int = 1) -> Iterator[Page]:
        """A document and those below it, in reading order; one that only lists others is left out."""
        children = list(dict.fromkeys(self.env.toctree_includes.get(docname, [])))
        if depth == 1 or not is_empty(self.bodies[docname]):
            yield Page(docname, depth, self.bodies[docname], is_lab=depth > 1 and not children)
        for child in children:
            yield from self._pages(child, 2)  # the labs of a chapter stand side by side, however they are listed

    def _content(self, title: str, subtitle: str, pages: list[Page], *, toc_levels: int) -> str:
        stamp = cover_lines(self.config, self.confdir)
        return assemble(title, subtitle, stamp, pages, set(self.bodies), toc_levels, self.config)

    def _image_file(self, src: str) -> Path:
        """The source file of an image in a rendered document."""
        name = src.rpartition("/")[2]
        path = next((path for path, kept in self.images.items() if kept == name), src)
        return Path(self.srcdir, path).resolve()


def _set(content: str, target: Path) -> list[str]:
    """In a process of its own: set one PDF, and return what the build should warn about."""
    sheet, problems = STATIC / "print.css", list[str]()
    set_pdf(content, {sheet: sheet.read_text(encoding="utf-8")}, target, problems.append)
    return problems


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder and its configuration."""
    app.setup_extension("figures")  # drawings are part of the page
    app.add_builder(BookPdfBuilder)
    app.add_config_value("bookpdf_name", "ddp-handbook", "", str)
    app.add_config_value("bookpdf_subtitle", "", "", str)
    app.add_config_value("bookpdf_manifest", "", "", str)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
