"""The builder ``bookpdf``: the whole book, and each chapter with its labs, as PDF.

The documents are rendered as for the web, changed for print (`print_tree`), joined in the order of the table of
contents, and set by WeasyPrint with ``_static/print.css``.
"""

from __future__ import annotations

import datetime
import html
import json
import logging as plain_logging
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import print_tree
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.errors import ExtensionError
from sphinx.util import logging

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parents[1] / "_static"


@dataclass(frozen=True)
class Page:
    """One document, ready to print."""

    docname: str
    depth: int  # 1: a chapter, 2: a lab of it
    body: ET.Element


class BookPdfBuilder(StandaloneHTMLBuilder):
    """Writes ``ddp-handbook.pdf`` and one PDF for each chapter of the root document's table of contents."""

    name = "bookpdf"
    format = "html"
    epilog = "The PDF files are in %(outdir)s."
    allow_parallel = False  # the rendered documents are collected in memory
    search = False
    copysource = False

    def __init__(self, app: Sphinx, env: BuildEnvironment) -> None:
        super().__init__(app, env)
        self.sphinx = app

    def init(self) -> None:
        """Look for WeasyPrint first: a gallery may run for minutes before the first PDF is made."""
        import_weasyprint()
        super().init()
        self.bodies: dict[str, ET.Element] = {}

    def get_theme_config(self) -> tuple[str, dict[str, str | int | bool]]:
        """No theme of the web: furo, once loaded, wants to write its files beside the PDFs."""
        return "basic", {}

    def get_outdated_docs(self) -> str:  # type: ignore[override]
        """Every document is needed."""
        return "all documents"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """A link that `print_tree` turns into one inside of the PDF."""
        return print_tree.SCHEME + docname

    def get_relative_uri(self, from_: str, to: str, typ: str | None = None) -> str:
        """All documents share a PDF."""
        return self.get_target_uri(to, typ)

    def copy_assets(self) -> None:
        """Nothing is needed beside the PDF."""

    def write_doc_serialized(self, docname: str, doctree: nodes.document) -> None:
        """Collect the images."""
        self.imgpath = "_images"
        self.post_process_images(doctree)

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """Render one document and change it for print."""
        doctree.settings = self.docsettings
        self.secnumbers = self.env.toc_secnumbers.get(docname, {})
        self.fignumbers = self.env.toc_fignumbers.get(docname, {})
        self.imgpath, self.dlpath, self.current_docname = "_images", "_downloads", docname
        visitor: Any = self.create_translator(doctree, self)
        doctree.walkabout(visitor)
        body = print_tree.parse("".join(visitor.fragment))
        print_tree.prepare(body, docname, self._image_text)
        for image in body.iter("img"):
            image.set("src", self._image_file(image.get("src", "")).as_uri())
        self.bodies[docname] = body

    def finish(self) -> None:
        """Set the book and each chapter."""
        root = self.config.root_doc
        chapters = list(dict.fromkeys(self.env.toctree_includes.get(root, [])))
        front = [] if print_tree.is_empty(self.bodies[root]) else [Page(root, 1, self.bodies[root])]
        pages = {chapter: list(self._pages(chapter)) for chapter in chapters}
        book = [*front, *(page for chapter in chapters for page in pages[chapter])]
        self._write(self.config.bookpdf_name, self.config.project, "", book, toc_levels=2)
        for chapter in chapters:
            title = self.env.titles[chapter].astext()
            self._write(chapter.replace("/", "-"), title, self.config.project, pages[chapter], toc_levels=3)

    def _pages(self, docname: str, depth: int = 1) -> Iterator[Page]:
        """A document and those below it, in reading order; one that only lists others is left out."""
        empty = depth > 1 and print_tree.is_empty(self.bodies[docname])
        if not empty:
            yield Page(docname, depth, self.bodies[docname])
        for child in dict.fromkeys(self.env.toctree_includes.get(docname, [])):
            yield from self._pages(child, depth + (not empty))

    def _write(self, name: str, title: str, subtitle: str, pages: list[Page], *, toc_levels: int) -> None:
        logger.info("setting %s.pdf", name)
        content = assemble(title, subtitle, cover_lines(self.sphinx), pages, set(self.bodies), toc_levels, self.config)
        target = Path(self.outdir, f"{name}.pdf")
        temporary = target.with_suffix(".pdf.tmp")
        try:
            write_pdf(content, temporary, name)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _image_file(self, src: str) -> Path:
        """The source file of an image in a rendered document."""
        name = src.rpartition("/")[2]
        path = next((path for path, kept in self.images.items() if kept == name), src)
        return Path(self.srcdir, path).resolve()

    def _image_text(self, src: str) -> str | None:
        if not src.endswith(".svg"):
            return None
        text = self._image_file(src).read_text(encoding="utf-8")
        return re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)


