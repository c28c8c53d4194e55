"""``{interview}`` and ``{quiz}``: folds and choices on the web that need no script, plain text everywhere else.

What is print or web is decided when a page is written, so all builders can share what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

import labs
from card_source import OPTIONS, Card, CardError, Passage, parse_card
from card_source import read_cards as read_cards
from register import Entry, Register, complain, stop_on

_LABELS = {"depth": "In depth", "follow-ups": "Likely follow-ups", "evidence": "Evidence"}


class card(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A whole card: attributes ``source_card`` (Card), ``kind``, ``ids``."""


class card_question(nodes.General, nodes.TextElement):  # noqa: N801
    """The question; attributes ``kind``, ``level``."""


class card_part(nodes.General, nodes.Element):  # noqa: N801
    """One part of the answer; attributes ``part``, ``label``."""


class quiz_options(nodes.General, nodes.Element):  # noqa: N801
    """The options of a quiz."""


class quiz_option(nodes.General, nodes.TextElement):  # noqa: N801
    """One option; attributes ``right``, ``several`` (more than one is right), ``group``."""


class CardRegister(Register):
    """Ids of all cards."""

    name, label = "cards", "Cards"


def folds(builder: Builder) -> bool:
    """Whether pages of this builder are read in a browser, with folds and inputs; others are paper-like."""
    return builder.name in ("html", "dirhtml")


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
            complain(self.env, error.reason, error.line)
            return []
        register = self.env.domains["cards"]
        assert isinstance(register, CardRegister)
        register.note(Entry(source.id, self.env.docname, line))
        node = card(source_card=source, kind=source.kind, ids=[f"card-{source.id}"])
        self.set_source_info(node)
        node += card_question("", "", *self.inline(source.question), kind=source.kind, level=source.level)
        if source.options:
            node += self.options_of(source)
        for part in ("answer", "depth", "follow-ups", "why"):
            if part in source.parts:
                label = f"Answer: {source.right_letters}" if part == "why" else _LABELS.get(part, "")
                part_node = self.parsed(source.parts[part], body.line, card_part(part=part, label=label))
                node += part_node
        if source.evidence:
            links = nodes.paragraph("", "", *self.evidence(source))
            evidence = card_part("", links, part="evidence", label=_LABELS["evidence"])
            (part_node if source.kind == "quiz" else node).append(evidence)  # a quiz shows it with its answer
        return [node]

    def inline(self, text: str) -> list[nodes.Node]:
        """Nodes of inline source text."""
        found, messages = self.parse_inline(text, lineno=self.lineno)
        return [*found, *messages]

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
            text = self.inline(option.text)
            made += quiz_option("", "", *text, right=option.right, several=several, group=f"card-{source.id}")
        return made

    def evidence(self, source: Card) -> Iterator[nodes.Node]:
        """Links to what shows the answer, with a comma between them."""
        for place, (kind, target) in enumerate(source.evidence):
            if place:
                yield nodes.Text(" · ")
            domain, reftype = {"lab": ("std", "doc"), "claim": ("claims", "claim"), "section": ("std", "ref")}[kind]
            text = f"claim {target.replace('-', ' ')}" if kind == "claim" else target
            if kind == "lab":
                lab = labs.all_labs().get(target)
                if lab is None:
                    complain(self.env, f"{source.kind} {source.id!r}: evidence lab:{target} is no lab", self.lineno)
                    continue
                target = f"/{lab.docname}"
            where = {"refdoc": self.env.docname, "refdomain": domain, "reftype": reftype, "reftarget": target}
            reference = addnodes.pending_xref("", nodes.inline("", text), refexplicit=False, refwarn=True, **where)
            self.set_source_info(reference)
            yield reference


class Interview(CardDirective):
    """A question, its 30-second answer, and what lies behind it."""

    kind = "interview"


class Quiz(CardDirective):
    """A question with options, at least one of them right, and why."""

    kind = "quiz"


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """No two cards of the book share an id."""
    register = env.domains["cards"]
    assert isinstance(register, CardRegister)
    stop_on(register.repeated("card"), "cards")


# -- HTML -------------------------------------------------------------------------------------------


def visit_card(self: HTML5Translator, node: nodes.Element) -> None:
    """A fold for an interview card, a group of inputs for a quiz, a plain block off the web."""
    tag = {"interview": "details", "quiz": "fieldset"}[node["kind"]] if folds(self.builder) else "div"
    data = f' data-level="{node["source_card"].level}"' if node["source_card"].level else ""
    self.body.append(f'<{tag} class="card {node["kind"]}" id="{node["ids"][0]}"{data}>\n')
    self.context.append(f"</{tag}>\n")


def depart_by_context(self: HTML5Translator, node: nodes.Element) -> None:
    """Close what the visit opened."""
    self.body.append(self.context.pop())


def visit_question(self: HTML5Translator, node: nodes.Element) -> None:
    """The handle of the fold, or the name of the group of inputs."""
    tag = {"interview": "summary", "quiz": "legend"}[node["kind"]] if folds(self.builder) else "p"
    self.body.append(f'<{tag} class="card-question"><span>')
    level = f' <span class="card-level">{node["level"]}</span>' if node["level"] else ""
    self.context.append(f"</span>{level}</{tag}>\n")


def visit_part(self: HTML5Translator, node: nodes.Element) -> None:
    """A part below its label; the answer of a quiz is folded on the web."""
    label = escape(node["label"])
    if node["part"] == "why" and folds(self.builder):
        self.body.append(f'<details class="card-why"><summary>Answer</summary>\n<p class="card-label">{label}</p>\n')
        self.context.append("</details>\n")
    else:
        heading = f'<p class="card-label">{label}</p>\n' if label else ""
        self.body.append(f'<div class="card-{node["part"]}">\n{heading}')
        self.context.append("</div>\n")


def visit_options(self: HTML5Translator, node: nodes.Element) -> None:
    """A lettered list; on the web a verdict follows that the style sheet shows when an input is chosen."""
    self.body.append('<ol class="quiz-options" type="A">\n')
    verdict = (
        '<p class="quiz-verdict" role="status"><span class="quiz-yes">Right.</span>'
        '<span class="quiz-no">Not so; try again, or open the answer.</span></p>\n'
    )
    self.context.append("</ol>\n" + (verdict if folds(self.builder) else ""))


def visit_option(self: HTML5Translator, node: nodes.Element) -> None:
    """An input and its label on the web, a plain item elsewhere."""
    if folds(self.builder):
        box = "checkbox" if node["several"] else "radio"
        right = "quiz-right" if node["right"] else "quiz-wrong"
        self.body.append(f'<li><label class="{right}"><input type="{box}" name="{node["group"]}"> <span>')
        self.context.append("</span></label></li>\n")
    else:
        self.body.append("<li>")
        self.context.append("</li>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, their nodes and the check."""
    app.add_domain(CardRegister)
    app.add_directive("interview", Interview)
    app.add_directive("quiz", Quiz)
    app.add_node(card, html=(visit_card, depart_by_context))
    app.add_node(card_question, html=(visit_question, depart_by_context))
    app.add_node(card_part, html=(visit_part, depart_by_context))
    app.add_node(quiz_options, html=(visit_options, depart_by_context))
    app.add_node(quiz_option, html=(visit_option, depart_by_context))
    app.connect("env-updated", check)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
