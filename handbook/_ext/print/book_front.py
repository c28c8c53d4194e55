"""What stands before the pages of a PDF: its cover, with the facts of the edition, and its table of contents."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evidence.lab_source import read_json


@dataclass(frozen=True)
class Entry:
    """A line of a table of contents: what it says, as HTML, and the id that it leads to."""

    text: str
    id: str
    level: int
    lab: int = 0


def book_html(
    title: str,
    series: str,
    stamp: list[str],
    contents: list[Entry],
    body: str,
    config: Any,
    numbers: Any,
    *,
    offprint: bool = False,
    licence: str = "",
) -> str:
    """The HTML of one PDF: cover, page of rights, table of contents, and the pages.

    Args:
        title: the title.
        series: what it is a part of; the book itself has a subtitle instead.
        stamp: the lines about its edition.
        contents: the lines of the table of contents.
        body: the pages as HTML.
        config: Sphinx's configuration.
        numbers: the page of each id of ``contents``.
        offprint: the pages keep the numbers that they have in the book, so those before them have Roman ones.
        licence: what may be done with text and code, in paragraphs; it stands behind the cover.
    """
    escape = html.escape
    about = "".join(f"<p>{escape(line)}</p>" for line in stamp)
    cover = f'<p class="series">{escape(series)}</p>' if series else ""
    cover += f'<p class="title">{escape(title)}</p>'
    cover += f'<p class="subtitle">{escape(config.bookpdf_subtitle)}</p>' if not series else ""
    cover += f'<p class="author">{escape(config.author)}</p><div class="edition">{about}</div>'
    head = f"<title>{escape(title)}{' · ' + escape(series) if series else ''}</title>"
    head += f'<meta name="author" content="{escape(config.author)}"><meta name="generator" content="Sphinx">'
    running = f"{series}: {title}" if series and not offprint else series or title
    lines = ""
    for entry in contents:
        page = f' data-page="{numbers[entry.id]}"'
        lab = f' data-lab="{entry.lab}"' if entry.lab else ""
        kind = f"level-{entry.level}{' lab' if entry.lab else ''}"
        lines += f'<li class="{kind}"><a href="#{entry.id}"{page}{lab}>{entry.text}</a></li>'
    kind = "contents offprint" if offprint else "contents"
    return (
        f'<!doctype html><html lang="{escape(config.language or "en")}"><head>{head}</head>'
        f'<body data-book="{escape(running)}">'
        f'<header class="cover">{cover}</header>{_rights(title, config, stamp, licence)}'
        f'<section class="{kind}" id="contents">'
        f"<h1>Contents</h1><ol>{lines}</ol></section>{body}</body></html>"
    )


def back_html(content: str, first: int, config: Any, *, left: bool = False) -> str:
    """The HTML of the pages behind those of the book, the first of which has the number ``first``.

    With ``left`` that is an empty page, and what follows begins on a left one.
    """
    start = f"<style>@page :first {{ counter-reset: page {first} }}</style>"
    language = html.escape(config.language or "en")
    body = f"{'<p></p>' if left else ''}{content}"
    book = html.escape(config.project)
    return f'<!doctype html><html lang="{language}"><head>{start}</head><body data-book="{book}">{body}</body></html>'


def _rights(title: str, config: Any, stamp: list[str], licence: str) -> str:
    """Who holds the rights, and what a reader may do; nothing for a book that does not say."""
    if not licence:
        return ""
    lines = [f"{title}. © {config.copyright}.", *filter(None, map(str.strip, licence.split("\n\n"))), " · ".join(stamp)]
    words = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    return f'<section class="rights">{words}</section>'


def cover_lines(config: Any, folder: Path) -> list[str]:
    """What the cover says about the edition: the facts of its manifest, a file named from ``folder``.

    Not the day of the build: the same sources make the same bytes.
    """
    manifest = Path(folder, config.bookpdf_manifest) if config.bookpdf_manifest else None
    lines = [f"Version {config.release}"] if config.release else []
    return [*lines, *(manifest_lines(read_json(manifest)) if manifest and manifest.exists() else [])]


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
