"""One PDF from many pages: cover, table of contents, and the pages, linked among themselves."""

from __future__ import annotations

import datetime
import html
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.util import logging

from ..evidence.labs import read_json
from .print_page import heading_content, shift_headings
from .print_tree import anchor, classes, to_html, walk

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """One document, ready to print."""

    docname: str
    depth: int  # 1: a chapter; 2: a page below it, or a lab
    body: ET.Element
    lab: int = 0  # the number of a lab


@dataclass(frozen=True)
class Entry:
    """A line of a table of contents: what it says, as HTML, and the id that it leads to."""

    text: str
    id: str
    level: int
    lab: int = 0


def join(pages: list[Page], known: Set[str], labs: Mapping[str, int]) -> ET.Element:
    """The pages of one PDF, linked among themselves only. The bodies of ``pages`` become part of it.

    Args:
        pages: what the PDF holds.
        known: all documents; a link to one that is not in this PDF becomes plain text.
        labs: the number of each lab, which takes the place of a page number where the lab is not in this PDF.
    """
    body = ET.Element("div")
    for page in pages:
        article = page.body
        article.tag = "article"
        kind = f"page depth-{page.depth}{' lab' if page.lab else ''}"
        article.attrib = {"class": kind, "id": anchor(page.docname)}
        shift_headings(article, page.depth - 1)
        if page.lab and (heading := next(article.iter("h2"), None)) is not None:
            heading.set("data-lab", str(page.lab))
        body.append(article)
    _check_links(body, {page.docname for page in pages}, known, labs)
    return body


def entries(articles: list[ET.Element], levels: int) -> Iterator[Entry]:
    """What a table of contents lists: each page's title, the sections of chapters, and not those of labs."""
    for article in articles:
        below = "depth-1" not in classes(article)
        for number, section in enumerate(article.iter("section")):
            heading = next((child for child in section if re.fullmatch("h[1-6]", child.tag)), None)
            if heading is None or (number and (below or int(heading.tag[1]) > levels)):
                continue
            text = heading_content(heading)
            text.tag, text.attrib = "span", {}
            lab = int(heading.get("data-lab", 0))
            yield Entry(to_html(text), heading.get("id", ""), int(heading.tag[1]), lab)


def book_html(
    title: str, series: str, stamp: list[str], contents: list[Entry], body: str, config: Any, numbers: Any = None
) -> str:
    """The HTML of one PDF: cover, table of contents, and the pages.

    Args:
        title: the title.
        series: what it is a part of; the book itself has a subtitle instead.
        stamp: the lines about its edition.
        contents: the lines of the table of contents.
        body: the pages as HTML.
        config: Sphinx's configuration.
        numbers: the page of each id of ``contents`` if the pages are not in this HTML; else the style sheet knows.
    """
    escape = html.escape
    about = "".join(f"<p>{escape(line)}</p>" for line in stamp)
    cover = f'<p class="series">{escape(series)}</p>' if series else ""
    cover += f'<p class="title">{escape(title)}</p>'
    cover += f'<p class="subtitle">{escape(config.bookpdf_subtitle)}</p>' if not series else ""
    cover += f'<p class="author">{escape(config.author)}</p><div class="edition">{about}</div>'
    head = f"<title>{escape(title)}{' · ' + escape(series) if series else ''}</title>"
    head += f'<meta name="author" content="{escape(config.author)}"><meta name="generator" content="Sphinx">'
    lines = ""
    for entry in contents:
        page = f' data-page="{numbers[entry.id]}"' if numbers else ""
        lab = f' data-lab="{entry.lab}"' if entry.lab else ""
        kind = f"level-{entry.level}{' lab' if entry.lab else ''}"
        lines += f'<li class="{kind}"><a href="#{entry.id}"{page}{lab}>{entry.text}</a></li>'
    kind = "contents offprint" if numbers else "contents"
    return (
        f'<!doctype html><html lang="{escape(config.language or "en")}"><head>{head}</head><body>'
        f'<header class="cover">{cover}</header><section class="{kind}" id="contents">'
        f"<h1>Contents</h1><ol>{lines}</ol></section>{body}</body></html>"
    )


def _check_links(body: ET.Element, inside: Set[str], known: Set[str], labs: Mapping[str, int]) -> None:
    """Make links that leave this PDF plain text; warn of links that lead nowhere."""
    here = {element.get("id") for element in body.iter()} | {"contents"}
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


def cover_lines(config: Any, folder: Path) -> list[str]:
    """What the cover says about the edition: the facts of its manifest, a file named from ``folder``."""
    manifest = Path(folder, config.bookpdf_manifest) if config.bookpdf_manifest else None
    lines = [f"Version {config.release}"] if config.release else []
    lines += manifest_lines(read_json(manifest)) if manifest and manifest.exists() else []
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    today = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date() if epoch else datetime.date.today()
    return [*lines, f"Set on {today.isoformat()}"]


def manifest_lines(manifest: dict[str, Any]) -> list[str]:
    """What a reader wants to know about where the outputs come from."""
    machine = manifest.get("machine") or {}
    hardware = " and ".join(manifest.get("gpus") or ())
    hardware = hardware or (f"{machine['cpu']}, {machine.get('cores')} cores" if machine.get("cpu") else "")
    versions = [f"torch {version}" for version in manifest.get("torch") or ()]
    versions += [f"CUDA {machine['cuda']}"] if manifest.get("gpus") and machine.get("cuda") else []
    versions += [f"NCCL {version}" for version in manifest.get("nccl") or ()]
    versions += [f"Python {machine['python']}"] if machine.get("python") else []
    first, last = (date[:10] for date in manifest.get("dates") or ("", ""))
    executed = f"Executed {first}" if first == last else f"Executed {first} to {last}"
    lines = [f"Edition {manifest['edition']}" if manifest.get("edition") else "", hardware, " · ".join(versions)]
    return [line for line in [*lines, executed if first else ""] if line]
