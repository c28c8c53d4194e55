"""``{claim}``: a statement that a test shows on real ranks. ``{claims-list}``: all of them with tests and results.

The build ends if claims and tests do not pair up, or if a claim failed in the default edition. In another edition it
is shown as what it is: it does not hold there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from ddplab.recording import reach
from ddplab.recording.keys import kit_key

from ..evidence import lab_source
from ..evidence.proofs import (
    Proof,
    nccl_runs,
    proving_labs,
    read_proofs,
    read_results,
    result_files,
    result_of,
    results_edition,
    test_files,
)
from ..markup import inline
from ..news import SIDE_FORMS, to_write
from ..problems import BuildError, Problem, end_if_any, suggestion, warn_at
from . import claim_tests
from .claims_list import add_list, claims_list
from .claims_page import add_nodes, claim, claim_known
from .register import Entry, Register


class ClaimRegister(Register):
    """Ids of all claims; the id '' stands for a document that lists them."""

    name, label = "claims", "Claims"
    node = claim
    roles = {"claim": XRefRole(warn_dangling=True)}  # noqa: RUF012  as in Sphinx: a link to a claim from elsewhere
    dangling_warnings = {"claim": "there is no claim %(target)r"}  # noqa: RUF012  as in Sphinx

    def claims(self) -> list[Entry]:
        """All claims, in reading order."""
        return [entry for entry in self.entries() if entry.id]

    def lists(self) -> list[str]:
        """Documents that list all claims."""
        return [entry.docname for entry in self.entries() if not entry.id]

    def resolve_xref(
        self, env: BuildEnvironment, fromdocname: str, builder: Builder, typ: str, target: str, node: Any, contnode: Any
    ) -> nodes.reference | None:
        """Link to the claim's entry in the list (``typ`` "claim") or to its place in the text ("place")."""
        for entry in self.claims():
            if entry.id == target:
                places = [(docname, f"proof-{target}") for docname in self.lists() if typ == "claim"]
                places.append((entry.docname, f"claim-{target}"))
                return make_refnode(builder, fromdocname, *places[0], contnode)
        return None


HOLDS = ("any backend", "gloo", "not known on NCCL")


def _holds(argument: str) -> str:
    if argument.strip() not in HOLDS:  # directives.choice compares in lower case, which no "NCCL" equals
        raise ValueError(f"{argument.strip()!r}; choose from {', '.join(HOLDS)}")
    return argument.strip()


class ClaimDirective(SphinxDirective):
    """``{claim} id``: one testable sentence.

    ``:holds:`` says where it holds, one of ``HOLDS``; ``:known:`` how that is known: a run, a source by file, symbol
    and version, or a derivation. Where it was shown comes from the recording.
    """

    required_arguments = 1
    has_content = True
    option_spec = {"holds": _holds, "known": directives.unchanged_required}  # noqa: RUF012  as in docutils

    def run(self) -> list[nodes.Node]:
        """Note the claim and parse its sentence."""
        name, line = self.arguments[0], self.get_source_info()[1]
        if not "".join(self.content).strip():
            warn_at(self.env, f"the claim {name!r} is empty; write the sentence that a test shows", line)
            return []
        holds, known = self.options.get("holds", ""), " ".join(self.options.get("known", "").split())
        _register(self.env).note(Entry(name, self.env.docname, line, (holds, known)))
        node = claim(claim_id=name, ids=[f"claim-{name}"], holds=holds)
        self.set_source_info(node)
        node += self.parse_content_to_nodes()
        node += claim_known("", "", *(inline(self, known) if known else ()))
        return [node]


class ClaimsList(SphinxDirective):
    """``{claims-list}``: every claim of the book."""

    def run(self) -> list[nodes.Node]:
        """Note that this document lists the claims."""
        _register(self.env).note(Entry("", self.env.docname, self.get_source_info()[1]))
        return [claims_list()]


def _register(env: BuildEnvironment) -> ClaimRegister:
    return cast(ClaimRegister, env.domains["claims"])


