"""Lanes: what the ranks printed (``rank 0 │ …``), one lane per rank, each in its rank's colour."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

from ..order import Resolving

_LANE = re.compile(r"^rank (\d+) │ ?(.*)$")
_SIDE_BY_SIDE = 40  # characters: two lanes with lines up to this length stand beside each other


class lanes(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """Lanes that stand together; its children are ``lane``."""


class lane(nodes.Part, nodes.TextElement):  # noqa: N801
    """What one rank printed; attribute ``rank``."""


class SplitIntoLanes(SphinxPostTransform):
    """Turn literal blocks that hold lanes into lanes; what the script itself printed stays a literal block."""

    default_priority = Resolving.LANES
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Replace every literal block that has at least one lane."""
        for block in list(self.document.findall(nodes.literal_block)):
            lines = block.astext().splitlines()
            if any(_LANE.match(line) for line in lines):
                parts = list(_split(lines, block))
                block["classes"] = []  # the first part has them
                block.replace_self(parts)


def _split(lines: list[str], block: nodes.literal_block) -> Iterator[nodes.Node]:
    classes = block["classes"]
    for is_lane, group in groupby(lines, key=lambda line: bool(_LANE.match(line))):
        if not is_lane:
            text = "\n".join(group)
            if text.strip():
                language = block.get("language", "none")
                yield nodes.literal_block(text, text, language=language, xml_space="preserve", classes=classes)
                classes = []
            continue
        printed: dict[str, list[str]] = {}
        for line in group:
            match = _LANE.match(line)
            assert match is not None
            printed.setdefault(match[1], []).append(match[2])
        shown = [lane("", "\n".join(texts), rank=rank) for rank, texts in printed.items()]
        yield lanes("", *shown, classes=classes)
        classes = []


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """A box for each rank; two whose lines are short stand beside each other."""
    texts = {one["rank"]: one.astext() for one in node.findall(lane)}
    longest = max(len(line) for text in texts.values() for line in text.split("\n"))
    beside = ["side-by-side"] if len(texts) == 2 and longest <= _SIDE_BY_SIDE else []
    boxes = "".join(
        f'<div class="lane r{int(rank) % 8}"><span class="lane-name">rank {rank}</span>'
        f"<pre>{escape(text)}</pre></div>\n"
        for rank, text in texts.items()
    )
    self.body.append(f'<div class="{" ".join(["lanes", *beside, *node["classes"]])}">{boxes}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform and its nodes, for every builder that writes HTML."""
    app.add_node(lanes, html=(visit, None))
    app.add_node(lane)
    app.add_post_transform(SplitIntoLanes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