# -- one PDF ----------------------------------------------------------------------------------------


def assemble(
    title: str, subtitle: str, stamp: list[str], pages: list[Page], known: set[str], toc_levels: int, config: Any
) -> str:
    """The HTML of one PDF: cover, table of contents, and the pages, linked among themselves only."""
    body = ET.Element("div")
    for page in pages:
        copy = deepcopy(page.body)
        copy.tag = "article"
        copy.attrib = {"class": f"page depth-{page.depth}", "id": print_tree.anchor(page.docname)}
        print_tree.shift_headings(copy, page.depth - 1)
        body.append(copy)
    _check_links(body, {page.docname for page in pages}, known)
    escape = html.escape
    about = "".join(f"<p>{escape(line)}</p>" for line in stamp)
    above = f'<p class="series">{escape(subtitle)}</p>' if subtitle else ""
    cover = f'<header class="cover">{above}<p class="title">{escape(title)}</p>'
    cover += f'<p class="subtitle">{escape(config.bookpdf_subtitle)}</p>' if not subtitle else ""
    cover += f'<p class="author">{escape(config.author)}</p><div class="edition">{about}</div></header>'
    head = f"<title>{escape(title)}{' · ' + escape(subtitle) if subtitle else ''}</title>"
    head += f'<meta name="author" content="{escape(config.author)}"><meta name="generator" content="Sphinx">'
    language = escape(config.language or "en")
    contents = _contents(body, toc_levels)
    pages_html = print_tree.to_html(body)
    return f'<!doctype html><html lang="{language}"><head>{head}</head><body>{cover}{contents}{pages_html}</body></html>'


def _contents(body: ET.Element, levels: int) -> str:
    """The table of contents; the style sheet adds leaders and page numbers."""
    entries = []
    for article in body:
        first = True
        for section in article.iter("section"):
            heading = next((child for child in section if re.fullmatch("h[1-6]", child.tag)), None)
            if heading is None or int(heading.tag[1]) > levels:
                continue
            text = print_tree.heading_content(heading)
            text.tag, text.attrib = "a", {"href": "#" + (section.get("id") or "")}
            lab = " lab" if first and "depth-1" not in print_tree.classes(article) else ""
            entries.append(f'<li class="level-{heading.tag[1]}{lab}">{print_tree.to_html(text)}</li>')
            first = False
    return f'<section class="contents" id="contents"><h1>Contents</h1><ol>{"".join(entries)}</ol></section>'


def _check_links(body: ET.Element, inside: set[str], known: set[str]) -> None:
    """Make links that leave this PDF plain text; complain about links that lead nowhere."""
    here = {element.get("id") for element in body.iter()} | {"contents"}
    elsewhere = {print_tree.anchor(name) for name in known - inside}
    for article in body:
        for link in [element for element in print_tree.walk(article) if element.tag == "a"]:
            href = link.get("href", "")
            if href.startswith(("http:", "https:", "mailto:")) or href[1:] in here:
                continue
            document, _, _ = href[1:].partition("--")
            if href.startswith("#") and document not in elsewhere:
                source = f'<a href="{href}">{"".join(link.itertext())}</a>'
                logger.warning("print: a link leads nowhere: %s", source, location=article.get("id"), type="bookpdf")
            link.tag = "span"
            link.attrib.pop("href", None)
            link.set("class", link.get("class", "").replace("page-reference", ""))


