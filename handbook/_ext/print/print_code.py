"""Code in print: each line an element of its own, so that a line that wraps hangs and is marked."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from pygments.token import STANDARD_TYPES

from .print_tree import classes

SHORT_LINES = 14  # a block up to this length stays on one page
COLUMNS = 84  # of code across a page; a longer line wraps, and its continuation is marked
_NARROW = {"sd-tab-content": 64, "admonition": 60, "card": 36, "error-entry": 36}  # columns in boxes of these classes
_LISTED = 60  # and in lists
# Which of Pygments' classes look different in print: each like the first of its row. Every other token is plain text,
# and an element for each parenthesis would be half of all elements of the book.
_DISTINCT = ["k kd kn kr kc ow nt", "c c1 ch cm cs sd", "s s1 s2 sa sb se si sx", "nf nc nd fm", "m mi mf mh"]
_DISTINCT += ["gt gr err", "gi", "gd"]
PRINTED = {name: names.split()[0] for names in _DISTINCT for name in names.split()}
_PLAIN = {*STANDARD_TYPES.values()} - {*PRINTED}


def columns_in(boxes: Sequence[ET.Element]) -> int:
    """How many columns of code fit into all of these boxes, one in the other; a few less where that may vary."""
    fits = [_NARROW[name] for box in boxes for name in classes(box) & {*_NARROW}]
    return min([COLUMNS, *fits, *(_LISTED for box in boxes if box.tag in {"li", "dd", "td", "details"})])


def code_lines(pre: ET.Element, columns: int = COLUMNS) -> None:
    """Make each line of code an element of its own, so that one of more than ``columns`` can hang and be marked."""
    lines: list[ET.Element] = []
    path: list[ET.Element] = []

    def open_line(stack: list[ET.Element]) -> None:
        line = ET.Element("span", {"class": "line"})
        path[:] = [line]
        for element in stack:
            kept = {key: value for key, value in element.attrib.items() if key != "id"}
            path.append(ET.SubElement(path[-1], element.tag, kept))
        lines.append(line)

    def add(text: str | None, stack: list[ET.Element]) -> None:
        for number, part in enumerate((text or "").split("\n")):
            if number:
                open_line(stack)
            owner = path[-1]
            if len(owner):
                owner[-1].tail = (owner[-1].tail or "") + part
            else:
                owner.text = (owner.text or "") + part

    def open_token(element: ET.Element) -> ET.Element:
        kind = PRINTED.get(element.get("class", ""))
        token = ET.Element(element.tag, {**element.attrib, "class": kind} if kind else element.attrib)
        siblings = path[-1]
        if kind and len(siblings) and siblings[-1].attrib == token.attrib and not siblings[-1].tail:
            token = siblings[-1]  # a quotation mark and what it quotes are one
        else:
            siblings.append(token)
        path.append(token)
        return token

    def visit(element: ET.Element, stack: list[ET.Element]) -> None:
        add(element.text, stack)
        for child in element:
            if child.get("class") in _PLAIN:
                visit(child, stack)
            else:
                token = open_token(child)
                visit(child, [*stack, token])
                path.pop()
            add(child.tail, stack)

    open_line([])
    visit(pre, [])
    while lines and not "".join(lines[-1].itertext()).strip():
        lines.pop()
    texts = ["".join(line.itertext()) for line in lines]
    for line, text in zip(lines, texts, strict=True):
        if len(text) > columns:  # where the line does not wrap after all, the mark has no height
            hang = len(text) - len(text.lstrip()) + 4
            line.attrib |= {"class": "line long", "style": f"padding-left: {hang}ch; text-indent: -{hang}ch"}
            ET.SubElement(line, "span", {"class": "continued", "style": f"left: {hang - 1.6:.1f}ch"})
    if len(lines) <= SHORT_LINES:
        pre.set("class", f"{pre.get('class', '')} short".strip())
    pre.text = None
    pre[:] = lines
