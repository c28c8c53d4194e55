"""One PDF from many pages: cover, table of contents, and the pages, linked among themselves."""

from __future__ import annotations

import datetime
import html
import os
import re
import xml.etree.ElementTree as ET
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.util import logging

from labs import read_json
from print_page import heading_content, shift_headings
from print_tree import anchor, classes, to_html, walk

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """One document, ready to print."""

    docname: str
    depth: int  # 1: a chapter; 2: a lab of it, or a page below it
    body: ET.Element
    is_lab: bool = False


def assemble(
    title: str, subtitle: str, stamp: list[str], pages: list[Page], known: set[str], toc_levels: int, config: Any
) -> str:
    """The HTML of one PDF: cover, table of contents, and the pages, linked among themselves only."""
    body = ET.Element("div")
    for page in pages:
        copy = deepcopy(page.body)
        copy.tag = "article"
        copy.attrib = {"class": f"page depth-{page.depth}{' lab' if page.is_lab else ''}", "id": anchor(page.docname)}
        shift_headings(copy, page.depth - 1)
        body.append(copy)
    _check_links(body, {page.docname for page in pages}, known)
    escape = html.escape
    about = "".join(f"<p>{escape(line)}</p>" for line in stamp)
    above = f'<p class="series">{escape(subtitle)}</p>' if subtitle else ""
    cover = f'<header class="cover">{above}<p class="title">{escape(title)}</p>'
    cover += f'<p class="subtitle">{escape(config.bookpdf_subtitle)}</p>' if not subtitle else ""
    cover += f'<p class="author">{escape(config.author)}</p><div class="edition">{about}</div></header>'
    head = f"<title>{escape(title)}{' · ' + escape(subtitle) if subtitle else ''}</title>"
    head += f'<meta name="author" content="{escape(config.author)}"><meta name="generator" content="Sphinx">'
    language = escape(config.language or "en")
    contents = _contents(body, toc_levels)
    pages_html = to_html(body)
    return (
        f'<!doctype html><html lang="{language}"><head>{head}</head><body>{cover}{contents}{pages_html}</body></html>'
    )


def _contents(body: ET.Element, levels: int) -> str:
    """The table of contents; the style sheet adds leaders and page numbers."""
    entries = []
    for article in body:
        below, lab = "depth-1" not in classes(article), "lab" in classes(article)
        for number, section in enumerate(article.iter("section")):
            heading = next((child for child in section if re.fullmatch("h[1-6]", child.tag)), None)
            if heading is None or (number and (below or int(heading.tag[1]) > levels)):
                continue  # every page's title is listed; the sections of chapters are, those of labs are not
            text = heading_content(heading)
            text.tag, text.attrib = "a", {"href": "#" + (section.get("id") or "")}
            kind = f"level-{heading.tag[1]}{' lab' if lab else ''}"
            entries.append(f'<li class="{kind}">{to_html(text)}</li>')
    return f'<section class="contents" id="contents"><h1>Contents</h1><ol>{"".join(entries)}</ol></section>'


def _check_links(body: ET.Element, inside: set[str], known: set[str]) -> None:
    """Make links that leave this PDF plain text; complain about links that lead nowhere."""
    here = {element.get("id") for element in body.iter()} | {"contents"}
    elsewhere = {anchor(name) for name in known - inside}
    for article in body:
        for link in [element for element in walk(article) if element.tag == "a"]:
            href = link.get("href", "")
            if href.startswith(("http:", "https:", "mailto:")) or href[1:] in here:
                continue
            document, _, _ = href[1:].partition("--")
            if href.startswith("#") and document not in elsewhere:
                source = f'<a href="{href}">{"".join(link.itertext())}</a>'
                logger.warning("print: a link leads nowhere: %s", source, location=article.get("id"), type="bookpdf")
            link.tag = "span"
            link.attrib.pop("href", None)
            link.set("class", link.get("class", "").replace("page-reference", ""))


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
