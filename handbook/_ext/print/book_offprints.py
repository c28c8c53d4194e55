"""The PDF of a chapter, and that of its labs: cut out of the two volumes, whose page numbers they keep."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..building.patches import drop_links_out_of
from ..cards.card_copies import interview_cards
from .book_assembly import entries
from .book_back import cited, section
from .book_front import Entry
from .print_tree import anchor, classes, to_html
from .weasy import Run, label_pages, page_numbers, write

DRILL, LABS_OF, SOURCES = "chapter-drill", "chapter-labs", "chapter-sources"  # ids of the headings
TOP = 130.0  # px: an article that begins lower shares its page with the one before


def write_chapter(
    book: Any,
    chapter: str,
    pages: list[Any],
    first: int,
    articles: list[ET.Element],
    drill: list[ET.Element],
    sources: Mapping[str, ET.Element],
    numbers: Mapping[str, int],
) -> None:
    """One chapter: a cover and contents of its own, its pages of the handbook, its drill, its labs, the works it cites.

    Args:
        book: the builder, a ``BookPdfBuilder``.
        chapter: its document.
        pages: its pages of the handbook.
        first: the number of the first.
        articles: its documents, joined.
        drill: the cards that ask about it and stand on other pages.
        sources: the works of the bibliography by id.
        numbers: the page of each id in the handbook.
    """
    project, last = book.config.project, first + len(pages) - 1
    stamp = [f"Pages {first} to {last} of {project}; the other page numbers in it are of {project}, too"]
    labs = book.labs_of(chapter)
    cards = "".join(map(to_html, drill))
    back = section("Drill", DRILL, f'<div class="two-columns even">{cards}</div>' if cards else "")
    back += section("Labs of this chapter", LABS_OF, book.lab_list(labs) if labs else "")
    back += section("Sources", SOURCES, cited([*articles, *drill], sources))
    title = book.env.titles[chapter].astext()
    _write(book, _file(chapter), title, stamp, list(entries(articles, 3)), back, [(first, pages)], numbers)


def drills(book: Any, articles: Mapping[str, ET.Element], numbers: Mapping[str, int]) -> dict[str, list[ET.Element]]:
    """The interview cards that ask about each chapter and stand elsewhere, as on a part's page of practice.

    Args:
        book: the builder, a ``BookPdfBuilder``.
        articles: the documents of the handbook by name, joined.
        numbers: the page of each id in it; the references of these cards are set to these numbers.
    """
    if "cards" not in book.env.domains:  # a book without cards
        return {}
    cards = [element for article in articles.values() for element in article.iter() if "card" in classes(element)]
    places = {element.get("id", ""): card for card in cards for element in card.iter()}  # its question bears the id
    found: dict[str, list[ET.Element]] = defaultdict(list)
    for one in interview_cards(book.env):
        place = places.get(anchor(one.docname, f"card-{one.source.id}"))
        if place is None or one.docname in book.reading_order.get(one.chapter, ()):
            continue
        for link in [link for link in place.iter("a") if "page-reference" in classes(link)]:
            if page := numbers.get(link.get("href", "")[1:]):
                link.set("data-page", str(page))
        found[one.chapter].append(place)
    return found


def write_labs(book: Any, chapter: str, document: Any, listed: list[Entry], numbers: Any) -> None:
    """The labs of one chapter, out of the pages of the companion; nothing if it has none.

    Args:
        book: the builder, a ``BookPdfBuilder``.
        chapter: the document of the chapter.
        document: the companion, laid out.
        listed: the contents of the companion.
        numbers: the page of each id in it.
    """
    labs = book.labs_of(chapter)
    if not labs:
        return
    following = dict(itertools.pairwise([name for order in book.reading_order.values() for name in order]))
    wanted: set[int] = set()
    for lab in labs:
        after = anchor(following.get(lab, ""))
        end = numbers.get(after, len(document.pages) + 1)
        shared = after in numbers and document.pages[end - 1].anchors[after][1] > TOP
        wanted |= set(range(numbers[anchor(lab)], end + shared))
    runs = [(first, [document.pages[page - 1] for page in pages]) for first, pages in _runs(sorted(wanted))]
    title = f"{book.env.titles[chapter].astext()}: labs"
    stamp = [f"Out of {book.config.bookpdf_labs_title} of {book.config.project}, whose page numbers it keeps"]
    contents = [entry for entry in listed if entry.lab in {book.labs[lab] for lab in labs}]
    _write(book, f"{_file(chapter)}-labs", title, stamp, contents, "", runs, numbers)


def _write(
    book: Any,
    name: str,
    title: str,
    stamp: list[str],
    contents: list[Entry],
    back: str,
    runs: list[tuple[int, list[Any]]],
    numbers: Any,
) -> None:
    """Put runs of pages, each with its first number, between a front and a back of their own."""
    around = book.lay_out(f"{name}.pdf", title, book.config.project, contents, back, numbers, offprint=stamp)
    places = page_numbers(around)
    split = min((places[key] for key in (DRILL, LABS_OF, SOURCES) if key in places), default=len(around.pages) + 1) - 1
    front, behind = around.pages[:split], around.pages[split:]
    pages = [page for _, run in runs for page in run]
    drop_links_out_of([*front, *pages, *behind])
    numbered: list[Run] = [(len(run), "D", first) for first, run in runs]
    labels = partial(label_pages, runs=[(split, "r", 1), *numbered, (len(behind), "r", split + 1)])
    write(around.copy([*front, *pages, *behind]), Path(book.outdir, f"{name}.pdf"), finisher=labels)


def _file(chapter: str) -> str:
    return chapter.replace("/", "-")


def _runs(pages: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Page numbers in runs without gaps."""
    for _, run in itertools.groupby(enumerate(pages), lambda pair: pair[1] - pair[0]):
        numbers = [page for _, page in run]
        yield numbers[0], numbers