def cover_lines(app: Sphinx) -> list[str]:
    """What the cover says about the edition: what listeners of ``bookpdf-stamp`` answer, else the manifest's facts."""
    for answer in app.emit("bookpdf-stamp"):
        if answer:
            return list(answer)
    manifest = Path(app.confdir, app.config.bookpdf_manifest) if app.config.bookpdf_manifest else None
    lines = [f"Version {app.config.release}"] if app.config.release else []
    lines += manifest_lines(json.loads(manifest.read_text("utf-8"))) if manifest and manifest.exists() else []
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    today = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date() if epoch else datetime.date.today()
    return [*lines, f"Set on {today.isoformat()}"]


def manifest_lines(manifest: dict[str, Any]) -> list[str]:
    """What a reader wants to know about where the outputs come from."""
    machine = manifest.get("machine") or {}
    gpu = f"{manifest.get('gpus') or 1} × {manifest['gpu']}" if manifest.get("gpu") else ""
    hardware = gpu or (f"{machine['cpu']}, {machine.get('cores')} cores" if machine.get("cpu") else "")
    names = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL"}
    versions = [f"{label} {manifest[name]}" for name, label in names.items() if manifest.get(name)]
    versions += [f"Python {machine['python']}"] if machine.get("python") else []
    ran = sorted(script["date"][:10] for script in (manifest.get("scripts") or {}).values())
    lines = [f"Edition {manifest['edition']}"] if manifest.get("edition") else []
    lines += [hardware] if hardware else []
    lines += [" · ".join(versions)] if versions else []
    return lines + ([f"Executed {ran[0]}" if ran[0] == ran[-1] else f"Executed {ran[0]} to {ran[-1]}"] if ran else [])


# -- WeasyPrint -------------------------------------------------------------------------------------


def import_weasyprint() -> ModuleType:
    """WeasyPrint, which needs a system library that pip does not bring.

    Raises:
        ExtensionError: it cannot be used; the message says what to install.
    """
    try:
        import weasyprint
    except ImportError as error:
        raise ExtensionError(f"PDF needs WeasyPrint ({error}); run: pip install weasyprint") from None
    except OSError as error:
        raise ExtensionError(
            f"PDF needs the Pango library, which is not installed ({str(error).splitlines()[0]}). "
            "Debian, Ubuntu: apt install libpango-1.0-0 libpangoft2-1.0-0 · macOS: brew install pango"
        ) from None
    return weasyprint


def write_pdf(content: str, target: Path, name: str) -> None:
    """Set the HTML; what WeasyPrint cannot load or resolve becomes a warning of the build."""
    weasyprint = import_weasyprint()
    from weasyprint.text.fonts import FontConfiguration

    fonts = FontConfiguration()
    log, problems = plain_logging.getLogger("weasyprint"), _Problems(name)
    propagate, log.propagate = log.propagate, False
    log.addHandler(problems)
    try:
        sheet = weasyprint.CSS(filename=str(STATIC / "print.css"), font_config=fonts)
        document = weasyprint.HTML(string=content, base_url=STATIC.as_uri())
        document.write_pdf(str(target), stylesheets=[sheet], font_config=fonts, pdf_variant="pdf/ua-1")
    finally:
        log.removeHandler(problems)
        log.propagate = propagate


class _Problems(plain_logging.Handler):
    """Passes WeasyPrint's errors on; its warnings are about style sheets, which tests look after."""

    def __init__(self, name: str) -> None:
        super().__init__(plain_logging.ERROR)
        self.name_of_pdf = name

    def emit(self, record: plain_logging.LogRecord) -> None:
        logger.warning("%s.pdf: %s", self.name_of_pdf, record.getMessage(), type="bookpdf")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder, its configuration, and the event that asks for the cover's stamp."""
    app.add_builder(BookPdfBuilder)
    app.add_config_value("bookpdf_name", "ddp-handbook", "", str)
    app.add_config_value("bookpdf_subtitle", "", "", str)
    app.add_config_value("bookpdf_manifest", "", "", str)
    app.add_event("bookpdf-stamp")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
