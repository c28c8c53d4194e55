"""Words that print does not divide: addresses, paths, names of code, and options of a command."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from .print_tree import SVG, classes, parents

_WORD = r"[^\s\N{NO-BREAK SPACE}]*"
# In prose: an address, a path, a call, an underscore, or capitals inside, as in BatchNorm. It wraps without a hyphen.
_NAME = re.compile(rf"{_WORD}(?:://|\w/\w|\w\w\.\w\w|_|\w\(|[a-z][A-Z]|[A-Z]{{5}}){_WORD}")
# In code: an option, which is in one piece wherever it fits on a line. WeasyPrint would break at any of its hyphens.
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z]\w*(?:-\w+)*(?:=[\w.:@/]{1,16}(?![\w.:@/$-]))?")
_CODE = {"code", "pre", "kbd", "samp"}
LONGEST = 40  # a word above this many characters may break anywhere
_LONG = re.compile(rf"{_OPTION.pattern}|\S{{{LONGEST + 1},}}")  # in code: also a word that no column of two can hold


def keep_words(page: ET.Element) -> None:
    """Mark the words of a document that stay in one piece; the style sheet keeps them so."""
    parent = parents(page)
    inside: dict[ET.Element, bool] = {}
    for element in list(page.iter()):
        owner = parent.get(element)
        code = element.tag in _CODE or (owner is not None and inside.get(owner, False))
        inside[element] = code
        if element.tag.startswith(SVG) or "footnote" in classes(element):
            continue
        if "pre" not in classes(element):
            _mark(element, None, element.text, code=code)
        elif element.text and _OPTION.match(element.text) and len(element.text) <= LONGEST:
            element.set("class", "pre option")
        if owner is not None and not owner.tag.startswith(SVG):
            _mark(owner, element, element.tail, code=inside[owner])


def _mark(owner: ET.Element, after: ET.Element | None, text: str | None, *, code: bool) -> None:
    """Put each such word of a text, which stands at the start of ``owner`` or ``after`` a child, in an element."""
    found = list((_LONG if code else _NAME).finditer(text or ""))
    if not text or not found:
        return
    marked: list[ET.Element] = []
    for match, following in zip(found, [*found[1:], None], strict=True):
        kind = ("option" if len(match[0]) <= LONGEST else "long") if code else "name"
        word = ET.Element("span", {"class": kind})
        word.text = match[0]
        word.tail = text[match.end() : following.start() if following else None]
        marked.append(word)
    place = 0 if after is None else list(owner).index(after) + 1
    if after is None:
        owner.text = text[: found[0].start()]
    else:
        after.tail = text[: found[0].start()]
    owner[place:place] = marked
