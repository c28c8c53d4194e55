"""In print, a figure that moves on the web says where."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from .print_tree import anchor, classes


def say_where_it_moves(page: ET.Element, docname: str, site: str) -> None:
    """Add the address to the caption of each figure that a reader of the web can move.

    Args:
        page: the document's body, its ids with its name.
        docname: its name.
        site: the address of the web book; if it is not one, the address counts from the book's folder.
    """
    base = f"{site.rstrip('/')}/" if site.startswith("http") else ""
    for figure in [element for element in page.iter("figure") if "explorer-figure" in classes(element)]:
        caption = figure.find("figcaption")
        name = figure.get("id", "").removeprefix(f"{anchor(docname)}--")
        if caption is not None:
            line = ET.SubElement(caption, "p", {"class": "stamp"})
            line.text = "It moves on the web: " if base else "It moves in the web book: "
            ET.SubElement(line, "code").text = f"{base}{docname}.html{'#' if name else ''}{name}"
