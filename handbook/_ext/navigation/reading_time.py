"""Reading time: below the title of each chapter stands how long its prose takes, computed from its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from ..order import Reading

WORDS_PER_MINUTE = 220
_NOT_PROSE = (nodes.literal_block, nodes.math_block, nodes.figure, nodes.table)


def prose_words(document: nodes.Element) -> int:
    """The number of words of prose: paragraphs and lists, without code, output, tables, figures, cards and stamps."""
    return sum(len(paragraph.astext().split()) for paragraph in _paragraphs(document))


def _paragraphs(node: nodes.Element) -> Iterator[nodes.paragraph]:
    for child in node.children:
        if isinstance(child, nodes.paragraph):
            if "stamp" not in child["classes"]:  # the name of a processor makes no chapter longer
                yield child
        elif isinstance(child, nodes.Element) and not isinstance(child, _NOT_PROSE) and child.tagname != "card":
            yield from _paragraphs(child)


def add_time(app: Sphinx, document: nodes.document) -> None:
    """Put the line below the title of the documents that the configuration names."""
    if not re.fullmatch(app.config.reading_time_documents, app.env.docname):
        return
    minutes = max(1, round(prose_words(document) / WORDS_PER_MINUTE))
    title = next(document.findall(nodes.title))
    line = nodes.paragraph("", f"About {minutes} minute{'s' * (minutes > 1)}.", classes=["reading-time"])
    title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("reading_time_documents", "", "env")
    app.connect("doctree-read", add_time, Reading.TIME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
