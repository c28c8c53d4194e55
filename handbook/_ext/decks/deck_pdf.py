"""A deck as PDF, without a browser: one slide a page, and a handout with each slide above what the speaker says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from copy import deepcopy
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

from sphinx.util import logging

from ..print.print_tree import classes, parse, to_html
from ..print.weasy import Sheets, set_pdf

logger = logging.getLogger(__name__)

_ANCHOR = "pdf-page-"
_VARIABLE = re.compile(r"var\(--[\w-]+,\s*([^()]*)\)")
_TWO_SCHEMES = re.compile(r"light-dark\(([^,()]+),[^()]*\)")


@dataclass(frozen=True)
class Slide:
    """One slide of a deck: a ``section`` without notes, and the notes in a ``div``."""

    section: ET.Element
    notes: ET.Element

    @property
    def title(self) -> str:
        """The text of its heading."""
        headings = (element for element in self.section.iter() if re.fullmatch("h[1-6]", element.tag))
        return " ".join("".join(next(headings, ET.Element("h1")).itertext()).split())


def read_slides(page: str) -> list[Slide]:
    """The slides of a reveal.js page in the order in which they are shown; stacks are flattened.

    A slide is a ``section`` without sections in it. Fragments are part of it; hidden slides are left out.
    """
    slides = next(element for element in parse(page).iter("div") if "slides" in classes(element))
    return [_slide(section) for section in slides.iter("section") if _is_shown(section)]


def read_footer(page: str) -> str:
    """What stands below every slide of a reveal.js page; "" if nothing does."""
    found = re.search('<p class="deck-footer">(.*?)</p>', page)
    return unescape(found[1]) if found else ""


def _is_shown(section: ET.Element) -> bool:
    has_slides = any(element is not section for element in section.iter("section"))
    return not has_slides and section.get("data-visibility") != "hidden"


def _slide(section: ET.Element) -> Slide:
    section, notes = deepcopy(section), ET.Element("div", {"class": "notes"})
    for parent in list(section.iter()):
        for aside in [child for child in parent if child.tag == "aside" and "notes" in classes(child)]:
            parent.remove(aside)
            notes.extend(aside)
    for listed in section.iter("ol"):
        if "start" in listed.attrib:  # WeasyPrint does not read it
            listed.set("style", f"counter-reset: list-item {int(listed.attrib['start']) - 1}")
    return Slide(section, notes)


def make(page: Path, slides_pdf: Path, handout_pdf: Path, static: Path) -> None:
    """Write both PDFs of the deck whose HTML is ``page``.

    Args:
        page: the reveal.js page.
        slides_pdf: one slide a page, 16:9.
        handout_pdf: A4, slides with their notes, two on a page where the notes leave room.
        static: the folder with ``deck.css``, ``deck-print.css`` and the fonts.
    """
    text = page.read_text(encoding="utf-8")
    slides, footer = read_slides(text), read_footer(text)
    title = slides[0].title if slides else page.stem
    styles = sheets(static)
    document = _set(slides_pdf, title, "deck", [to_html(slide.section) for slide in slides], slides, styles, footer)
    _check(document, slides, slides_pdf)
    sides = [_handout_side(slide, place, len(slides)) for place, slide in enumerate(slides, 1)]
    _set(handout_pdf, f"{title}: slides and notes", "handout", sides, slides, styles, footer)


def sheets(static: Path) -> Sheets:
    """The style sheets of both PDFs, from the folder that has them and the fonts."""
    names = ("math.css", "deck.css", "deck-print.css")
    return tuple((static / name, light((static / name).read_text(encoding="utf-8"))) for name in names)


def _handout_side(slide: Slide, place: int, count: int) -> str:
    section = deepcopy(slide.section)
    section.attrib.pop("id", None)
    number = f'<p class="side-number">{place} / {count}</p>'
    return f'<article><div class="sheet">{to_html(section)}</div>{number}{to_html(slide.notes)}</article>'


def _set(
    target: Path, title: str, kind: str, pages: list[str], slides: list[Slide], sheets: Sheets, footer: str
) -> Any:
    body = "".join(
        f'<div class="pdf-page {_kind(slide)}" id="{_ANCHOR}{place}">{page}</div>'
        for place, (page, slide) in enumerate(zip(pages, slides, strict=True), 1)
    )
    slides_of = f'<div class="slides" data-footer="{escape(footer, quote=True)}">{body}</div>'
    body = f'<body class="{kind}"><div class="reveal">{slides_of}</div></body>'
    head = f"<head><title>{escape(title)}</title></head>"
    return set_pdf(f'<!doctype html><html lang="en">{head}{plain_svg(body)}</html>', sheets, target)


def _kind(slide: Slide) -> str:
    """Which named page of ``deck-print.css`` the slide is set on."""
    kinds = {"deck-title": "page-title", "deck-part": "page-part", "deck-question": "page-part"}
    return next((kinds[name] for name in classes(slide.section) if name in kinds), "page-plain")


def _check(document: Any, slides: list[Slide], target: Path) -> None:
    """Warn of slides that run over into a second page."""
    seen: set[str] = set()
    for page in document.pages:
        for anchor in [anchor for anchor in page.anchors if anchor.startswith(_ANCHOR)]:
            if anchor in seen:
                title = slides[int(anchor.removeprefix(_ANCHOR)) - 1].title
                logger.warning("%s: the slide %r does not fit on its page; shorten it", target.name, title)
            seen.add(anchor)


def light(css: str) -> str:
    """The light one of the two schemes: WeasyPrint does not know ``light-dark()``."""
    return _TWO_SCHEMES.sub(r"\1", css)


def plain_svg(page: str) -> str:
    """Custom properties in SVG replaced by what they fall back to, and the colour of text by ink: it knows neither."""
    page = page.replace("var(--figure-font, sans-serif)", "'Source Sans 3'").replace("currentColor", "#1f2328")
    return _VARIABLE.sub(r"\1", page)
