"""What stands behind the pages of a PDF: the list of labs with their pages, the sources of a chapter, and the index."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from html import escape

from .print_tree import classes, parents, replace, to_html, walk

LIST, INDEX = "list-of-labs", "book-index"  # the ids of the headings


@dataclass(frozen=True)
class LabLine:
    """A line of the list of labs."""

    number: int
    title: str
    path: str  # of its program, from the root of the project
    page: int  # in the companion; 0 if there is none


def labs_html(lines: Iterable[LabLine], companion: str) -> str:
    """The labs as a table: number, title, program, and page of the companion."""
    rows = "".join(
        f"<tr><td>{line.number}</td><td>{escape(line.title)}</td><td><code>{escape(line.path)}</code></td>"
        f"<td>{line.page or '–'}</td></tr>"
        for line in lines
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Lab", "What it shows", "Program", "Page"))
    return f'{_lead(companion)}<table class="lab-list"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def short_labs_html(lines: Iterable[LabLine], companion: str) -> str:
    """The labs by number, title and page of the companion, which names the program of each."""
    rows = "".join(
        f'<p><b>{line.number}</b> {escape(line.title)}<span class="leader"></span>{line.page or "–"}</p>'
        for line in lines
    )
    return f'{_lead(companion)}<div class="lab-lines">{rows}</div>'


def _lead(companion: str) -> str:
    return f"<p>Each lab is a program that runs alone; its page is that of <em>{escape(companion)}</em>.</p>"


def sources_of(page: ET.Element) -> dict[str, ET.Element]:
    """The works of a bibliography by id, in its order."""
    return {element.get("id", ""): element for element in walk(page) if "citation" in classes(element)}


def cited(articles: Iterable[ET.Element], sources: Mapping[str, ET.Element]) -> str:
    """The works that some pages cite, with the numbers that they have in the book."""
    links = {link.get("href", "")[1:] for article in articles for link in article.iter("a")}
    works = [_without_backrefs(work) for name, work in sources.items() if name in links]
    return f'<div class="citation-list">{"".join(to_html(work) for work in works)}</div>' if works else ""


def _without_backrefs(work: ET.Element) -> ET.Element:
    """A copy that does not say where the book cites it."""
    copy = deepcopy(work)
    owner = parents(copy)
    for element in [element for element in walk(copy) if "backrefs" in classes(element)]:
        replace(owner[element], element, None)
    return copy


def section(title: str, name: str, content: str) -> str:
    """A part of the back with its heading; nothing if there is nothing in it."""
    return f'<section class="book-back"><h1 id="{name}">{escape(title)}</h1>{content}</section>' if content else ""
