"""How large things stand on a slide: letters of text and code as large as there is room, labels of figures legible.

A slide is 1280 × 720. Sizes are those of ``deck.css``, which is the other half of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator
from sphinx_revealjs.nodes import revealjs_fragments

from ..embed.lanes import lanes
from ..explorers.explorer_directives import explorer
from ..markup import close
from .deck_cards import speaker_notes

ROOM_PX = (1160, 535)  # below a title and above the stamp
LABEL_PX = 20  # the smallest label that is read from the back row
CODE_SIZES_PX = (14, 40)
TABLE_SIZES_PX = (30, 48)
_TEXT_ROOM = {  # sizes of text, and what each line of the heading takes of the room
    "deck-question": ((30, 44), 66),
    "deck-answer": ((30, 48), 28),
    "": ((34, 62), 0),
}
_LETTER_EM = (0.6, 1.42)  # of the code face: width, and distance between lines
_TEXT_EM = (0.47, 1.36)  # of the serif face, on average
_FIELD_PX = 60  # the edges of a field of code, or those of a lane with its name
_LINE_PX = 70  # a line of text above a figure
_MATH_EM = 3.2  # a formula with the space around it

_NOTHING = nodes.Invisible | nodes.target
_VIEW = re.compile(r'<svg\b[^>]*viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"')
_SIZE = re.compile(r'(font-size(?::|="))([\d.]+)')
_PIECE = re.compile(r'(<tspan x="[\d.-]+)(?: [\d. -]*)?" y="([\d.-]+)"')


class Sized(nodes.Element):
    """Something on a slide, and properties of style for it: ``style``."""


def fit(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Choose sizes on every slide of a deck."""
    if app.builder.name != "revealjs":
        return
    _fit_code(doctree)
    for slide in doctree.findall(nodes.section):
        own = [child for child in slide.children if not isinstance(child, nodes.section | nodes.title)]
        shown = [child for child in own if not isinstance(child, speaker_notes)]
        figures = [one for child in own for one in child.findall(nodes.Element) if _is_drawing(one)]
        above = [child for child in own if isinstance(child, nodes.paragraph)]
        for figure in figures:
            _fit_figure(figure, len(above), captioned=any(True for _ in figure.parent.findall(nodes.caption)))
        table = next((one for child in own for one in child.findall(nodes.table)), None)
        if table is not None:
            _wrap(table, f"--table-size: {_table_size_px(table)}px")
        elif isinstance(slide.parent, nodes.section) and all(_is_text(child) for child in own):
            kind = next((kind for kind in _TEXT_ROOM if kind in slide["classes"]), "")
            sizes, heading = _TEXT_ROOM[kind]
            room = ROOM_PX[1] - heading * ceil(len(slide.astext().partition("\n")[0]) / 42)
            slide["classes"].append("deck-text")
            slide["style"] = f"--text-size: {text_size_px(_blocks(own), sizes, room)}px"
        code_px = sum(block.get("height_px", 0) for child in shown for block in child.findall(Sized))
        if code_px and not figures and table is None and isinstance(slide.parent, nodes.section):
            texts = [text for child in shown if not child.next_node(Sized) for text in _blocks([child])]
            free = ROOM_PX[1] - code_px - _LINE_PX * len(texts)
            if free > 0:  # a few lines stand below a gap, not at the top of an empty slide
                slide["classes"].append("deck-code")
                given = [slide["style"]] if "style" in slide else []
                slide["style"] = "; ".join([*given, f"--above-code: {18 + min(int(0.28 * free), 100)}px"])


def _fit_code(doctree: nodes.document) -> None:
    """Code, output and lanes; blocks of one output have one size, so that their columns agree."""
    outputs: dict[nodes.Element, list[tuple[nodes.Element, list[str]]]] = {}
    for code in doctree.findall(nodes.literal_block):
        outputs.setdefault(code.parent, []).append((code, [code.astext()]))
    for box in doctree.findall(lanes):
        outputs.setdefault(box.parent, []).append((box, [lane.astext() for lane in box]))
    for blocks in outputs.values():
        size = code_size_px(*(text for _, texts in blocks for text in texts))
        for block, texts in blocks:
            lines = sum(len(text.splitlines()) for text in texts)
            _wrap(block, f"--code-size: {size}px", int(_LETTER_EM[1] * size * lines) + _FIELD_PX * len(texts))


