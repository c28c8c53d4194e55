"""The index at the back of the book, made from the pages: words of the glossary, names of code, and messages.

A word counts where it is discussed, that is in the sections that say it most; a page is found by an id on the word.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import count

from .print_tree import SVG, classes, parents

MOST_PLACES = 6  # of one word: the sections that say it most
LEAST = 3  # times that a section says a word of prose; a heading, or a definition, counts as often
MESSAGE_LETTERS = 48
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+")
_API = re.compile(r"(?:[A-Za-z]\w*\.)*(?:[a-z]+_\w+|[A-Z][a-z]+\w*[A-Z]\w+|[a-z]\w+(?=\())")
_OPTION = re.compile(r"--[a-z]+(?:-[a-z]+)*")
_PREFIX = re.compile(r"^(?:torch\.distributed|torch|dist|self|model|ddp|nn)\.")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Warning|Exception)\w*: (?=.{12})")
_BLOCKS = {"p", "li", "dd", "td", "dt"}


@dataclass
class Item:
    """A word of the index, and the ids of its places."""

    word: str
    code: bool
    main: set[str] = field(default_factory=set)  # where it is defined, or is the heading
    places: set[str] = field(default_factory=set)


def index_items(articles: list[ET.Element]) -> list[Item]:
    """Find the words of the index, and give each of their places an id.

    Args:
        articles: the pages of the book, with ids.

    Returns:
        The items in alphabetical order.
    """
    terms = {_plain(term).lower(): _plain(term) for article in articles for term in _glossary(article)}
    told = re.compile(rf"\b({'|'.join(map(re.escape, sorted(terms, key=len, reverse=True))) or '(?!)'})s?\b")
    items: dict[str, Item] = {}
    said: dict[str, Counter[str]] = defaultdict(Counter)  # word → section → times
    first: dict[tuple[str, str], ET.Element] = {}
    numbers = count(1)
    for article in articles:
        for term in _glossary(article):
            word = _plain(term)
            items.setdefault(word, Item(word, code=False)).main.add(_id(term, numbers))
        reference = article.get("id", "").startswith(("reference-", "repair-errors", "index"))
        for section, element, text, heading in _passages(article):
            if "error-message" in section:
                if word := _message(element):
                    items.setdefault(word, Item(word, code=True)).main.add(_id(element, numbers))
                continue
            if reference:
                continue
            code = element.tag == "code"
            words = _names(text) if code else [terms[found] for found in told.findall(text.lower())]
            for word in words:
                items.setdefault(word, Item(word, code))
                said[word][section] += LEAST if heading else 1
                first.setdefault((word, section), element)
    for word, sections in said.items():
        least = 1 if items[word].code else LEAST
        most = [section for section, times in sections.most_common(MOST_PLACES) if times >= least]
        if items[word].code and len(sections) < 2 and sections.total() < LEAST:
            continue
        items[word].places |= {_id(first[word, section], numbers) for section in most}
    found = [item for item in items.values() if item.main or item.places]
    return sorted(found, key=lambda item: (_letters(item.word), item.word))


def index_html(items: list[Item], numbers: Mapping[str, int]) -> str:
    """The items below their letters, each with its pages; a page that defines a word is in bold."""
    lines, letter = "", ""
    for item in items:
        initial = (_letters(item.word) or "#")[0].upper()
        if initial != letter:
            letter = initial
            lines += f'<p class="index-letter">{escape(letter)}</p>'
        main = {numbers[place] for place in item.main if place in numbers}
        pages = sorted(main | {numbers[place] for place in item.places if place in numbers})
        listed = ", ".join(f"<b>{page}</b>" if page in main and not item.code else str(page) for page in pages)
        word = f"<code>{escape(item.word)}</code>" if item.code else escape(item.word)
        lines += f"<p>{word} {listed}</p>" if pages else ""
    return f'<div class="book-index">{lines}</div>'


def _passages(article: ET.Element) -> Iterator[tuple[str, ET.Element, str, bool]]:
    """Of each heading, paragraph and literal in prose: section, element, what it says, whether it is a heading."""
    parent = parents(article)
    section = article.get("id", "")
    for element in article.iter():
        if element.tag in {"h1", "h2", "h3"}:
            section = element.get("id", section)
            yield section, element, _plain(element), True
        if element.tag == "pre" and "error-message" in _around(element, parent):
            yield f"{section} error-message", element, _plain(element), False
        elif element.tag == "code" and not _inside_pre(element, parent):
            heading = parent.get(element) is not None and parent[element].tag in {"h1", "h2", "h3"}
            yield section, element, _plain(element), heading
        elif element.tag in _BLOCKS and not any(child.tag in _BLOCKS for child in element):
            yield section, element, _plain(element), False


def _around(element: ET.Element, parent: Mapping[ET.Element, ET.Element]) -> set[str]:
    """The classes of the boxes around a listing."""
    box = parent.get(element)
    outer = parent.get(box) if box is not None else None
    return (classes(box) if box is not None else set()) | (classes(outer) if outer is not None else set())


def _inside_pre(element: ET.Element, parent: Mapping[ET.Element, ET.Element]) -> bool:
    owner = parent.get(element)
    return owner is not None and (owner.tag == "pre" or _inside_pre(owner, parent))


def _glossary(article: ET.Element) -> Iterator[ET.Element]:
    for listed in article.iter("dl"):
        if "glossary" in classes(listed):
            yield from listed.iter("dt")


def _names(text: str) -> list[str]:
    """Variables, options and names of an API in a literal."""
    name = _PREFIX.sub("", text.partition("(")[0])
    if match := _VARIABLE.match(text):
        return [match[0]]
    if match := _OPTION.match(text):
        return [match[0]]
    if _API.fullmatch(name) or (text.endswith(")") and "(" in text and re.fullmatch(r"[A-Za-z][\w.]*", name)):
        return [name] if len(name) > 3 else []
    return []


def _message(pre: ET.Element) -> str:
    """The beginning of a message, without the name of the exception, under which nobody would look."""
    lines = [_plain(line) for line in pre if "line" in classes(line)] or _plain(pre).splitlines()
    line = next((line.strip() for line in lines if line.strip()), "")
    line = _EXCEPTION.sub("", line)
    short = line[:MESSAGE_LETTERS].rpartition(" ")[0] or line[:MESSAGE_LETTERS]
    return line if len(line) <= MESSAGE_LETTERS else f"{short} …"


def _id(element: ET.Element, numbers: Iterator[int]) -> str:
    """The id of an element; it gets one with the next number if it has none."""
    if "id" not in element.attrib:
        element.set("id", f"index-{next(numbers)}")
    return element.attrib["id"]


def _letters(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _plain(element: ET.Element) -> str:
    """The words of an element, without drawings."""
    if element.tag.startswith(SVG):
        return ""
    text = (element.text or "") + "".join(_plain(child) + (child.tail or "") for child in element)
    return text if element.tag == "pre" else text.replace("\N{SOFT HYPHEN}", "")
