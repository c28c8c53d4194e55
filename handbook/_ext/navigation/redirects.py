"""Addresses are promises: ``addresses.txt`` names all that the book ever had, and each leads to its answer.

A line is a page or, indented, the ids of one section of it: its label, what its headings were made into, and older
ones; so are claims, cards, terms, figures and equations. Ids that the page has no more lead to the first id of
their line that the page has, or that a label, claim, card ... of another page is now. Where there is none, the line
says where the answer is: ``-> label``, ``-> page#id`` or ``-> page``. A page that is gone names the one in its place.

Where the answer is a section of the same page, an old id is one more anchor of it. Any other stands at the end of its
page, in a line that shows only when it is asked for (``:target``), and ``moved.js`` follows its link at once. A page
that is gone has such lines only; with scripts off, its readers come to the page in its place.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from ..explorers.error_pages import pages
from ..news import to_write
from ..order import Finished
from ..problems import Problem, end_if_any

FILE = "addresses.txt"
RECORDED = ("labs/", "reference/edition", "reference/waiting")  # their sections come and go with what was recorded
_NUMBERED = re.compile(r"id\d+")  # by docutils, anew whenever it reads
_SCRIPT = "moved.js"
_MOVED = '<p class="moved" id="{id}" hidden>What was here is now in <a href="{to}">{title}</a>.</p>\n'
_GONE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><link rel="canonical" href="{to}">
<noscript><meta http-equiv="refresh" content="0; url={to}"></noscript></head>
<body><h1>This page has moved</h1><p class="moved-page">It is now <a href="{to}">{title}</a>.</p>
{lines}<script defer src="{script}"></script></body></html>
"""
Place = tuple[str, str]  # a page and an id on it; the id of the page itself is empty


@dataclass
class Line:
    """A line of the table."""

    number: int
    page: str
    ids: list[str]  # one, which is empty, in the line of a page
    to: str = ""

    def __str__(self) -> str:
        what = self.page if self.ids == [""] else "  " + " ".join(self.ids)
        return f"{what} -> {self.to}" if self.to else what


def read_lines(text: str) -> list[Line]:
    """The lines of a table that are no comments."""
    found: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            what, _, to = line.partition("->")
            of_page = not (line[0].isspace() and found)
            page, ids = (what.strip(), [""]) if of_page else (found[-1].page, what.split())
            found.append(Line(number, page, ids, to.strip()))
    return found


def collect(app: Sphinx, document: nodes.document) -> None:
    """Keep the ids of the document that was just read, those of a section with its title."""
    if not app.env.docname.startswith(RECORDED):
        app.env.metadata[app.env.docname]["addresses"] = [
            (ids, node[0].astext() if isinstance(node, nodes.section) else "")  # a section begins with its title
            for node in document.findall(nodes.Element)
            if (ids := [one for one in node["ids"] if not _NUMBERED.fullmatch(one)])
        ]