def check(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """End the build if something does not pair up; else name the documents to write again: whose results changed."""
    register, edition = _register(env), results_edition(app.config)
    edition_name = edition.name if edition else ""
    digest = hashlib.sha256(f"{register.shown()} {kit_key()} {app.config.claims_need_scope} {edition_name}".encode())
    kept = [
        path
        for folder in sorted(lab_source.EDITIONS.glob("*"))
        for path in result_files(lab_source.edition(folder.name))
    ]
    for path in [*test_files(), *proving_labs(), *kept]:
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    builder, _, checked = register.data["checked"].partition(" ")
    if checked == digest.hexdigest() and app.builder.name in (builder, *SIDE_FORMS):
        return []  # all of it was checked by the last build
    with reach.unchanged():
        end_if_any(_problems(app, env), "claims")
        shown = _shown(register, read_results(edition))
    register.data["checked"] = f"{app.builder.name} {digest.hexdigest()}"
    claim_tests.note_changes(app)
    return to_write(app, "claims", shown)


def _shown(register: ClaimRegister, kept: dict[str, Any]) -> dict[str, object]:
    """What each document shows of tests and results: of its own claims, and a list of claims those of all."""
    proofs = {proof.claim: proof for proof in read_proofs()}
    shown: dict[str, dict[str, object]] = {}
    for entry in register.claims():
        proof = proofs.get(entry.id)
        result = result_of(proof, kept)
        test = (proof.path.name, proof.name, proof.lab) if proof else None
        shown.setdefault(entry.docname, {})[entry.id] = (test, result, nccl_runs(proof))
    everything = (register.shown(), shown.copy())
    return shown | dict.fromkeys(register.lists(), everything)


def _problems(app: Sphinx, env: BuildEnvironment) -> Iterator[Problem]:
    register = _register(env)
    yield from register.repeated("claim")
    try:
        tests = read_proofs()
    except SyntaxError as error:
        yield Problem(f"{error.filename}:{error.lineno}", f"not valid Python: {error.msg}")
        return
    stated = {entry.id for entry in register.claims()}
    proofs: dict[str, Proof] = {}
    for test in tests:
        proves = f"{test.said} proves {test.claim!r}"
        if test.claim in proofs:
            first = proofs[test.claim]
            yield Problem(test.place, f"{proves}, as {first.said} ({first.place}) does; keep one")
        elif test.claim not in stated:
            yield Problem(test.place, f"{proves}, which is not a claim{suggestion(test.claim, stated)}")
        proofs.setdefault(test.claim, test)
    yield from _unproved(register.claims(), proofs, app)
    if app.config.claims_need_scope:
        yield from _without_scope(register.claims())


def _without_scope(claims: list[Entry]) -> Iterator[Problem]:
    for entry in claims:
        holds, known = entry.content
        if not holds:
            message = f"the claim {entry.id!r} does not say where it holds; add :holds: with one of {', '.join(HOLDS)}"
            yield Problem((entry.docname, entry.line), message)
        elif holds != "gloo" and not known:
            message = f"the claim {entry.id!r} holds {holds!r}, and does not say how that is known; add :known:"
            yield Problem((entry.docname, entry.line), message)


def _unproved(claims: list[Entry], proofs: dict[str, Proof], app: Sphinx) -> Iterator[Problem]:
    edition = results_edition(app.config)
    try:
        kept = read_results(edition)
    except BuildError as error:
        yield Problem(str(edition.folder if edition else ""), str(error))
        kept = {}
    for entry in claims:
        test = proofs.get(entry.id)
        if test is None:
            message = (
                f"the claim {entry.id!r} has no test; mark one in tests/claims with @proves({entry.id!r}), "
                f"or put :Proves: {entry.id} below the level of a lab"
            )
            yield Problem((entry.docname, entry.line), message)
            continue
        try:
            result = result_of(test, kept)
        except ValueError as error:
            yield Problem(test.place, str(error))
            continue
        if result.state == "failed" and edition and edition.name == app.config.labs_default_edition:
            reason = f"the claim {entry.id!r} failed in the edition {edition.name}: {test.said} on {result.where}"
            yield Problem((entry.docname, entry.line), reason)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, their nodes and the check."""
    app.setup_extension("_ext.evidence.lab_source")
    app.add_domain(ClaimRegister)
    app.add_directive("claim", ClaimDirective)
    app.add_directive("claims-list", ClaimsList)
    app.add_config_value("claims_need_scope", False, "env", bool)
    add_list(app)
    add_nodes(app)
    claim_tests.setup(app)
    app.connect("env-updated", check)
    return {"version": "1", "env_version": 3, "parallel_read_safe": True, "parallel_write_safe": True}
