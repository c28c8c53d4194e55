"""A lab in the companion: what a reader with the script beside the page does not need is left out, and named."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from docutils import nodes

from ..embed.lab_embed import OUTPUTS
from .print_tree import classes, parents, replace, walk

OUTPUT_LINES = 16  # of a longer output the first ones are printed, and where the others are
_IMPORT = re.compile(r"(import|from) \S")


def shorten(lab: ET.Element, figures: Sequence[str] = (), outputs: Mapping[int, str] | None = None) -> None:
    """Leave out imports, the end of long outputs, and what the handbook shows; and the code of mere evidence.

    Args:
        lab: the page of a lab, ready for print.
        figures: for each figure of the lab, its number in the handbook, or nothing.
        outputs: for the blocks of output, counted from 1, that the handbook shows, where it does.
    """
    run = next((line for line in walk(lab) if "lab-run" in classes(line)), None)
    command = run.find("code") if run is not None else None
    path = "".join(command.itertext()).removeprefix("python ") if command is not None else "the script"
    drawn = [box for box in walk(lab) if "figure-svg" in classes(box)]
    for box, number in zip(drawn, figures, strict=bool(figures)):
        if number:
            _refer(box, f"What it drew is figure {number} of the handbook.")
    if run is not None and (run.text or "").startswith("Evidence"):
        owner = parents(lab)
        for box in [element for element in walk(lab) if "highlight-Python" in classes(element)]:
            replace(owner[box], box, None)
    left_out = False
    for box in [element for element in walk(lab) if "highlight-Python" in classes(element)]:
        for pre in box.iter("pre"):
            left_out = _without_imports(pre, "" if left_out else f"# imports: {path}") or left_out
    printed = [element for element in walk(lab) if "sphx-glr-script-out" in classes(element)]
    for block, box in enumerate(printed, 1):
        if place := (outputs or {}).get(block):
            _refer(box, f"What it printed is in the handbook: {place}.")
        for pre in box.iter("pre"):
            _first_lines(pre, path)


def numbers_in_the_handbook(env: Any, lab: str, labs: str) -> Iterator[str]:
    """For each drawing of a lab, the number that it has in a chapter; nothing where no chapter shows it.

    Args:
        env: Sphinx's environment.
        lab: the lab's document.
        labs: what names of such documents begin with.
    """
    for image in env.get_doctree(lab).findall(nodes.image):
        if not image["uri"].endswith(".svg"):
            continue
        users, _ = env.images.get(image["uri"], ((), ""))
        yield next(filter(None, (_number(env, user, image) for user in sorted(users) if not user.startswith(labs))), "")


def _number(env: Any, docname: str, image: nodes.image) -> str:
    figures = env.get_doctree(docname).findall(nodes.figure)
    shown = (figure for figure in figures if any(one["uri"] == image["uri"] for one in figure.findall(nodes.image)))
    numbers = env.toc_fignumbers.get(docname, {}).get("figure", {})
    found = (numbers[name] for figure in shown for name in figure["ids"] if name in numbers)
    return ".".join(map(str, next(found, ())))


def outputs_in_the_handbook(env: Any, documents: Iterable[str]) -> dict[str, dict[int, str]]:
    """For each lab, which of its blocks of output the handbook shows whole, and in which chapter or page first.

    Args:
        env: Sphinx's environment.
        documents: those that the handbook prints, in its order.
    """
    shown: dict[str, dict[int, str]] = {}
    for docname in documents:
        numbers = env.toc_secnumbers.get(docname, {}).get("")
        place = f"chapter {numbers[0]}" if numbers else f"“{env.titles[docname].astext()}”"
        for lab, number in env.metadata.get(docname, {}).get(OUTPUTS, ()):
            shown.setdefault(lab, {}).setdefault(number, place)
    return shown


def _refer(shown: ET.Element, where: str) -> None:
    """What the handbook shows is not printed twice."""
    shown.clear()
    shown.set("class", "shown-elsewhere")
    shown.text = where


def _without_imports(pre: ET.Element, note: str) -> bool:
    """Whether imports were taken out of a block; ``note`` stands in their place."""
    lines, inside, found = list(pre), False, False
    kept: list[ET.Element] = []
    for line in lines:
        text = "".join(line.itertext())
        starts = bool(_IMPORT.match(text))
        if starts or inside:
            inside = not text.rstrip().endswith(")") and (inside or text.rstrip().endswith("("))
            found = True
        elif text.strip() or kept:
            kept.append(line)
    if not found:
        return False
    first = ET.Element("span", {"class": "line"})
    ET.SubElement(first, "span", {"class": "c"}).text = note
    pre[:] = [*([first] if note else []), *kept]
    return True


def _first_lines(pre: ET.Element, path: str) -> None:
    """Cut a long output."""
    rest = len(pre) - OUTPUT_LINES
    if rest > 2:
        more = ET.Element("span", {"class": "line left-out"})
        more.text = f"… {rest} more lines: run {path}, or see its page of the web book"
        pre[:] = [*list(pre)[:OUTPUT_LINES], more]
