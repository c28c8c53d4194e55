"""Where a reader is: the header, the navigation by part, the path to a page, and previous and next by chapter.

All of it comes from the lists of the front page, one list for each part. ``handbook/_templates`` says where it stands,
and ``orientation.js`` moves it along with the reading; with scripts off it stays as it is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from ..news import nothing_read, to_write
from ..order import AllRead, Sheet
from ..problems import expect

BROKEN = "repair/broken"
MANY = 40  # children of a page; more are not listed beside it
_PLACE = '<div class="header-right">'  # of furo's header: what we add stands before it


@dataclass(frozen=True)
class Part:
    """A list of the front page: its name, such as ``II. Run``, and the documents in it."""

    title: str
    documents: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The id of the part on the map of the front page."""
        return "part-" + "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


def parts(env: BuildEnvironment) -> list[Part]:
    """The parts of the book in their order, from the lists of the front page that have a name."""
    lists = env.tocs[env.config.root_doc].findall(addnodes.toctree) if env.config.root_doc in env.tocs else ()
    named = [(tree.get("caption"), tree["entries"]) for tree in lists]
    return [Part(title, tuple(name for _, name in entries if name in env.titles)) for title, entries in named if title]


def name_of(env: BuildEnvironment, docname: str) -> str:
    """The title of a document, with its number if it is a chapter."""
    number = env.toc_secnumbers.get(docname, {}).get("")
    title = env.titles[docname].astext()
    return f"{'.'.join(map(str, number))}. {title}" if number else title


class Places:
    """Where each document stands among the parts."""

    def __init__(self, env: BuildEnvironment) -> None:
        self.env, self.parts, self.root = env, parts(env), env.config.root_doc
        self.spine = [self.root, *(name for part in self.parts for name in part.documents)]
        self.parent: dict[str, str] = {}
        for name in self.spine[1:]:
            self._note_children(name)

    def _note_children(self, docname: str) -> None:
        for child in self.children(docname):
            if child not in self.parent and child not in self.spine:
                self.parent[child] = docname
                self._note_children(child)

    def children(self, docname: str) -> list[str]:
        """The documents that stand below one."""
        return [name for name in self.env.toctree_includes.get(docname, ()) if name in self.env.titles]

    def path(self, docname: str) -> list[str]:
        """The documents above one, from its chapter down, and itself; empty if it stands in no part."""
        names = [docname]
        while names[0] in self.parent:
            names.insert(0, self.parent[names[0]])
        return names if names[0] in self.spine[1:] else []

    def part_of(self, docname: str) -> Part | None:
        """The part that a document stands in."""
        first = next(iter(self.path(docname)), "")
        return next((part for part in self.parts if first in part.documents), None)

    def neighbours(self, docname: str) -> tuple[str, str]:
        """What comes before and after: chapters for a chapter, and pages of its own list for one below a chapter."""
        above = self.parent.get(docname, "")
        beside = [name for name in self.children(above) if self.parent.get(name) == above]
        row = [above, *beside] if above else self.spine
        if docname not in row:
            return "", ""
        place = row.index(docname)
        return row[place - 1] if place else "", row[place + 1] if place + 1 < len(row) else ""


def changed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The documents that show another name than before: of a part or a chapter (all do), or of a page beside them."""
    if nothing_read(env):
        return []
    places = Places(env)
    names = [(part, [name_of(env, name) for name in part.documents]) for part in places.parts]
    everywhere = (names, BROKEN in env.found_docs)

    def beside(page: str) -> list[str]:
        path = places.path(page)
        below = [one for name in path for one in places.children(name)[: MANY + 1]]
        return [name_of(env, name) for name in (*path, *below, *places.neighbours(page)) if name in env.titles]

    return to_write(app, "names", {name: (everywhere, beside(name)) for name in env.found_docs})


def add_places(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give the templates what they show, and each page its neighbours."""
    if app.builder.name != "html":
        return
    places, link = Places(app.env), context["pathto"]
    for key, name in zip(("prev", "next"), places.neighbours(page), strict=True):
        context[key] = {"link": link(name), "title": escape(name_of(app.env, name))} if name else None
    context["broken_page"] = BROKEN if BROKEN in app.env.found_docs else ""
    context["where"] = name_of(app.env, page) if page in app.env.titles else context.get("title", "")
    context["path"] = _path(places, page, link)
    context["book_nav"] = "".join(_part(places, part, page, link) for part in places.parts)
    context["with_header"] = with_header
    context["toctree"] = lambda **_: ""  # the theme would make its own navigation for each page; ours takes its place


def with_header(whole: str, ours: str) -> str:
    """Put our part of the header into furo's, which has no block for it."""
    expect(whole.count(_PLACE) == 1, "furo", f"the header of a page does not hold one {_PLACE}")
    return whole.replace(_PLACE, ours + _PLACE)


def _path(places: Places, page: str, link: Any) -> list[tuple[str, str]]:
    """The steps of the path to a page, each with its address; the page itself has none."""
    part = places.part_of(page)
    if not part:
        return []
    *above, _ = places.path(page)
    return [
        (places.env.config.project, link(places.root)),
        (part.title, f"{link(places.root).rstrip('#')}#{part.anchor}"),
        *((name_of(places.env, name), link(name)) for name in above),
        (name_of(places.env, page), ""),
    ]


def _part(places: Places, part: Part, page: str, link: Any) -> str:
    here = places.part_of(page)
    shown = here == part or (page == places.root and not part.documents[0].startswith("reference/"))
    items = "".join(_items(places, part.documents, page, link))
    return f"<details{' open' * shown}><summary>{escape(part.title)}</summary><ul>{items}</ul></details>"


def _items(places: Places, names: Any, page: str, link: Any) -> Iterator[str]:
    path = places.path(page)
    for name in names:
        current = ' aria-current="page"' if name == page else ""
        below = places.children(name) if name in path else []
        below = [one for one in below if one in path] if len(below) > MANY else below
        nested = f"<ul>{''.join(_items(places, below, page, link))}</ul>" if below else ""
        yield f'<li><a href="{link(name)}"{current}>{escape(name_of(places.env, name))}</a>{nested}</li>'


def add_files(app: Sphinx) -> None:
    """Script and styles of the web; an EPUB has neither header nor columns."""
    if app.builder.name == "html":
        app.add_js_file("orientation.js", loading_method="defer")
        app.add_css_file("orientation.css", priority=Sheet.OVER_THEME)


def add_icon(app: Sphinx, exception: Exception | None) -> None:
    """Put the icon where a browser looks for it on pages without a head of ours, such as those at old addresses."""
    icon = Path(app.outdir, "_static", "favicon.ico")
    if exception is None and app.builder.name == "html" and icon.is_file():
        shutil.copy2(icon, app.outdir)


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on a page before the theme does."""
    app.connect("builder-inited", add_files)
    app.connect("env-get-updated", changed, AllRead.NUMBERED)
    app.connect("html-page-context", add_places)
    app.connect("build-finished", add_icon)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
