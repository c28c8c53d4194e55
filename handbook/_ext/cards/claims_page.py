"""How a claim looks where it stands: its statement, a tick that names its scope, and a panel that the tick opens.

The panel is a popover of HTML: it needs no script, Esc closes it, and where a browser has none it stands in the text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

from ddplab.recording import reach

from ..evidence.proofs import NcclRun, Proof, Result, nccl_runs, read_proofs, read_results, result_of, results_edition
from ..markup import close, cross_reference, has_folds
from ..order import Resolving
from .claim_tests import test_uri

STATES = {
    "passed": ("✓", "shown by a {by}"),
    "skipped": ("○", "has a {by}, not shown in this edition"),
    "not run": ("○", "has a {by}, not run in this edition"),
    "failed": ("✗", "does not hold in this edition"),
}
# Where a claim holds: what stands beside the tick, and what it says.
SCOPES = {
    "": ("", ""),
    "any backend": ("", "on any backend"),
    "gloo": ("gloo", "on gloo"),
    "not known on NCCL": ("NCCL?", "on gloo; not known on NCCL"),
    "gloo and NCCL": ("", "on gloo and on NCCL"),
}


class claim(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A statement; attributes ``claim_id``, ``holds``; its last child is a ``claim_known``."""


class claim_known(nodes.Inline, nodes.TextElement):  # noqa: N801
    """How the scope of a claim is known; shown by its panel and the list, not where it stands."""


class claim_tick(nodes.Inline, nodes.TextElement):  # noqa: N801
    """The mark behind a statement; attributes ``state``, ``label``, ``words``, ``nccl``, ``by``, ``panel`` (its)."""


class claim_panel(nodes.General, nodes.Element):  # noqa: N801
    """What a tick opens; its children are ``claim_fact``."""


class claim_fact(nodes.Part, nodes.TextElement):  # noqa: N801
    """One line of a panel; attribute ``label``."""


def scope_of(holds: str, runs: Sequence[NcclRun]) -> str:
    """Where a claim holds, one of ``SCOPES``: as its author knows it, unless an edition ran it, as it is, on NCCL."""
    runs = [run for run in runs if not run.stale]
    if holds and any(not run.passed for run in runs):
        return "gloo"
    if holds == "not known on NCCL" and any(run.whole for run in runs):
        return "gloo and NCCL"
    return holds


def statement_of(node: claim) -> list[nodes.Node]:
    """The sentence, without how its scope is known."""
    return [child for child in node.children if not isinstance(child, claim_known)]


def known_of(node: claim) -> list[nodes.Node]:
    """How the scope is known, for another place in the same build."""
    known = next(iter(node.findall(claim_known)), None)
    return [child.deepcopy() for child in known.children] if known else []


class ClaimTransform(SphinxPostTransform):
    """What the marks and the list share: tests, results, links."""

    formats = ("html",)

    @functools.cached_property
    def proofs(self) -> dict[str, Proof]:
        """The test of each claim."""
        return {proof.claim: proof for proof in read_proofs()}

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """What the edition recorded of each claim."""
        return read_results(results_edition(self.config))

    @property
    def register(self) -> Any:
        """All claims of the book."""
        return self.env.domains["claims"]

    def result(self, name: str) -> Result:
        """What the edition says of a claim."""
        return result_of(self.proofs.get(name), self.results)

    def nccl(self, name: str) -> list[NcclRun]:
        """What all editions say of a claim under NCCL."""
        return nccl_runs(self.proofs.get(name))

    def link(self, name: str, to: str, content: nodes.Node) -> nodes.Element:
        """To the place of a claim (``to`` "place") or its entry in the list ("claim")."""
        return cross_reference(self.env.docname, f"claims:{to}", name, content)


