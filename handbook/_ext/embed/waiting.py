"""Labs that no edition has run: ``{labs-waiting}`` is the one place where they stand, until an edition has run them.

``{lab-links} mfu gpu-memory`` is the line of a chapter that names its labs: ``Lab: …``, and nothing as long as they
wait.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..evidence import lab_source
from ..markup import cross_reference
from ..problems import suggestion, warn_at
from .lab_lists import title_and_question, what_it_will_show
from .lab_page import script_download


class LabsWaiting(SphinxDirective):
    """Its content, then each lab: its question, what it will show, its command, what it needs. Or that none waits."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make a section for each."""
        shown: list[nodes.Node] = []
        for lab in lab_source.all_labs().values():
            if lab_source.waits_here(lab, self.env):
                for file in (lab.script, lab.shown_file(self.config)):
                    self.env.note_dependency(str(file))
                shown.append(self._lab(lab))
        if shown:
            return [*self.parse_content_to_nodes(), *shown]
        return [nodes.paragraph("", "No lab is waiting: each has run in some edition.")]

    def _lab(self, lab: lab_source.Lab) -> nodes.section:
        docname, (title, question) = self.env.docname, title_and_question(lab)
        page = cross_reference(docname, "std:doc", f"/{lab.docname}", title)
        section = nodes.section("", nodes.title("", "", page), ids=[f"waiting-{lab.id}"])
        section += nodes.paragraph("", question)
        if said := what_it_will_show(lab):
            section += self.parse_text_to_nodes(f"````{{eval-rst}}\n{said}\n````")
        reason = lab_source.lab_evidence(lab, self.config).get("needs") or "has not been run yet"
        command = f"python {lab.script.relative_to(lab_source.ROOT).as_posix()}"
        download = nodes.inline("", " · ", script_download(docname, lab, "download the script"), classes=["no-print"])
        section += nodes.paragraph("", f"It {reason}. Run it: ", nodes.literal(command, command), download)
        return section


class LabLinks(SphinxDirective):
    """A line that links to labs, each by its id; without those that wait."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Make it; a name that is no lab is reported."""
        links: list[nodes.Node] = []
        known = lab_source.all_labs()
        for name in self.arguments[0].split():
            if name not in known:
                warn_at(self.env, f"lab-links: there is no lab {name!r}{suggestion(name, known)}", self.lineno)
                continue
            lab = known[name]
            self.env.note_dependency(str(lab.shown_file(self.config)))
            if not lab_source.waits(lab, self.config):
                link = cross_reference(self.env.docname, "std:doc", f"/{lab.docname}", lab.id, explicit=False)
                links += [nodes.Text(", "), link]
        if not links:
            return []
        return [
            nodes.paragraph("", "", nodes.Text("Labs: " if len(links) > 2 else "Lab: "), *links[1:], nodes.Text("."))
        ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.setup_extension("_ext.embed.lab_lists")
    app.add_directive("labs-waiting", LabsWaiting)
    app.add_directive("lab-links", LabLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
