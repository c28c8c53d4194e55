"""Of each exercise whose starter a page shows: its level below the title, and a link that downloads the starter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from ddplab.grading.exercises import find_exercise

from ..evidence import lab_source
from ..order import Reading


class named_download(addnodes.download_reference):  # noqa: N801  docutils names nodes so
    """A download whose file gets another name; attribute ``save_as``."""


def add_links(app: Sphinx, document: nodes.document) -> None:
    """Put the level below the title of its section, and a link below the starter, outside the fold that holds it."""
    for block in list(document.findall(nodes.literal_block)):
        path = Path(block.get("source", ""))
        if path.name != "starter.py" or path.parent.parent != lab_source.ROOT / "gallery" / "exercises":
            continue
        level = nodes.paragraph("", f"{str(find_exercise(path.parent.name).level).capitalize()}.", classes=["level"])
        shown: nodes.Element = block
        while isinstance(shown.parent, nodes.container):
            shown = shown.parent
        name = f"{path.parent.name}.py"
        target = "/" + os.path.relpath(path, app.srcdir).replace(os.sep, "/")
        label = nodes.literal("", name)
        link = named_download("", "", label, refdoc=app.env.docname, reftarget=target, save_as=name)
        line = nodes.paragraph("", "Download the starter: ", link, classes=["no-print"])
        shown.parent.insert(shown.parent.index(shown) + 1, line)
        section = shown.parent
        while not isinstance(section, nodes.section):
            section = section.parent
        section.insert(1, level)


def visit(self: HTML5Translator, node: named_download) -> None:
    """As any download, with the name."""
    self.visit_download_reference(node)
    self.body[-1] = self.body[-1].replace('download=""', f'download="{node["save_as"]}"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the node; the links come before Sphinx collects the files to download."""
    app.add_node(named_download, html=(visit, HTML5Translator.depart_download_reference))
    app.connect("doctree-read", add_links, Reading.PAGES)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