class MarkClaims(ClaimTransform):
    """Give each claim its tick and its panel."""

    default_priority = Resolving.TICKS

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        with reach.unchanged():
            for node in list(self.document.findall(claim)):
                self._mark(node)

    def _mark(self, node: claim) -> None:
        name = node["claim_id"]
        result = self.result(name)
        runs = self.nccl(name)
        label, words = SCOPES[scope_of(node["holds"], runs)]
        nccl = "; ".join(run.text for run in runs)
        by = "lab" if (proof := self.proofs.get(name)) and proof.lab else "test"
        tick: nodes.Node = claim_tick("", "", state=result.state, label=label, words=words, nccl=nccl, by=by, panel="")
        known = known_of(node)
        node[:] = statement_of(node)
        last = node[-1] if isinstance(node[-1], nodes.paragraph) else nodes.paragraph()
        if last.parent is None:
            node += last
        if has_folds(self.app.builder):
            cast(nodes.Element, tick)["panel"] = panel = f"shown-{name}"
            node += claim_panel(
                "", *self._facts(name, result, "; ".join(filter(None, [words, nccl])), known), ids=[panel]
            )
        elif self.register.lists():
            tick = self.link(name, "claim", tick)
        last.extend([nodes.Text("\N{NO-BREAK SPACE}"), tick])

    def _facts(self, name: str, result: Result, words: str, known: list[nodes.Node]) -> Iterator[nodes.Node]:
        yield claim_fact("", shown_text(result, self.config), label="Shown")
        if words:
            yield claim_fact("", words, label="Holds")
        if known:
            yield claim_fact("", "", *known, label="Known")
        links: list[nodes.Node] = []
        if proof := self.proofs.get(name):
            uri = test_uri(self.app.builder, self.env.docname, proof)
            links.append(
                nodes.reference("", f"the lab {proof.lab}" if proof.lab else "the test", internal=True, refuri=uri)
            )
        if self.register.lists():
            links.append(self.link(name, "claim", nodes.inline("", "all claims")))
        between = [part for link in links for part in (nodes.Text(" · "), link)][1:]
        if between:
            yield claim_fact("", "", *between, label="See")


def shown_text(result: Result, config: Any) -> str:
    """What the edition says of a claim: its result and, if it was run, where."""
    edition = results_edition(config)
    where = f"{result.where} · edition {edition.name}" if result.where and edition else ""
    stale = " · stale: the test changed since" if result.stale else ""
    if result.state == "failed":
        return f"does not hold here: {where}{stale}"
    if result.state == "skipped":
        return f"not in this edition: {result.why}{stale}" if result.why else f"not in this edition{stale}"
    return f"{where}{stale}" if result.state == "passed" else "not run in this edition"


# -- HTML -------------------------------------------------------------------------------------------


def visit_claim(self: HTML5Translator, node: nodes.Element) -> None:
    """A block of its own, which can be linked to."""
    self.body.append(f'<div class="claim" id="{node["ids"][0]}">\n')
    self.context.append("</div>\n")


def visit_known(self: HTML5Translator, node: nodes.Element) -> None:
    """Nothing where the claim stands."""
    raise nodes.SkipNode


def visit_tick(self: HTML5Translator, node: nodes.Element) -> None:
    """A mark and, where the claim does not hold on every backend, the scope; read aloud as words."""
    mark, words = STATES[node["state"]]
    state, label = node["state"].replace(" ", "-"), node["label"]
    words = (
        words.format(by=node["by"])
        + f"; holds {node['words']}" * bool(node["words"])
        + f"; {node['nccl']}" * bool(node["nccl"])
    )
    classes = f"claim-tick claim-{state}" + " claim-scoped" * bool(label)
    text = f"{mark}\N{NO-BREAK SPACE}{label}" if label else mark
    if node["panel"]:
        spoken = f"{label}: {words}" if label else words  # begins with what is seen, for who speaks to a computer
        self.body.append(
            f'<button type="button" class="{classes}" popovertarget="{node["panel"]}" '
            f'aria-label="{spoken}" title="{words}"><span>{text}</span>'
        )
        self.context.append("</button>")
    else:
        self.body.append(f'<span class="{classes}" role="img" aria-label="{words}" title="{words}">{text}')
        self.context.append("</span>")


def visit_panel(self: HTML5Translator, node: nodes.Element) -> None:
    """A popover, which stands in the text where a browser knows none."""
    self.body.append(f'<div class="claim-panel" id="{node["ids"][0]}" popover role="dialog" aria-label="Evidence">\n')
    self.context.append("</div>\n")


def visit_fact(self: HTML5Translator, node: nodes.Element) -> None:
    """A line with its name."""
    self.body.append(f"<p><b>{node['label']}</b> ")
    self.context.append("</p>\n")


def add_nodes(app: Sphinx) -> None:
    """Register the nodes of this file, and what makes them."""
    app.add_node(claim, html=(visit_claim, close))
    app.add_node(claim_known, html=(visit_known, None))
    app.add_node(claim_tick, html=(visit_tick, close))
    app.add_node(claim_panel, html=(visit_panel, close))
    app.add_node(claim_fact, html=(visit_fact, close))
    app.add_post_transform(MarkClaims)
