"""Lists of labs, each with its level: a gallery's page, which has the questions, too, and ``{labs}``, which has all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..evidence.lab_source import Lab, all_labs, waits_here
from ..markup import cross_reference
from ..order import Reading
from .lab_page import WAITING


class Labs(SphinxDirective):
    """``{labs}``: the titles of all labs by gallery, in the order of the configuration."""

    def run(self) -> list[nodes.Node]:
        """Make the lists; a hidden toctree beside it says where the pages stand in the book."""
        wrapper = nodes.compound(classes=["toctree-wrapper", "all-labs"])  # as a toctree: not in print
        for gallery in self.config.sphinx_gallery_conf["gallery_dirs"]:
            labs = [lab for lab in in_gallery(gallery) if not waits_here(lab, self.env)]
            if not labs:
                continue
            header = Path(self.env.srcdir, "..", "gallery", Path(gallery).name, "GALLERY_HEADER.rst")
            self.env.note_dependency(str(header))
            title = header.read_text(encoding="utf-8").partition("\n")[0]
            link = cross_reference(self.env.docname, "std:doc", f"/{gallery}/index", title)
            listing = nodes.bullet_list()
            for lab in labs:
                self.env.note_dependency(str(lab.script))
                listing += nodes.list_item("", nodes.paragraph("", "", *_named(self.env.docname, lab)))
            wrapper += [nodes.paragraph("", "", link, classes=["gallery-title"]), listing]
        return [wrapper]


def in_gallery(gallery: str) -> list[Lab]:
    """The labs whose pages stand in a folder such as ``labs/idea``, in its order."""
    return [lab for lab in all_labs().values() if lab.docname.rpartition("/")[0] == gallery]


def leave_out(app: Sphinx, doctree: nodes.document) -> None:
    """Take labs that no edition has run, and galleries of nothing else, out of the lists that make the book."""
    for tree in list(doctree.findall(addnodes.toctree)):
        for name in [name for name in tree["includefiles"] if name.startswith("labs/")]:
            gallery, _, page = name.rpartition("/")
            labs = [lab for lab in in_gallery(gallery) if page == "index" or lab.docname == name]
            if labs and all(waits_here(lab, app.env) for lab in labs):
                tree["includefiles"].remove(name)
                tree["entries"] = [entry for entry in tree["entries"] if entry[1] != name]
        if not tree["entries"]:
            tree.parent.remove(tree)


def list_labs(app: Sphinx, doctree: nodes.document) -> None:
    """Make a gallery's page a list of titles and questions, in place of sphinx-gallery's thumbnails."""
    gallery, _, name = app.env.docname.rpartition("/")
    labs = in_gallery(gallery) if name == "index" else []
    if not labs:
        return
    (section,) = doctree.findall(nodes.section)
    trees = list(section.findall(addnodes.toctree))
    intro = [node for node in section.children if isinstance(node, nodes.title | nodes.paragraph)][:2]
    shown = [lab for lab in labs if not waits_here(lab, app.env)]
    if not shown:
        app.env.metadata[app.env.docname] |= dict.fromkeys(("orphan", "nosearch"), "true")
        said = nodes.paragraph("", "No edition has run these labs yet. ")
        section[:] = [intro[0], said]
        if WAITING in app.env.found_docs:
            said += cross_reference(app.env.docname, "std:doc", f"/{WAITING}", "Waiting for a GPU")
        return
    listing = nodes.definition_list(classes=["labs"])
    for lab in shown:
        app.env.note_dependency(str(lab.script))
        definition = nodes.definition("", nodes.paragraph("", title_and_question(lab)[1]))
        term = nodes.term("", "", *_named(app.env.docname, lab))
        listing += nodes.definition_list_item("", term, definition)
    section[:] = [*intro, listing, *(nodes.compound("", tree, classes=["toctree-wrapper"]) for tree in trees)]


def _named(docname: str, lab: Lab) -> list[nodes.Node]:
    """A link to a lab, and its level."""
    link = cross_reference(docname, "std:doc", f"/{lab.docname}", title_and_question(lab)[0])
    return [link, nodes.Text(" "), nodes.inline("", str(lab.told[1]), classes=["level"])]


def title_and_question(lab: Lab) -> tuple[str, str]:
    """The title of a lab, and the first sentence of its introduction: the question that it answers."""
    title, _, rest = lab.told[0].strip().partition("\n")
    paragraph = " ".join(rest.lstrip("=- \n").split("\n\n")[0].split())
    sentence = re.match(r".*?[.?](?= |$)", paragraph)
    plain = re.sub(r":\w+:`([^`<]*?)(?: <[^`]*>)?`|``([^`]*)``", r"\1\2", sentence[0] if sentence else paragraph)
    return title, plain


def what_it_will_show(lab: Lab) -> str:
    """The prose of a lab's section of that name, as reStructuredText; empty where it has none."""
    said = re.search(r"^# What it will show\n# -+\n((?:#.*\n)+)", lab.script.read_text(encoding="utf-8"), re.MULTILINE)
    return re.sub(r"^# ?", "", said[1], flags=re.MULTILINE).strip() if said else ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive; lists change before Sphinx collects them."""
    app.add_directive("labs", Labs)
    app.connect("doctree-read", leave_out, Reading.PAGES)
    app.connect("doctree-read", list_labs, Reading.PAGES)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
