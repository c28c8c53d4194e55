"""How claims look: the tick behind each, and the list of all with the tests and their results."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

from ..evidence.proofs import Proof, Result, read_proofs, read_results, result_of, results_edition
from ..markup import close, cross_reference, has_folds
from .register import Entry

_TICKS = {
    "passed": ("✓", "shown by a test"),
    "skipped": ("○", "has a test, not shown in this edition"),
    "not run": ("○", "has a test, not run in this edition"),
    "failed": ("✗", "does not hold in this edition"),
}


class claim(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A statement; attribute ``claim_id``."""


class claim_tick(nodes.Inline, nodes.TextElement):  # noqa: N801
    """The mark behind a statement; attribute ``state``."""


class claims_list(nodes.General, nodes.Element):  # noqa: N801
    """The place of the list; filled in when the page is written, because it is about all documents."""


class claim_test(nodes.General, nodes.Element):  # noqa: N801
    """The source of a test; attribute ``label``."""


class ShowClaims(SphinxPostTransform):
    """Give each claim its tick, and fill in the list."""

    default_priority = 5  # before references are resolved
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        claims, places = list(self.document.findall(claim)), list(self.document.findall(claims_list))
        if not claims and not places:
            return
        self.proofs: dict[str, Proof] = {proof.claim: proof for proof in read_proofs()}
        self.results = read_results(results_edition(self.config))
        self.register: Any = self.env.domains["claims"]
        for node in claims:
            self._add_tick(node)
        for place in places:
            place.replace_self(list(self._chapters()))

    def _result(self, name: str) -> Result:
        return result_of(self.proofs.get(name), self.results)

    def _add_tick(self, node: claim) -> None:
        name = node["claim_id"]
        tick: nodes.Node = claim_tick("", "", state=self._result(name).state)
        if self.register.lists():
            tick = self._link(name, "claim", tick)
        last = node[-1] if isinstance(node[-1], nodes.paragraph) else nodes.paragraph()
        if last.parent is None:
            node += last
        last.extend([nodes.Text("\N{NO-BREAK SPACE}"), tick])

    def _link(self, name: str, to: str, content: nodes.Node) -> nodes.Element:
        return cross_reference(self.env.docname, f"claims:{to}", name, content)

    # -- the list ---------------------------------------------------------------------------------

    def _chapters(self) -> Iterator[nodes.section]:
        claims: list[Entry] = self.register.claims()
        for docname in dict.fromkeys(entry.docname for entry in claims):
            title = nodes.title("", "", *[child.deepcopy() for child in self.env.titles[docname]])
            section = nodes.section("", title, ids=[f"claims-{docname.replace('/', '-')}"])
            statements = {node["claim_id"]: node for node in self.env.get_doctree(docname).findall(claim)}
            for entry in claims:
                if entry.docname == docname:
                    section += self._entry(entry.id, statements[entry.id])
            yield section

    def _entry(self, name: str, statement: claim) -> nodes.Element:
        result, proof = self._result(name), self.proofs.get(name)
        entry = nodes.container(ids=[f"proof-{name}"], classes=["claim-entry"])
        entry.extend(child.deepcopy() for child in statement.children)
        for reference in entry.findall(addnodes.pending_xref):
            reference["refdoc"] = self.env.docname
        for link in list(entry.findall(nodes.reference)):
            if "refid" in link:  # leads to a place beside the claim, not beside its copy
                link.replace_self(nodes.inline("", "", *link.children))
        state = nodes.inline("", result.state, classes=["claim-state", f"claim-{result.state.replace(' ', '-')}"])
        about = result.where if result.failed else result.why or result.where
        where = f": {about}" if result.where else " in this edition"
        where = f", so it does not hold here{where}" if result.state == "failed" else where
        stale = " · stale: the test changed since" if result.stale else ""
        place = self._link(name, "place", nodes.inline("", "Its place in the text"))
        entry += nodes.paragraph("", "", state, nodes.Text(f"{where}{stale}. "), place, classes=["claim-result"])
        if result.failed:
            entry += nodes.literal_block(result.failed, result.failed, language="none", classes=["claim-failed"])
        if proof:
            code = nodes.literal_block(proof.source, proof.source, language="python")
            entry += claim_test("", code, label=f"tests/claims/{proof.path.name}::{proof.name}")
        return entry


# -- HTML -------------------------------------------------------------------------------------------


def visit_claim(self: HTML5Translator, node: nodes.Element) -> None:
    """A block of its own, which can be linked to."""
    self.body.append(f'<div class="claim" id="{node["ids"][0]}">\n')
    self.context.append("</div>\n")


def visit_tick(self: HTML5Translator, node: nodes.Element) -> None:
    """One character, read aloud as words."""
    mark, words = _TICKS[node["state"]]
    state = node["state"].replace(" ", "-")
    self.body.append(f'<span class="claim-tick claim-{state}" role="img" aria-label="{words}" title="{words}">{mark}')
    self.context.append("</span>")


def visit_test(self: HTML5Translator, node: nodes.Element) -> None:
    """Source in a fold on the web, below its name elsewhere."""
    label = f"<code>{escape(node['label'])}</code>"
    if has_folds(self.builder):
        self.body.append(f'<details class="claim-test"><summary>{label}</summary>\n')
        self.context.append("</details>\n")
    elif self.builder.name == "bookpdf":  # all sources together would fill a tenth of the book
        self.body.append(f'<div class="claim-test"><p>{label}</p></div>\n')
        raise nodes.SkipNode
    else:
        self.body.append(f'<div class="claim-test"><p>{label}</p>\n')
        self.context.append("</div>\n")


def add_nodes(app: Sphinx) -> None:
    """Register the nodes of this file."""
    app.add_node(claim, html=(visit_claim, close))
    app.add_node(claim_tick, html=(visit_tick, close))
    app.add_node(claim_test, html=(visit_test, close))
    app.add_node(claims_list)
