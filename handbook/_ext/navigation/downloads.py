"""``{downloads}``: the other forms of the book, with a link to each that has been built, and how to build the others.

``{deck-links} setup interview-run`` does the same for these decks, by their titles.
The html build makes none of them. So the list is filled in when a build is finished, and again by the Makefile when
another form is (``python downloads.py _build``, which is why this file imports nothing of ours): what is there is put
beside the pages and linked, so that no link is dead, wherever the folder of the pages is served from.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from filelock import FileLock

FOLDER = "_downloads/book"  # beside the pages
_MIB = 2**20
_MARKED = re.compile(r"<!-- downloads -->.*?<!-- /downloads -->", re.DOTALL)
_DECKS = re.compile(r"<!-- decks (\[.*?\]) -->.*?<!-- /decks -->", re.DOTALL)
# What a form is called, the habit that builds it, and its files in the folder of builds.
FORMS = (
    ("The book as a PDF", "pdf", ("pdf/ddp-handbook.pdf", "pdf/ddp-labs.pdf")),
    ("A PDF for each chapter, and one of its labs", "pdf", ("pdf/*-*.pdf",)),
    ("An EPUB for e-readers", "epub", ("epub/ddp-handbook.epub",)),
    ("Slides with notes", "slides", ("slides/*.pdf",)),
    ("Flashcards for Anki", "anki", ("anki/ddp-handbook.apkg",)),
)


def fill(builds: Path, pages: Path, with_decks: list[Path] | None = None) -> None:
    """Put what has been built beside the pages, and list it on the front page, and decks where pages name them.

    Args:
        builds: the folder with one folder per form.
        pages: the folder of the built pages.
        with_decks: the pages that name decks, if they are known; else all are searched.
    """
    front = pages / "index.html"
    text = front.read_text(encoding="utf-8") if front.is_file() else ""
    if not _MARKED.search(text):
        return
    with FileLock(builds / "listing.lock"):  # forms may be finished at the same time
        shutil.rmtree(pages / FOLDER, ignore_errors=True)
        listed = f'<!-- downloads --><ul class="downloads">{"".join(_forms(builds, pages))}</ul><!-- /downloads -->'
        _replace(front, text, _MARKED.sub(lambda _: listed, text))
        for page in pages.glob("*/*.html") if with_decks is None else with_decks:
            text = page.read_text(encoding="utf-8")
            _replace(page, text, _DECKS.sub(partial(_decks, builds, pages), text))


def _replace(page: Path, text: str, filled: str) -> None:
    if filled != text:
        page.write_text(filled, encoding="utf-8")


def _forms(builds: Path, pages: Path) -> Iterator[str]:
    taken: set[Path] = set()
    for title, habit, patterns in FORMS:
        found = [path for pattern in patterns for path in sorted(builds.glob(pattern)) if path not in taken]
        taken |= set(found)
        links = ", ".join(_link(path, pages) for path in found)
        links = links or f'not built here; <code class="literal">make {habit}</code> does'
        yield f"<li><strong>{escape(title)}</strong>: {links}</li>"


def _decks(builds: Path, pages: Path, marked: re.Match[str]) -> str:
    """One line on the decks of a page in a folder: their slides, and the same with notes."""
    listed, missing = [], False
    for name, title in json.loads(marked[1]):
        slides, notes = (builds / "slides" / f"{name}{ending}.pdf" for ending in ("", "-notes"))
        if slides.is_file() and notes.is_file():
            listed.append(f"{_link(slides, pages, '../', title)} ({_link(notes, pages, '../', 'notes')})")
        else:
            listed.append(escape(title))
            missing = True
    todo = '; <code class="literal">make slides</code> builds them' if missing else ""
    line = f'<p class="deck-links"><strong>Decks</strong> of this part: {", ".join(listed)}{todo}.</p>'
    return f"<!-- decks {marked[1]} -->{line}<!-- /decks -->"


def _link(path: Path, pages: Path, up: str = "", text: str = "") -> str:
    target = pages / FOLDER / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another file system: copied
        os.link(path, target)
    if not target.exists():
        shutil.copy2(path, target)
    facts = path.stat()
    about = f"{max(0.1, facts.st_size / _MIB):.1f} MiB, {time.strftime('%Y-%m-%d', time.gmtime(facts.st_mtime))}"
    shown = escape(text or path.name)
    return f'<a class="download" href="{up}{FOLDER}/{escape(path.name)}" title="{about}">{shown}</a>'


def setup(app: Any) -> dict[str, Any]:
    """Register the directives, and fill their lists in when pages have been written."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    from ..problems import warn_at

    class Downloads(SphinxDirective):
        """Takes no argument."""

        def run(self) -> list[nodes.Node]:
            """Leave the place of the list on the web; elsewhere, say that there are other forms."""
            return [nodes.raw("", "<!-- downloads --><!-- /downloads -->", format="html")]

    class DeckLinks(SphinxDirective):
        """Takes the names of decks: files of ``slides`` without their ending."""

        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            """Leave the place of the line on the web, with the titles that the decks have."""
            decks = []
            for name in self.arguments[0].split():
                source = Path(self.env.app.confdir, "slides", f"{name}.md")
                text = source.read_text(encoding="utf-8") if source.is_file() else ""
                found = re.search("^# (.+)", text, re.MULTILINE)
                if found:
                    self.env.note_dependency(source)
                    decks.append((name, found[1].strip()))
                else:
                    warn_at(self.env, f"deck-links: there is no deck {name!r} in slides", self.lineno)
            self.env.metadata[self.env.docname]["decks"] = True
            return [nodes.raw("", f"<!-- decks {json.dumps(decks)} --><!-- /decks -->", format="html")]

    def finish(app: Any, exception: Exception | None) -> None:
        if exception is None and app.builder.name == "html":
            named = [name for name, facts in app.env.metadata.items() if "decks" in facts]
            fill(Path(app.confdir, "_build"), Path(app.outdir), [Path(app.outdir, f"{name}.html") for name in named])

    app.add_directive("downloads", Downloads)
    app.add_directive("deck-links", DeckLinks)
    app.connect("build-finished", finish)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    fill(Path(sys.argv[1]), Path(sys.argv[1], "html"))
