"""At the end of a chapter: its labs as cards, each with its question, a picture, what it ran on, and the script."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri
from sphinx.writers.html5 import HTML5Translator

from ..evidence import lab_source
from ..evidence.lab_pieces import launches_text
from ..evidence.lab_source import Lab, all_labs, lab_evidence, waits
from ..markup import cross_reference, has_folds
from ..order import Reading
from .lab_lists import title_and_question
from .lab_page import script_download, seconds

PICTURES = "_labs"  # folder of the pictures in the built book


class lab_picture(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A lab's first figure, small and loaded late; attribute ``file``."""


def add_cards(app: Sphinx, document: nodes.document) -> None:
    """Append the cards to the documents that the configuration names, for the labs that they show."""
    if not re.fullmatch(app.config.lab_card_documents, app.env.docname):
        return
    used = {Path(app.srcdir, path).resolve() for path in app.env.dependencies.get(app.env.docname, ())}
    shown = [lab for lab in all_labs().values() if {lab.shown_file(app.config).resolve(), lab.script} & used]
    shown = [lab for lab in shown if not waits(lab, app.config)]
    if not shown:
        return
    top = next(document.findall(nodes.section))
    section = nodes.section("", nodes.title("", "The labs of this chapter"), ids=["labs-of-this-chapter"])
    section += nodes.container("", *(_card(app, lab) for lab in shown), classes=["lab-cards"])
    top += section


def _card(app: Sphinx, lab: Lab) -> nodes.container:
    docname, evidence = app.env.docname, lab_evidence(lab, app.config)
    title, question = title_and_question(lab)
    card = nodes.container(classes=["lab-card"])
    if figure := next((figure for block in evidence["blocks"] for figure in block.get("figures", ())), None):
        card += lab_picture(file=str(lab_source.ROOT / evidence["folder"] / figure["file"]))
    link = cross_reference(docname, "std:doc", f"/{lab.docname}", title)
    facts = " · ".join(filter(None, [str(lab.told[1]), seconds(evidence), launches_text(evidence["launches"])]))
    download = nodes.inline("", " · ", script_download(docname, lab, "script"), classes=["no-print"])
    card += nodes.paragraph("", "", link, classes=["lab-card-title"])
    card += nodes.paragraph("", question)
    card += nodes.paragraph("", "", nodes.Text(facts), download, classes=["lab-card-facts"])
    return card


# -- HTML -------------------------------------------------------------------------------------------


def visit_picture(self: HTML5Translator, node: lab_picture) -> None:
    """An image file beside the pages; it decorates, so it has no words."""
    if has_folds(self.builder):
        file = Path(node["file"])
        folder = Path(self.builder.outdir, PICTURES)
        folder.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / file.name)
        page = self.builder.get_target_uri(self.builder.current_docname)
        uri = relative_uri(page, f"{PICTURES}/{file.name}")
        self.body.append(f'<img class="lab-picture" src="{uri}" alt="" loading="lazy" width="144" height="80"/>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the node; the cards come when the pieces of labs have been read."""
    app.setup_extension("_ext.embed.lab_page")
    app.add_config_value("lab_card_documents", "", "env")
    app.add_node(lab_picture, html=(visit_picture, None))
    app.connect("doctree-read", add_cards, Reading.ENDS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
