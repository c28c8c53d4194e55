"""The list of all claims: statement, where it holds and how that is known, what showed it; and a count of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from ddplab.recording import reach
from ddplab.recording.machine import processor

from ..evidence.proofs import results_edition
from ..markup import close, has_folds
from ..order import Resolving
from .claim_tests import test_uri
from .claims_page import SCOPES, STATES, ClaimTransform, claim, known_of, scope_of, statement_of
from .register import Entry

SCRIPT = "list-filter.js"
_COUNTED = {
    "any backend": "hold on any backend",
    "gloo": "hold on gloo",
    "not known on NCCL": "are not known on NCCL",
    "gloo and NCCL": "hold on gloo and on NCCL",
    "": "do not say yet where they hold",
}


class claims_list(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """The place of the list; filled in when the page is written, because it is about all documents."""


class claims_part(nodes.General, nodes.TextElement):  # noqa: N801
    """An element of HTML, without what docutils writes around one: attributes ``tag`` and ``also`` (its attributes)."""


def part(tag: str, *children: nodes.Node, **also: str) -> claims_part:
    """A `claims_part`."""
    return claims_part("", "", *children, tag=tag, also={name.rstrip("_"): value for name, value in also.items()})


class ListClaims(ClaimTransform):
    """Fill in the list."""

    default_priority = Resolving.COPIES

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        for place in list(self.document.findall(claims_list)):
            claims: list[Entry] = self.register.claims()
            with reach.unchanged():
                place.replace_self([*self._counts(claims), part("table", *self._chapters(claims), class_="claims")])

    def _counts(self, claims: list[Entry]) -> Iterator[nodes.Node]:
        runs = {entry.id: self.nccl(entry.id) for entry in claims}
        holds = Counter(scope_of(entry.content[0], runs[entry.id]) for entry in claims)
        scopes = ", ".join(f"{holds[scope]} {text}" for scope, text in _COUNTED.items() if holds[scope])
        count = "1 claim" if len(claims) == 1 else f"{len(claims)} claims"
        yield nodes.paragraph("", f"{count}: {scopes}." if claims else "No claims.", classes=["claims-count"])
        edition = results_edition(self.config)
        kept = [self.results[entry.id] for entry in claims if entry.id in self.results]
        if edition and kept:
            states = Counter(self.result(entry.id).state for entry in claims)
            versions = {launch["torch"].partition("+")[0] for result in kept for launch in result["launches"]}
            days = sorted({result["date"][:10] for result in kept})
            ran_on = " and ".join(dict.fromkeys(processor(result["machine"]) for result in kept))
            on = [ran_on, *(f"torch {version}" for version in sorted(versions))]
            when = " to ".join(dict.fromkeys([days[0], days[-1]]))
            found = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
            text = f"In the edition {edition.name} ({', '.join([*on, when])}): {found}."
            yield nodes.paragraph("", text, classes=["claims-count"])
        if ran := [of for of in runs.values() if of]:
            fail = sum(any(not run.passed for run in of) for of in ran)
            text = f"Run on NCCL: {len(ran)}" + (f"; {fail} of them failed there." if fail else ".")
            yield nodes.paragraph("", text, classes=["claims-count"])

    def _chapters(self, claims: list[Entry]) -> Iterator[nodes.Node]:
        names = ("Statement", "Holds", "Shown")
        yield part("thead", part("tr", *(part("th", nodes.Text(name), scope="col") for name in names)))
        for docname in dict.fromkeys(entry.docname for entry in claims):
            title = nodes.inline("", "", *[child.deepcopy() for child in self.env.titles[docname]])
            head = part("th", title, colspan="3", scope="rowgroup")
            statements = {node["claim_id"]: node for node in self.env.get_doctree(docname).findall(claim)}
            rows = [self._row(docname, entry.id, statements[entry.id]) for entry in claims if entry.docname == docname]
            yield part("tbody", part("tr", head), *rows, id=f"claims-{docname.replace('/', '-')}")

    def _row(self, docname: str, name: str, node: claim) -> nodes.Node:
        result, proof = self.result(name), self.proofs.get(name)
        said = [child.deepcopy() for child in statement_of(node)]
        if len(said) == 1 and isinstance(said[0], nodes.paragraph):
            said = said[0].children
        uri = f"{self.app.builder.get_relative_uri(self.env.docname, docname)}#claim-{name}"
        seen: nodes.Node = nodes.Text("in the text")
        if not has_folds(self.app.builder):  # in print the page number stands behind it
            seen = nodes.inline("", "in the text", classes=["std-ref"])
        statement = part("td", *said, nodes.Text(" "), part("a", seen, href=uri))
        runs = self.nccl(name)
        scope = scope_of(node["holds"], runs)
        holds = part("td", nodes.Text("; ".join(filter(None, [SCOPES[scope][1], *(run.text for run in runs)]))))
        if known := known_of(node):
            holds += part("small", *known)
        mark, _ = STATES[result.state]
        about = result.why or result.ranks or "passed" if result.state in {"passed", "skipped"} else result.state
        stale = " · stale: the test changed since" if result.stale else ""
        shown = part("td", nodes.Text(f"{mark}\N{NO-BREAK SPACE}{about}{stale} "))
        if proof and has_folds(self.app.builder):
            shown += part(
                "a",
                nodes.Text("lab" if proof.lab else "test"),
                href=test_uri(self.app.builder, self.env.docname, proof),
            )
        if result.failed:
            said_of = nodes.literal_block(result.failed, result.failed, language="none", classes=["claim-failed"])
            statement += [nodes.paragraph("", f"Does not hold here: {result.where}{stale}."), said_of]
        row = part("tr", statement, holds, shown, id=f"proof-{name}")
        row["also"]["data-holds"] = scope
        for reference in row.findall(addnodes.pending_xref):
            reference["refdoc"] = self.env.docname
        for link in list(row.findall(nodes.reference)):
            if "refid" in link:  # leads to a place beside the claim, not beside its copy
                link.replace_self(nodes.inline("", "", *link.children))
        for literal in list(row.findall(nodes.literal)):  # as docutils writes it, an element for each word
            literal.replace_self(part("code", nodes.Text(literal.astext()), class_="literal"))
        return row


# -- HTML -------------------------------------------------------------------------------------------


def visit_part(self: HTML5Translator, node: nodes.Element) -> None:
    """The element as it is named."""
    also = "".join(f' {name}="{escape(value)}"' for name, value in node["also"].items())
    self.body.append(f"<{node['tag']}{also}>")
    self.context.append(f"</{node['tag']}>" + "\n" * (node["tag"] in {"tr", "thead", "tbody", "table"}))


def add_script(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only the page that lists claims loads what filters them."""
    if has_folds(app.builder) and doctree and any(part["tag"] == "table" for part in doctree.findall(claims_part)):
        app.add_js_file(SCRIPT, loading_method="defer")


def add_list(app: Sphinx) -> None:
    """Register the nodes of this file, and what makes them."""
    app.add_node(claims_list)
    app.add_node(claims_part, html=(visit_part, close))
    app.add_post_transform(ListClaims)
    app.connect("html-page-context", add_script)
