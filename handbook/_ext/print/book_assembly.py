"""One PDF from many pages: they are joined, linked among themselves, and listed for the table of contents."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass

from sphinx.util import logging

from .book_front import Entry
from .print_tree import anchor, classes, parents, replace, to_html, walk

logger = logging.getLogger(__name__)

CHARACTERS = 2500  # of a page, about


@dataclass(frozen=True)
class Page:
    """One document, ready to print."""

    docname: str
    depth: int  # 1: a chapter; 2: a page below it, or a lab
    body: ET.Element
    lab: int = 0  # the number of a lab
    runs_on: bool = False  # begins where the one before it ends, on the same page


def join(pages: list[Page], known: Set[str], labs: Mapping[str, int], also: Iterable[str] = ()) -> ET.Element:
    """The pages of one PDF, linked among themselves only. The bodies of ``pages`` become part of it.

    Args:
        pages: what the PDF holds.
        known: all documents; a link to one that is not in this PDF becomes plain text.
        labs: the number of each lab, which takes the place of a page number where the lab is not in this PDF.
        also: ids that the PDF will have behind these pages.
    """
    body, before = ET.Element("div"), pages[0].docname if pages else ""
    for page in pages:
        article = page.body
        article.tag = "article"
        opens_part = page.docname.partition("/")[0] != before.partition("/")[0]
        before = page.docname
        kinds = {"lab": page.lab, "part": opens_part, "runs-on": page.runs_on}
        kind = " ".join(["page", f"depth-{page.depth}", *(name for name, is_so in kinds.items() if is_so)])
        article.attrib = {"class": kind, "id": anchor(page.docname)}
        _shift_headings(article, page.depth - 1)
        if page.lab and (heading := next(article.iter("h2"), None)) is not None:
            heading.set("data-lab", str(page.lab))
        body.append(article)
    _check_links(body, {page.docname for page in pages}, known, labs, also)
    return body


def entries(articles: list[ET.Element], levels: int) -> Iterator[Entry]:
    """What a table of contents lists: each page's title, the sections of chapters, and not those of labs."""
    for article in articles:
        below = "depth-1" not in classes(article)
        for number, section in enumerate(article.iter("section")):
            heading = next((child for child in section if re.fullmatch("h[1-6]", child.tag)), None)
            if heading is None or (number and (below or int(heading.tag[1]) > levels)):
                continue
            text = _heading_content(heading)
            text.tag, text.attrib = "span", {}
            lab = int(heading.get("data-lab", 0))
            yield Entry(to_html(text), heading.get("id", ""), int(heading.tag[1]), lab)


def expect_pages(body: ET.Element) -> None:
    """Write at each reference the page that its target will have, about: with as many digits, as a rule.

    The right number takes its place once the pages stand. WeasyPrint could look for the numbers by itself, and would
    set every page again on which there is one of a later page: more than half of its time.
    """
    expected, before = {}, 0
    for element in body.iter():
        if "id" in element.attrib:
            expected[element.get("id")] = 1 + before // CHARACTERS
        before += len(element.text or "") + len(element.tail or "")
    for link in body.iter("a"):
        if "page-reference" in classes(link):
            link.set("data-page", str(expected.get(link.get("href", "")[1:], 1 + before // CHARACTERS)))


def _shift_headings(page: ET.Element, by: int) -> None:
    """Lower the headings of a document that stands below another one."""
    for element in walk(page):
        if re.fullmatch("h[1-6]", element.tag):
            element.tag = f"h{min(6, int(element.tag[1]) + by)}"


def is_empty(page: ET.Element) -> bool:
    """Whether nothing but a title is left of a document, as of a list of links."""
    text = "".join("".join(element.itertext()) for element in page if element.tag != "section")
    for section in page.iter("section"):
        text += (section.text or "") + "".join(
            (child.tail or "")
            + ("" if re.fullmatch("h[1-6]|section", child.tag) else "".join(child.itertext()) or child.tag)
            for child in section
            if child.tag != "span"
        )
    return not text.strip()


def _heading_content(heading: ET.Element) -> ET.Element:
    """A copy of a heading's content for the table of contents: no ids, no links, no notes."""
    copy = deepcopy(heading)
    copy.tail = None
    owner = parents(copy)
    for element in list(walk(copy)):
        element.attrib.pop("id", None)
        if "footnote" in classes(element):
            replace(owner[element], element, None)
        elif element.tag == "a":
            element.tag = "span"
    return copy


def _check_links(
    body: ET.Element, inside: Set[str], known: Set[str], labs: Mapping[str, int], also: Iterable[str]
) -> None:
    """Make links that leave this PDF plain text; warn of links that lead nowhere."""
    here = {element.get("id") for element in body.iter()} | {"contents", *also}
    elsewhere = {anchor(name): labs.get(name, 0) for name in known - inside}
    for article in body:
        for link in [element for element in walk(article) if element.tag == "a"]:
            href = link.get("href", "")
            if href.startswith(("http:", "https:", "mailto:")) or href[1:] in here:
                continue
            document, _, _ = href[1:].partition("--")
            if href.startswith("#") and document not in elsewhere:
                message = f'in print, <a href="{href}">{"".join(link.itertext())}</a> leads nowhere'
                logger.warning(message, location=article.get("id"), type="bookpdf")
            link.tag = "span"
            link.attrib.pop("href", None)
            named = classes(link)
            if "page-reference" in named and elsewhere.get(document):
                link.set("data-lab", str(elsewhere[document]))
                named.add("lab-reference")
            link.set("class", " ".join(sorted(named - {"page-reference"})))
