"""The EPUB builder, corrected: every page is well-formed XHTML, every formula is MathML, every drawing an image file.

Sphinx writes pages for browsers, which forgive; EPUB readers parse XML.
A drawing inside of a page would have to be declared in the package file, which Sphinx does not do.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.builders.epub3 import Epub3Builder

from ..style.math_svg import mathml
from .epub_package import add_landmarks, complete, in_reading_order
from .print_page import drop_screen_parts, unfold
from .print_tree import SVG, classes, parents, parse, replace, walk

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LISTS = {"toctree-wrapper", "sphx-glr-thumbnails"}  # links to other pages: an EPUB has them, print has not


class BookEpubBuilder(Epub3Builder):
    """Takes the place of Sphinx's builder ``epub``."""

    def get_outdated_docs(self) -> Iterator[str]:
        """Every document: another builder, with the same doctrees, may have seen what changed."""
        yield from self.env.found_docs

    def prepare_writing(self, docnames: Set[str]) -> None:
        """Begin with no pages and images: Sphinx takes all that it finds, also what an earlier build left."""
        out = Path(self.outdir)
        shutil.rmtree(out / self.imagedir, ignore_errors=True)
        for page in out.rglob(f"*{self.out_suffix}"):
            page.unlink()
        super().prepare_writing(docnames)

    def handle_page(self, pagename: str, addctx: dict[str, Any], *args: Any, **options: Any) -> None:
        """Make the page's body XHTML before the template gets it."""
        if "body" in addctx:
            addctx["body"] = self._xhtml(addctx["body"])
        super().handle_page(pagename, addctx, *args, **options)

    def build_content(self) -> None:
        """Take out what no page uses before the files are listed."""
        out = Path(self.outdir)
        shutil.rmtree(out / "_downloads", ignore_errors=True)
        (out / ".buildinfo.bak").unlink(missing_ok=True)  # left by Sphinx when the configuration changed
        for picture in (out / "_images").glob("*.svg"):
            text = picture.read_text(encoding="utf-8")
            plain = re.sub(r"<!DOCTYPE[^>]*>", "", text, count=1)  # EPUB 3 forbids external identifiers
            if plain != text:
                picture.write_text(plain, encoding="utf-8")
        used = {image.removeprefix("_static/") for image in self.config.epub_cover[:1]}
        for page in out.rglob("*.xhtml"):
            used |= set(re.findall(r"_static/([^\"?#]+)", page.read_text(encoding="utf-8")))
        for style in [name for name in used if name.endswith(".css")]:
            used |= set(re.findall(r"url\(['\"]?([^'\")?#]+)", (out / "_static" / style).read_text(encoding="utf-8")))
        for path in (out / "_static").rglob("*"):
            if path.is_file() and path.relative_to(out / "_static").as_posix() not in used:
                path.unlink()
        super().build_content()
        complete(out, *self.config.epub_cover[:1])

    def get_toc(self) -> None:
        """Have the contents in the order in which the book is read."""
        super().get_toc()
        self.refnodes = in_reading_order(self.refnodes)

    def build_navigation_doc(self) -> None:
        """Name the places that a reader's program can lead to at once."""
        super().build_navigation_doc()
        cover = {"cover": self.coverpage_name} if self.config.epub_cover else {}
        places = {kind: name + self.out_suffix for kind, name in self.config.epub_landmarks.items()}
        add_landmarks(Path(self.outdir, "nav.xhtml"), cover | places)

    def _xhtml(self, body: str) -> str:
        page = parse(body)
        drop_screen_parts(page, keep=_LISTS)
        unfold(page)
        parent = parents(page)
        for element in list(walk(page)):
            element.attrib.pop("tooltip", None)  # sphinx-gallery's own invention
            if element.tag == f"{SVG}svg" and "math-svg" in classes(element):
                displayed = "vertical-align" not in element.get("style", "")
                replace(parent[element], element, mathml(element.get("aria-label", ""), inline=not displayed))
            elif element.tag == f"{SVG}svg":
                replace(parent[element], element, self._image(element))
            elif "download" in classes(element):
                element.tag = "span"  # the file is not in the EPUB
                element.attrib.pop("href", None)
            elif element.tag == "details":
                del element.attrib["open"]
        return ET.tostring(page, encoding="unicode", method="xml")

    def _image(self, svg: ET.Element) -> ET.Element:
        """An image element for a drawing in the page; the drawing becomes a file."""
        title = svg.find(f"{SVG}title")
        name = svg.get("aria-label") or (title.text if title is not None else "") or ""
        image = {"class": svg.get("class", ""), "style": svg.attrib.pop("style", ""), "alt": name}
        tail, svg.tail = svg.tail, None
        content = ET.tostring(svg, encoding="unicode")
        svg.tail = tail
        path = Path(self.outdir, self.imagedir, f"drawing-{hashlib.sha256(content.encode()).hexdigest()[:16]}.svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return ET.Element("img", {**image, "src": posixpath.join(self.imgpath, path.name)})


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the builder."""
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    app.setup_extension("sphinx.builders.epub3")
    app.add_builder(BookEpubBuilder, override=True)
    app.add_config_value("epub_landmarks", {}, "", dict)  # kinds of EPUB's vocabulary, each with its document
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
