"""The switch between several editions, at the top of every page: links, and a script that remembers the choice.

The Makefile builds the book once for each committed edition: the default one as ``_build/html``, the others below it
in ``editions/<name>/``. So a page weighs no more than before, all that follows an edition is right (numbers, figures,
ticks, ``{when}``, search), and it needs neither a script nor a server: the switch is a link to the same page.
"""

from __future__ import annotations

import posixpath
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from ..evidence.lab_source import edition_of, recorded_editions
from ..order import Page

SCRIPT = "editions.js"


def name_editions(app: Sphinx, config: Config) -> None:
    """``all`` are the recorded ones, the default first; pages are written again when one comes or goes."""
    if config.labs_editions == ["all"]:
        config.labs_editions = list(dict.fromkeys([config.labs_default_edition, *recorded_editions()]))


def add_switch(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Put the switch above the page's text, and the script into its head."""
    names = app.config.labs_editions
    if len(names) < 2 or app.builder.name != "html":
        return
    here, front = edition_of(app.config), app.config.labs_default_edition
    up = posixpath.relpath(".", posixpath.dirname(page) or ".")
    root = up if here == front else posixpath.join(up, "../..")
    links = {
        name: posixpath.normpath(posixpath.join(root, "" if name == front else f"editions/{name}", f"{page}.html"))
        for name in names
    }
    items = [
        f'<a aria-current="true">{escape(name)}</a>'
        if name == here
        else f'<a href="{escape(link)}" data-edition="{escape(name)}">{escape(name)}</a>'
        for name, link in links.items()
    ]
    switch = f'<nav class="edition-switch" aria-label="Edition"><span>Edition</span> {" ".join(items)}</nav>\n'
    context["body"] = switch + context.get("body", "")
    others = "" if here != front else " ".join(f"{name}={link}" for name, link in links.items() if name != here)
    source = context["pathto"](f"_static/{SCRIPT}", 1)
    context["metatags"] = (
        f'{context.get("metatags", "")}<script defer src="{source}" data-others="{escape(others)}"></script>'
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the value that the Makefile sets to ``all`` where it builds several editions, and the hooks."""
    app.add_config_value("labs_editions", [], "html", list)
    app.connect("config-inited", name_editions)
    app.connect("html-page-context", add_switch, Page.WHOLE)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
