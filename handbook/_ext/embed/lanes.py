"""Lanes: what the ranks printed (``rank 0 │ …``), one lane per rank, each in its rank's colour."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxTranslator

_LANE = re.compile(r"^rank (\d+) │ ?(.*)$")
_SIDE_BY_SIDE = 40  # characters: two lanes with lines up to this length stand beside each other


class lanes(nodes.General, nodes.Element):  # noqa: N801  (docutils' naming)
    """The lanes of one launch."""


class lane(nodes.General, nodes.Element):  # noqa: N801
    """The output of one rank; attribute ``rank``."""


class SplitIntoLanes(SphinxPostTransform):
    """Turn literal blocks that hold lanes into lanes; what the script itself printed stays a literal block."""

    default_priority = 90
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Replace every literal block that has at least one lane."""
        for block in list(self.document.findall(nodes.literal_block)):
            lines = block.astext().splitlines()
            if any(_LANE.match(line) for line in lines):
                block.replace_self(list(_split(lines, block)))


def _split(lines: list[str], block: nodes.literal_block) -> Any:
    for is_lane, group in groupby(lines, key=lambda line: bool(_LANE.match(line))):
        if not is_lane:
            text = "\n".join(group)
            if text.strip():
                yield nodes.literal_block(text, text, language=block.get("language", "none"), xml_space="preserve")
            continue
        ranks: dict[str, list[str]] = {}
        for line in group:
            match = _LANE.match(line)
            assert match is not None
            ranks.setdefault(match[1], []).append(match[2])
        longest = max(len(line) for said in ranks.values() for line in said)
        side_by_side = len(ranks) == 2 and longest <= _SIDE_BY_SIDE
        box = lanes(classes=["lanes", "side-by-side"] if side_by_side else ["lanes"])
        for rank, said in ranks.items():
            box += lane("", nodes.literal_block("", "\n".join(said), language="none"), rank=int(rank))
        yield box


def _visit_lanes(self: SphinxTranslator, node: lanes) -> None:
    self.body.append(self.starttag(node, "div", CLASS=" ".join(node["classes"])))  # type: ignore[attr-defined]


def _visit_lane(self: SphinxTranslator, node: lane) -> None:
    rank = node["rank"]
    said = self.encode(node.astext())  # type: ignore[attr-defined]
    self.body.append(  # type: ignore[attr-defined]
        f'<div class="lane r{rank % 8}"><span class="lane-name">rank {rank}</span><pre>{said}</pre></div>\n'
    )
    raise nodes.SkipNode


def _depart_lanes(self: SphinxTranslator, node: lanes) -> None:
    self.body.append("</div>\n")  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the nodes for every builder that writes HTML."""
    app.add_node(lanes, html=(_visit_lanes, _depart_lanes))
    app.add_node(lane, html=(_visit_lane, _depart_lanes))
    app.add_post_transform(SplitIntoLanes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
