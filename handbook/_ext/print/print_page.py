"""From a page of the web to pages of a book: what changes in one document before it is printed.

Each function takes an element tree and changes it in place.
Ids get the name of their document, so that many documents can share one PDF.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Set

from .print_code import code_lines, columns_in
from .print_dense import condense
from .print_tree import SVG, anchor, classes, parents, replace, walk

SCHEME = "bookpdf:"  # how the builder writes a link to a document, until `links` makes an anchor of it
INK = "#1F2328"
XREF_CLASSES = {"std-ref", "std-doc", "std-numref", "doc", "eqno-ref"}  # references that get a page number

_EMOJI = re.compile("([\U0001f000-\U0001faff])\ufe0f?")
_DROPPED_TAGS = {"script", "style", "button", "nav", "input", "link", "template"}
_DROPPED_CLASSES = {
    "headerlink", "copybtn", "toctree-wrapper", "no-print", "footnotes",
    "sphx-glr-download-link-note", "sphx-glr-footer", "sphx-glr-signature", "sphx-glr-timing", "sphx-glr-thumbnails",
    "sd-summary-state-marker",
}  # fmt: skip


def prepare(page: ET.Element, docname: str) -> None:
    """Everything that does not depend on which other documents are in the PDF.

    Args:
        page: the document's body; its drawings are part of it, as `figures` makes them.
        docname: its name.
    """
    drop_screen_parts(page)
    anchors_and_links(page, docname)
    footnotes(page)
    unfold(page)
    listings(page)
    drawings(page)
    mark_references(page)
    lower_ids(page)
    spell_emoji(page)
    condense(page)


def spell_emoji(page: ET.Element) -> None:
    """Write an emoji by its name: the fonts of the book have none, and gloo ends its messages with one."""
    for element in walk(page):
        element.text = _EMOJI.sub(_name_of_emoji, element.text or "")
        element.tail = _EMOJI.sub(_name_of_emoji, element.tail or "")


def _name_of_emoji(found: re.Match[str]) -> str:
    return f"<{unicodedata.name(found[1], 'emoji').lower()}>"


def drop_screen_parts(page: ET.Element, keep: Set[str] = frozenset()) -> None:
    """Remove what only a screen can use, buttons and form fields and such, but not elements of a class in ``keep``."""
    parent = parents(page)
    dropped = _DROPPED_CLASSES - keep
    for element in list(walk(page)):
        if element.tag in _DROPPED_TAGS or classes(element) & dropped:
            owner = parent.get(element)
            if owner is not None and element in list(owner):
                replace(owner, element, None)


def anchors_and_links(page: ET.Element, docname: str) -> None:
    """Prefix ids with the document's name; make every link to a document a link inside of the PDF."""
    for element in walk(page):
        if "id" in element.attrib and not element.tag.startswith(SVG):
            element.set("id", anchor(docname, element.attrib["id"]))
        href = element.get("href", "")
        if element.tag != "a" or not href:
            continue
        if href.startswith("#"):
            element.set("href", "#" + anchor(docname, href[1:]))
        elif href.startswith(SCHEME):
            other, _, target = href.removeprefix(SCHEME).partition("#")
            element.set("href", "#" + anchor(other, target))


def footnotes(page: ET.Element) -> None:
    """Move each footnote to its first reference, where the style sheet floats it to the foot of the page."""
    parent = parents(page)
    notes = {note.get("id"): note for note in walk(page) if note.get("role") == "doc-footnote"}
    placed: set[str] = set()
    for call in [element for element in walk(page) if element.get("role") == "doc-noteref"]:
        target = call.get("href", "#")[1:]
        note = notes.get(target)
        if note is None:
            continue
        number = "".join(call.itertext()).strip("[] ")
        if target in placed:
            again = ET.Element("sup", {"class": "note-again"})
            ET.SubElement(again, "a", {"href": f"#{target}"}).text = number
            replace(parent[call], call, again)
            continue
        placed.add(target)
        inline = ET.Element("span", {"class": "footnote", "data-number": number})
        for part in note:
            if not classes(part) & {"label", "backrefs"}:
                part.tag = "span" if part.tag == "p" else part.tag
                part.set("class", "note-part")
                part.tail = None
                inline.append(part)
        if len(inline):
            inline[0].set("id", target)
        replace(parent[call], call, inline)
        replace(parent[note], note, None)
    for element in list(walk(page)):
        if "footnote-list" in classes(element) and len(element) == 0:
            replace(parent[element], element, None)


