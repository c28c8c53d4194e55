"""Pages as element trees: read them, walk them, change them, write them.

What print and EPUB change in a page is in `print_page` and `book_epub`; here is what both, and the decks, need for it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from copy import deepcopy

import tinyhtml5

SVG = "{http://www.w3.org/2000/svg}"  # tags of drawings begin with it; other tags have no name space


def parse(body: str) -> ET.Element:
    """The element tree of a document's rendered body, in one ``div``."""
    root: ET.Element = tinyhtml5.parse(f"<!doctype html><body>{body}", namespace_html_elements=False)
    page = next(root.iter("body"))
    page.tag = "div"
    for child, parent in parents(page).items():
        if not isinstance(child.tag, str):  # a comment: not for readers, and no tag for those who walk the tree
            replace(parent, child, None)
    return page


def walk(root: ET.Element) -> Iterator[ET.Element]:
    """Every element in document order, without what is inside of SVG."""
    yield root
    if not root.tag.startswith(SVG):
        for child in list(root):
            yield from walk(child)


def classes(element: ET.Element) -> set[str]:
    """The classes of an element."""
    return set(element.get("class", "").split())


def parents(root: ET.Element) -> dict[ET.Element, ET.Element]:
    """The parent of each element."""
    return {child: parent for parent in root.iter() for child in parent}


def replace(parent: ET.Element, old: ET.Element, new: ET.Element | None) -> None:
    """Put ``new`` in the place of ``old``, or nothing; the text that follows stays."""
    index = list(parent).index(old)
    if new is not None:
        new.tail = old.tail
        parent[index] = new
        return
    tail = old.tail or ""
    parent.remove(old)
    if index:
        parent[index - 1].tail = (parent[index - 1].tail or "") + tail
    else:
        parent.text = (parent.text or "") + tail


def anchor(docname: str, target: str = "") -> str:
    """The id, in a PDF, of a document or of a target in it."""
    key = docname.replace("/", "-")
    return f"{key}--{target}" if target else key


def to_html(root: ET.Element) -> str:
    """HTML of a tree that `parse` made; SVG loses its name spaces, which HTML supplies."""
    plain = deepcopy(root)
    for element in plain.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            value = element.attrib.pop(name)
            if "xmlns" not in name:
                element.set(name.rpartition("}")[2], value)
    return ET.tostring(plain, encoding="unicode", method="html")