class Addresses:
    """Those of one book, and where they lead in this build."""

    def __init__(self) -> None:
        self.text = ""  # of the table; a book without one has no promises
        self.sections: dict[str, list[list[str]]] = {}  # by page
        self.titles: dict[Place, str] = {}  # of all places there are; empty where it is no section
        self.names: dict[str, Place] = {}  # what an author named, in the whole book
        self.leads: dict[str, dict[str, Place]] = defaultdict(dict)  # by page, the ids that it has no more
        self.problems: list[Problem] = []

    def resolve(self, app: Sphinx, env: BuildEnvironment) -> list[str]:
        """Find where each address leads; return the documents that are to show other leads than before."""
        file = Path(app.srcdir, FILE)
        if app.builder.name != "html" or not file.is_file():
            return []
        self.text = file.read_text(encoding="utf-8")
        self._know(env)
        self.problems = [
            Problem(f"{FILE}:{line.number}", wrong) for line in read_lines(self.text) if (wrong := self._follow(line))
        ]
        leads = [(page, ids) for page, ids in self.leads.items() if ids]
        below = {name: [one for one in leads if f"{one[0]}/".startswith(f"{name}/")] for name in env.found_docs}
        return to_write(app, "leads", below)

    def _know(self, env: BuildEnvironment) -> None:
        for page in env.found_docs:
            found = env.metadata[page].get("addresses", [])
            self.sections[page] = [ids for ids, _ in found]
            self.titles |= {(page, one): title for ids, title in found for one in ids}
            self.titles[page, ""] = env.titles[page].astext()
        self.names = {one: (page, one) for (page, one), title in self.titles.items() if not title}
        for label, (page, one, *_) in env.domains.standard_domain.anonlabels.items():
            if (page, one) in self.titles:
                self.names |= {label: (page, one), one or label: (page, one)}
        for label, page in pages(env).items():
            self.sections[page] = []
            self.names[label] = page, ""
            self.titles[page, ""] = self.titles[page.rpartition("/")[0], label]

    def _follow(self, line: Line) -> str:
        """Note where a line leads; return what is wrong with it."""
        address = f"{line.page}#{line.ids[0]}".removesuffix("#")
        here = [one for one in line.ids if (line.page, one) in self.titles]
        home = self.leads[line.page].get("", (line.page, ""))[0]
        if line.to and here:
            return f"the book has {line.page}#{here[0]}".removesuffix("#") + f"; take '-> {line.to}' out"
        if line.to:
            page, on_page, one = line.to.partition("#")
            places = [(page, one), None if on_page else self.names.get(page)]
        else:
            places = [place for one in line.ids for place in ((home, one), self.names.get(one))]
        place = next((one for one in places if one in self.titles), None)
        if place:
            self.leads[line.page] |= {one: place for one in line.ids if one not in here}
        elif line.to:
            return f"{address} is to lead to {line.to}, which is no label, page or page#id of the book"
        elif line.ids == [""] or (home, "") in self.titles:  # of a page that is nowhere, it is said once
            return f"the book has no {address} any more; write behind it where its answer is: '-> label', '-> page#id'"
        return ""

    def _anchored(self, page: str) -> dict[str, Place]:
        """The ids that are anchors of sections of their own page."""
        return {old: at for old, at in self.leads.get(page, {}).items() if at[0] == page and at[1] and self.titles[at]}

    def add_anchors(self, app: Sphinx, doctree: nodes.document, docname: str) -> None:
        """Give the sections of a page their old ids."""
        for old, (_, one) in self._anchored(docname).items():
            for section in doctree.findall(nodes.section):
                section["ids"] += [old] if one in section["ids"] else []

    def add_lines(self, app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
        """Put the ids whose answers are elsewhere at the end of a page."""
        if lines := "".join(self._moved(app, page)):
            context["body"] += lines
            app.add_js_file(_SCRIPT, loading_method="defer")

    def _moved(self, app: Sphinx, page: str) -> Iterator[str]:
        for old, place in self.leads.get(page, {}).items():
            if old and old not in self._anchored(page):
                yield _MOVED.format(id=escape(old), **self._link(app, page, place))

    def _link(self, app: Sphinx, page: str, place: Place) -> dict[str, str]:
        title = dict.fromkeys([self.titles[place[0], ""], self.titles[place]])
        to = app.builder.get_relative_uri(page, place[0]) + f"#{place[1]}".rstrip("#")
        return {"to": escape(to or "#"), "title": escape(": ".join(filter(None, title)))}

    def finish(self, app: Sphinx, exception: Exception | None) -> None:
        """Write the pages that are gone, and beside the pages the table with what it lacks."""
        if exception or not self.text:
            return
        files = {FILE: self._whole()}
        for page in (page for page, leads in self.leads.items() if "" in leads):
            script, lines = "../" * page.count("/") + f"_static/{_SCRIPT}", "".join(self._moved(app, page))
            link = self._link(app, page, self.leads[page][""])
            files[f"{page}.html"] = _GONE.format(script=script, lines=lines, **link)
        for name, text in files.items():
            target = Path(app.outdir, name)
            if not target.is_file() or target.read_text(encoding="utf-8") != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")

    def check(self, app: Sphinx, exception: Exception | None) -> None:
        """End a build in which an address leads nowhere, or from where it still is (`BuildError`)."""
        if exception is None:
            end_if_any(self.problems, FILE)

    def _whole(self) -> str:
        """The table with the addresses that it lacks, in its order."""
        lines = read_lines(self.text)
        for page, found in self.sections.items():
            of_page = [line for line in lines if line.page == page]
            for ids in [[""], *found]:
                new = [one for one in ids if not any(one in line.ids for line in of_page)]
                same = next((line for line in of_page if set(line.ids) & set(ids)), None)
                if same:
                    same.ids += new
                else:
                    lines.append(Line(0, page, new))
        comments = [line for line in self.text.splitlines() if line.startswith("#")]
        return "\n".join([*comments, *map(str, sorted(lines, key=lambda line: (line.page, line.ids[0])))]) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    book = Addresses()
    app.connect("doctree-read", collect)
    app.connect("env-get-updated", book.resolve)
    app.connect("doctree-resolved", book.add_anchors)
    app.connect("html-page-context", book.add_lines)
    app.connect("build-finished", book.finish)
    app.connect("build-finished", book.check, priority=Finished.CHECKED)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
