"""How cards look: folds and choices on the web that need no script, plain text everywhere else.

What is print or web is decided when a page is written, so all builders can share what was read.
"""

from __future__ import annotations

from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from ..markup import close, has_folds


class card(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """A whole card: attributes ``source_card`` (Card), ``kind``, ``ids``."""


class card_question(nodes.General, nodes.TextElement):  # noqa: N801
    """The question; attributes ``kind``, ``level``."""


class card_part(nodes.General, nodes.Element):  # noqa: N801
    """One part of the answer; attributes ``part``, ``label``."""


class quiz_options(nodes.General, nodes.Element):  # noqa: N801
    """The options of a quiz."""


class quiz_option(nodes.General, nodes.Element):  # noqa: N801
    """One option: a choice, then the reason why it is wrong."""


class quiz_choice(nodes.General, nodes.TextElement):  # noqa: N801
    """The words of an option; attributes ``right``, ``several`` (more than one is right), ``group``."""


class quiz_reason(nodes.General, nodes.TextElement):  # noqa: N801
    """Why an option is wrong, where the web shows it: below the option."""


class quiz_reasons(nodes.General, nodes.TextElement):  # noqa: N801
    """All such reasons, where the other forms show them: with the answer."""


def visit_card(self: HTML5Translator, node: nodes.Element) -> None:
    """A fold for an interview card, a group of inputs for a quiz, a plain block off the web."""
    tag = {"interview": "details", "quiz": "fieldset"}[node["kind"]] if has_folds(self.builder) else "div"
    data = f' data-level="{node["source_card"].level}"' if node["source_card"].level else ""
    self.body.append(f'<{tag} class="card {node["kind"]}" id="{node["ids"][0]}"{data}>\n')
    self.context.append(f"</{tag}>\n")


def visit_question(self: HTML5Translator, node: nodes.Element) -> None:
    """The handle of the fold, or the name of the group of inputs."""
    tag = {"interview": "summary", "quiz": "legend"}[node["kind"]] if has_folds(self.builder) else "p"
    self.body.append(f'<{tag} class="card-question"><span>')
    level = f' <span class="card-level">{node["level"]}</span>' if node["level"] else ""
    self.context.append(f"</span>{level}</{tag}>\n")


def visit_part(self: HTML5Translator, node: nodes.Element) -> None:
    """A part below its label; the answer of a quiz is folded on the web."""
    label = escape(node["label"])
    if node["part"] == "why" and has_folds(self.builder):
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
    self.context.append("</ol>\n" + (verdict if has_folds(self.builder) else ""))


def visit_option(self: HTML5Translator, node: nodes.Element) -> None:
    """An item of the list."""
    self.body.append("<li>")
    self.context.append("</li>\n")


def visit_choice(self: HTML5Translator, node: nodes.Element) -> None:
    """An input and its label on the web, plain words elsewhere."""
    if not has_folds(self.builder):
        self.context.append("")
        return
    box = "checkbox" if node["several"] else "radio"
    right = "quiz-right" if node["right"] else "quiz-wrong"
    self.body.append(f'<label class="{right}"><input type="{box}" name="{node["group"]}"> <span>')
    self.context.append("</span></label>")


def visit_reason(self: HTML5Translator, node: nodes.Element) -> None:
    """On the web, what the style sheet shows once its option is chosen or the answer is open."""
    if not has_folds(self.builder):
        raise nodes.SkipNode
    self.body.append('<div class="quiz-reason" role="status"><p>')
    self.context.append("</p></div>")


def visit_reasons(self: HTML5Translator, node: nodes.Element) -> None:
    """Off the web, one paragraph."""
    if has_folds(self.builder):
        raise nodes.SkipNode
    self.body.append('<p class="quiz-reasons">')
    self.context.append("</p>\n")


def add_nodes(app: Sphinx) -> None:
    """Register the nodes of this file."""
    app.add_node(card, html=(visit_card, close))
    app.add_node(card_question, html=(visit_question, close))
    app.add_node(card_part, html=(visit_part, close))
    app.add_node(quiz_options, html=(visit_options, close))
    app.add_node(quiz_option, html=(visit_option, close))
    app.add_node(quiz_choice, html=(visit_choice, close))
    app.add_node(quiz_reason, html=(visit_reason, close))
    app.add_node(quiz_reasons, html=(visit_reasons, close))