def code_size_px(*codes: str) -> int:
    """The size at which code in one field or several is as wide or as high as the room for it, within limits."""
    lines = [line for code in codes for line in code.splitlines() or [""]]
    wide = (ROOM_PX[0] - 60) / max(max(len(line) for line in lines), 1) / _LETTER_EM[0]
    high = (ROOM_PX[1] - 80 - _FIELD_PX * len(codes)) / len(lines) / _LETTER_EM[1]
    smallest, largest = CODE_SIZES_PX
    return max(smallest, int(min(largest, wide, high)))


def text_size_px(blocks: Iterable[str | None], sizes: tuple[int, int], room: float) -> int:
    """The largest size at which paragraphs and items, and formulas (``None``), fill the room; at least the smallest."""
    texts = list(blocks)
    sizes = (sizes[0], min(sizes[1], 42)) if None in texts else sizes  # a formula is not broken
    for size in range(sizes[1], sizes[0], -2):
        columns = ROOM_PX[0] / size / _TEXT_EM[0]
        lines = sum(_MATH_EM if text is None else ceil(len(text) / columns) * _TEXT_EM[1] + 0.4 for text in texts)
        if lines * size <= room:
            return size
    return sizes[0]


def legible(svg: str, scale: float) -> str:
    """A drawing whose labels are at least ``LABEL_PX`` high when it is shown at ``scale`` px per unit of its own."""
    least = LABEL_PX / scale + 0.005
    # The letters of a formula flow: the slide's face is narrower than that which gave each its place.
    svg = _PIECE.sub(lambda found: f'{found[1]}" y="{1.2 * float(found[2]):.2f}"', svg)
    return _SIZE.sub(lambda found: f"{found[1]}{max(float(found[2]), least):.2f}", svg)


def _fit_figure(drawing: nodes.Element, lines_above: int, captioned: bool) -> None:
    svg = drawing["svg"] if isinstance(drawing, explorer) else drawing.astext()
    size = _VIEW.search(svg)
    if not size:
        return
    width, height = float(size[1]), float(size[2])
    room = ROOM_PX[1] - _LINE_PX * lines_above - 40 * captioned
    shown = legible(svg, min(ROOM_PX[0] / width, room / height))
    if isinstance(drawing, explorer):
        drawing["svg"] = shown
    else:
        drawing.children[:] = [nodes.Text(shown)]
    _wrap(drawing, f"--figure-height: {room}px")


def _table_size_px(table: nodes.table) -> int:
    rows = [[cell.astext() for cell in row.findall(nodes.entry)] for row in table.findall(nodes.row)]
    columns = sum(max(len(cell) for cell in column) for column in zip(*rows, strict=True))
    wide = (ROOM_PX[0] - 44 * len(rows[0])) / columns / _TEXT_EM[0]
    smallest, largest = TABLE_SIZES_PX
    return max(smallest, int(min(largest, wide, (ROOM_PX[1] - 30 * len(rows)) / len(rows) / _TEXT_EM[1])))


def _is_drawing(node: nodes.Node) -> bool:
    return isinstance(node, explorer) or (isinstance(node, nodes.raw) and "<svg" in node.astext()[:200])


def _is_text(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Element) and {"big", "statement"} & set(node.get("classes", ())):
        return False
    texts = nodes.paragraph | nodes.bullet_list | nodes.enumerated_list | nodes.math_block | nodes.container
    return isinstance(node, texts | _NOTHING | speaker_notes | revealjs_fragments)


def _blocks(own: Iterable[nodes.Node]) -> Iterable[str | None]:
    """What stands below one another: texts, and ``None`` for a formula."""
    for child in own:
        if not isinstance(child, speaker_notes):
            for block in child.findall(lambda node: isinstance(node, nodes.paragraph | nodes.math_block)):
                yield None if isinstance(block, nodes.math_block) else block.astext()


def _wrap(node: nodes.Element, style: str, height_px: int = 0) -> None:
    sized = Sized("", style=style, height_px=height_px)
    node.replace_self(sized)
    sized += node


def _visit(self: HTML5Translator, node: nodes.Element) -> None:
    self.body.append(f'<div style="{node["style"]}">\n')
    self.context.append("</div>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on a deck when all in it is resolved."""
    app.add_node(Sized, html=(_visit, close))
    app.connect("doctree-resolved", fit)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
