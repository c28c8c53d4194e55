"""One mark for each section: what its figures and outputs ran on, and the labs that they are from.

`lab_embed` puts a stamp below each piece. On a page with fifty of them these say little that the first did not, so
that here they are gathered at the end of their section: on the web a line that opens, elsewhere one line.
A lab page keeps its own at the top; decks keep theirs, as each slide is read alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from ..evidence import lab_source
from ..evidence.lab_pieces import launches_text, runs_nothing, stamp_text
from ..markup import close, cross_reference, has_folds
from ..order import Reading


class section_stamp(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """What the pieces of a section ran on; attribute ``summary``, a paragraph for each different stamp."""


def gather(app: Sphinx, document: nodes.document) -> None:
    """Take the stamps out of the document that was just read, and put one at the end of each section with any."""
    for page in [child for child in document.children if isinstance(child, nodes.section)]:
        parts = [child for child in page.children if isinstance(child, nodes.section)]
        for section in parts:
            _stamp(app, section, list(_stamps(section)), len(section))
        before = page.index(parts[0]) if parts else len(page)
        _stamp(app, page, list(_stamps(page)), before)  # what is left stands above the first of them


def _stamps(section: nodes.section) -> Iterator[nodes.paragraph]:
    return (node for node in section.findall(nodes.paragraph) if "lab" in node)


def _stamp(app: Sphinx, section: nodes.section, stamps: list[nodes.paragraph], place: int) -> None:
    if not stamps:
        return
    ran = dict.fromkeys(stamp["lab"] for stamp in stamps if stamp["ran"])
    code = dict.fromkeys(stamp["lab"] for stamp in stamps if stamp["lab"] not in ran)
    for stamp in stamps:
        legend = stamp.parent
        legend.remove(stamp)
        if isinstance(legend, nodes.legend) and not legend.children:
            legend.parent.remove(legend)
    known = lab_source.all_labs()
    evidence = {name: lab_source.lab_evidence(known[name], app.config) for name in ran}
    below: dict[str, list[str]] = {}
    measured = []
    for name, kept in evidence.items():
        if said := runs_nothing(known[name].script):
            text = f"Nothing ran, {said}"
        else:
            text = stamp_text(kept)
            measured.append(kept)
        below.setdefault(text, []).append(name)
    if code:
        below["Code"] = list(code)
    lines = [_line(app, text, [known[name] for name in names]) for text, names in below.items()]
    section.insert(place, section_stamp("", *lines, summary=_summary(measured)))


def _summary(measured: list[dict[str, Any]]) -> str:
    """The mark: how many ranks, which backend, when; and what a reader must not miss. Empty if nothing ran."""
    if not measured:
        return ""
    ranks = launches_text([launch for kept in measured for launch in kept["launches"]])
    days = sorted({kept["date"][:10] for kept in measured if kept["date"]})
    when = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not run yet"
    borrowed = sorted({kept["edition"] for kept in measured if kept.get("borrowed")})
    stale = "stale: the code changed since" if any(kept["stale"] for kept in measured) else ""
    also = [f"from the edition {name}" for name in borrowed]
    return " · ".join(
        filter(None, [f"Ran on {ranks}" if ranks else "Ran on this edition's machine", when, *also, stale])
    )


def _line(app: Sphinx, text: str, of: list[lab_source.Lab]) -> nodes.paragraph:
    """``2 ranks · gloo · …: bucket-xray, ring-allreduce``, each a link where the lab is part of the same project."""
    line = nodes.paragraph("", f"{text}: ", classes=["stamp"])
    for lab in of:
        name: nodes.Node = nodes.inline("", lab.id)
        if lab.docname in app.env.found_docs:
            name = cross_reference(app.env.docname, "std:doc", f"/{lab.docname}", name)
        line += [nodes.Text(", "), name] if len(line) > 1 else [name]
    return line


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """A line that opens on the web; elsewhere, and where nothing ran, the lines themselves."""
    if node["summary"] and has_folds(self.builder):
        self.body.append(f'<details class="section-stamp"><summary>{node["summary"]}</summary>\n')
        self.context.append("</details>\n")
    else:
        self.body.append('<div class="section-stamp">\n')
        self.context.append("</div>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on a document before its words are counted and searched."""
    app.add_node(section_stamp, html=(visit, close))
    app.connect("doctree-read", gather, Reading.ENDS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