def unfold(page: ET.Element) -> None:
    """Open folds; set tabs one after the other, each below its label."""
    for element in walk(page):
        names = classes(element)
        if element.tag == "details":
            element.set("open", "open")
        elif "sd-tab-label" in names:
            element.tag = "p"
            element.set("class", "tab-label")
            element.attrib.pop("for", None)
        elif "further-reading" in (element.get("id") or "") and element.tag == "section":
            element.set("class", f"{element.get('class', '')} further-reading".strip())


def listings(page: ET.Element) -> None:
    """Each line of code becomes an element; those that are longer than their place is wide are marked."""
    owner = parents(page)
    for pre in [element for element in walk(page) if element.tag == "pre"]:
        boxes = [pre]
        while boxes[-1] in owner:
            boxes.append(owner[boxes[-1]])
        code_lines(pre, columns_in(boxes))


def drawings(page: ET.Element) -> None:
    """Give each drawing a name for PDF tags, and a font that the book has."""
    for svg in [element for element in walk(page) if element.tag == f"{SVG}svg"]:
        if svg.find(f"{SVG}title") is None:
            title = ET.Element(f"{SVG}title")
            title.text = svg.get("aria-label") or "decoration"
            svg.insert(0, title)
        svg.set("color", INK)  # WeasyPrint's currentColor is black, not the colour of the text
        for element in svg.iter():
            if "style" in element.attrib:
                element.set("style", _FONT.sub(_longhand, element.attrib["style"]))


_FONT = re.compile(r"\bfont(-family)?:\s*([^;]*)")


def _longhand(match: re.Match[str]) -> str:
    """The family is one that the book has. WeasyPrint takes the first word of ``font: bold 10px …`` for the size."""
    family = "font-family: " + ("Source Code Pro" if "mono" in match[2].lower() else "Source Sans 3")
    parts = re.fullmatch(r"(.*?)(\d[\d.]*px)\s.*", match[2])
    if match[1] or parts is None:
        return family
    weight = "bold" if re.search(r"bold|[6-9]00", parts[1]) else "normal"
    style = "italic" if re.search("italic|oblique", parts[1]) else "normal"
    return f"font-size: {parts[2]}; font-weight: {weight}; font-style: {style}; {family}"


def mark_references(page: ET.Element) -> None:
    """Mark real cross references: in print they get a page number, once per paragraph and target."""
    for block in [element for element in walk(page) if element.tag in {"p", "li", "dd", "td"}]:
        seen: set[str] = set()
        for link in [element for element in walk(block) if element.tag == "a"]:
            href = link.get("href", "")
            inside = set().union(*(classes(element) for element in walk(link)))
            if href.startswith("#") and inside & XREF_CLASSES and href not in seen:
                seen.add(href)
                link.set("class", f"{link.get('class', '')} page-reference".strip())


def lower_ids(page: ET.Element) -> None:
    """Move the ids of sections and boxes to the heading or paragraph that they begin with.

    Where that goes to the next page, an empty piece of the section stays behind, and its id would stay with it.
    """
    for box in [element for element in walk(page) if element.tag in {"section", "div"}]:
        targets = list(itertools.takewhile(_is_target, box))
        first = next(iter(box[len(targets) :]), None)
        if first is None or not re.fullmatch("h[1-6]|p", first.tag) or (box.text or "").strip():
            continue
        names = [box.attrib.pop("id", ""), *(target.get("id", "") for target in targets)]
        for target in targets:
            box.remove(target)
        for name in filter(None, names):
            if "id" not in first.attrib:
                first.set("id", name)
            else:
                first.insert(0, ET.Element("span", {"id": name}))
                first[0].tail, first.text = first.text, None


def _is_target(element: ET.Element) -> bool:
    """Whether an element is only there to be linked to."""
    return (
        element.tag == "span"
        and set(element.attrib) == {"id"}
        and not "".join([*element.itertext(), element.tail or ""]).strip()
    )
