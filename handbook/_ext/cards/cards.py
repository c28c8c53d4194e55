"""``{interview}`` and ``{quiz}``: the directives, and the check that no two cards of the book share an id."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from os.path import relpath
from pathlib import Path
from typing import Any, ClassVar, cast

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from ..evidence import lab_source
from ..markup import cross_reference, inline
from ..news import nothing_read
from ..problems import BuildError, end_if_any, suggestion, warn_at
from .card_page import (
    add_nodes,
    card,
    card_part,
    card_question,
    quiz_choice,
    quiz_option,
    quiz_options,
    quiz_reason,
    quiz_reasons,
)
from .card_source import OPTIONS, Card, CardError, Passage, letter, parse_card
from .register import Entry, Register

LABELS = {  # of the parts, in the order in which they are shown; the answer needs none
    "answer": "",
    "weak": "A weak answer",
    "flags": "Red flags",
    "depth": "In depth",
    "follow-ups": "Likely follow-ups",
    "why": "Answer",
}


class CardRegister(Register):
    """Ids of all cards."""

    name, label = "cards", "Cards"
    node = card


class CardDirective(SphinxDirective):
    """Common to both kinds of card."""

    kind: ClassVar[str]
    required_arguments = 1
    has_content = True
    option_spec: ClassVar[Any] = OPTIONS

    def run(self) -> list[nodes.Node]:
        """Read the card, then make its nodes; a card with an error is reported and left out."""
        path, line = self.get_source_info()
        body = Passage("\n".join(self.content), line + self.content_offset + 1)
        try:
            source = parse_card(self.kind, self.arguments[0], self.options, body, Path(path), line)
        except CardError as error:
            warn_at(self.env, str(error), error.line)
            return []
        _register(self.env).note(Entry(source.id, self.env.docname, line, source))
        node = card(source_card=source, kind=source.kind, ids=[f"card-{source.id}"])
        self.set_source_info(node)
        node += card_question("", "", *inline(self, source.question), kind=source.kind, level=source.level)
        if source.options:
            node += self.options_of(source)
        parts = {}
        for part, label in LABELS.items():
            if part in source.parts:
                shown = f"{label}: {source.right_letters}" if part == "why" else label
                parts[part] = self.parsed(source.parts[part], body.line, card_part(part=part, label=shown))
        if source.options:
            parts["why"] += quiz_reasons("", "", *reasons(source, lambda text: inline(self, text)))
        node.extend(parts.values())
        if source.evidence:
            links = nodes.paragraph("", "", *self.evidence(source))
            evidence = card_part("", links, part="evidence", label="Evidence")
            parts.get("why", node).append(evidence)  # a quiz shows it with its answer
        return [node]

    def parsed(self, passage: Passage, first_line: int, into: card_part) -> card_part:
        """Put the nodes of ``passage`` into a part."""
        lines = StringList(passage.text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset + passage.line - first_line, into)
        return into

    def options_of(self, source: Card) -> quiz_options:
        """The options of a quiz."""
        several = sum(option.right for option in source.options) > 1
        made = quiz_options()
        for option in source.options:
            text = inline(self, option.text)
            choice = quiz_choice("", "", *text, right=option.right, several=several, group=f"card-{source.id}")
            why = [quiz_reason("", "", *inline(self, option.why))] if option.why else []
            made += quiz_option("", choice, *why)
        return made

    def evidence(self, source: Card) -> Iterator[nodes.Node]:
        """Links to what shows the answer, with a dot between them."""
        first = True
        for kind, target in source.evidence:
            lab = lab_source.all_labs().get(target) if kind == "lab" else None
            if lab and lab_source.waits_here(lab, self.env):
                continue  # no card points to it until an edition has run it
            if not first:
                yield nodes.Text(" · ")
            first = False
            if kind == "cite":
                yield from inline(self, f"source {{cite:p}}`{target}`")
                continue
            text = f"claim {target.replace('-', ' ')}" if kind == "claim" else target
            if kind == "lab":
                if lab is None:
                    message = f"{source.kind} {source.id!r}: evidence lab:{target} is not a lab"
                    warn_at(self.env, message + suggestion(target, lab_source.all_labs()), self.lineno)
                    continue
                target = f"/{lab.docname}"
            role = {"lab": "std:doc", "claim": "claims:claim", "section": "std:ref"}[kind]
            reference = cross_reference(self.env.docname, role, target, text, explicit=False)
            self.set_source_info(reference)
            yield reference


def reasons(source: Card, inline_of: Callable[[str], list[nodes.Node]]) -> Iterator[nodes.Node]:
    """Why each wrong option of a quiz is wrong, with its letter."""
    for place, option in enumerate(source.options):
        if option.why:
            yield nodes.strong("", f"{letter(place)}:")
            yield from (nodes.Text(" "), *inline_of(option.why), nodes.Text(" "))


class Interview(CardDirective):
    """A question, its 30-second answer, and what lies behind it."""

    kind = "interview"


class Quiz(CardDirective):
    """A question with options, at least one of them right, and why."""

    kind = "quiz"


def _register(env: BuildEnvironment) -> CardRegister:
    return cast(CardRegister, env.domains["cards"])


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """No two cards of the book share an id. What the book holds is kept for the decks, a project of their own."""
    if nothing_read(env) and _kept().is_file():
        return
    register = _register(env)
    end_if_any(register.repeated("card"), "cards")
    _kept().parent.mkdir(exist_ok=True)
    cards: dict[str, Card] = {entry.id: entry.content for entry in register.entries()}
    with _kept().open("wb") as file:
        pickler = pickle.Pickler(file)
        pickler.fast = True  # the same bytes, whichever process read a page
        pickler.dump(
            {name: replace(card, path=Path(relpath(card.path, lab_source.ROOT))) for name, card in cards.items()}
        )


def cards_of_the_book() -> dict[str, Card]:
    """Every card of the book by id, in reading order, as the last build read it.

    Raises:
        BuildError: the book has not been built, or by another version of this code.
    """
    try:
        found: dict[str, Card] = pickle.loads(_kept().read_bytes())
    except (OSError, pickle.UnpicklingError, AttributeError, ImportError, EOFError):
        raise BuildError(f"the cards of the book are not in {_kept()}; run: make html") from None
    return {name: replace(card, path=lab_source.ROOT / card.path) for name, card in found.items()}


def _kept() -> Path:
    return lab_source.ROOT / "_build" / "cards.pickle"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, their nodes and the check."""
    app.add_domain(CardRegister)
    app.add_directive("interview", Interview)
    app.add_directive("quiz", Quiz)
    add_nodes(app)
    app.connect("env-updated", check)
    return {"version": "1", "env_version": 4, "parallel_read_safe": True, "parallel_write_safe": True}
