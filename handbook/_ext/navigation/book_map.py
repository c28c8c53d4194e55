"""``{book-map}``: the parts of the book as a picture on its front page, drawn from the lists that make the book.

On the web it is a line for each part with its chapters as stops, made of text and links, so that it follows dark mode,
a phone's width and a screen reader. Print and e-book, which have their table of contents, name the chapters in a list.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ..markup import has_folds
from .orientation import Part, name_of, parts


class book_map(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """The place of the map; filled in when the page is written, when all titles and numbers are known."""


class BookMap(SphinxDirective):
    """Takes no argument: everything is in the lists of the front page."""

    def run(self) -> list[nodes.Node]:
        """Leave its place; `orientation` has the page written again when a part or a name in it changes."""
        return [book_map()]


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """The parts, in their order."""
    env, linked = self.builder.env, has_folds(self.builder)
    here = self.builder.current_docname

    def stop(name: str) -> str:
        number = env.toc_secnumbers.get(name, {}).get("")
        title = escape(env.titles[name].astext())
        dot = f'<span class="map-number">{".".join(map(str, number))}</span>' if number else ""
        if not linked:
            return f"<li>{escape(name_of(env, name))}</li>"
        link = self.builder.get_relative_uri(here, name)
        kind = "" if number else ' class="map-aside"'  # quoted, so that `page_style` sees it
        return f'<li{kind}><a href="{link}">{dot}<span>{title}</span></a></li>'

    def line(number: int, part: Part) -> str:
        stops = "".join(stop(name) for name in part.documents)
        colour = f"map-part r{number}" if number < len(parts(env)) - 1 else "map-part map-reference"
        return f'<li class="{colour}" id="{part.anchor}"><p>{escape(part.title)}</p><ul>{stops}</ul></li>'

    lines = "".join(line(number, part) for number, part in enumerate(parts(env)))
    self.body.append(f'<ul class="book-map">{lines}</ul>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and its node."""
    app.add_node(book_map, html=(visit, None))
    app.add_directive("book-map", BookMap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
