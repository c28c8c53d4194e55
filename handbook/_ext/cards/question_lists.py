"""``{questions}`` and ``{said-in-labs}``: what an interview asks and what one says, as lists to read anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from ..evidence.lab_source import all_labs
from ..markup import cross_reference
from ..order import Resolving
from .card_copies import Copied, copies, interview_cards
from .card_page import card_part, card_question

ALOUD = "Say it aloud"  # the heading of what a lab says


class questions(nodes.General, nodes.Element):  # noqa: N801
    """The place of a list; attributes ``part`` (a folder) and ``answers`` (show them)."""


class said_in_labs(nodes.General, nodes.Element):  # noqa: N801
    """The place of what labs say aloud."""


class Questions(SphinxDirective):
    """``{questions} understand``: the questions of a part; with ``:answers:`` what one says to each."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"answers": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Leave its place."""
        self.env.metadata[self.env.docname]["room"] = True
        return [questions(part=self.arguments[0], answers="answers" in self.options)]


class SaidInLabs(SphinxDirective):
    """``{said-in-labs}``: the sections "Say it aloud" of all labs."""

    def run(self) -> list[nodes.Node]:
        """Leave its place."""
        self.env.metadata[self.env.docname]["room"] = True
        return [said_in_labs()]


class FillLists(SphinxPostTransform):
    """Copy what stands in chapters and labs."""

    default_priority = Resolving.COPIES

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        places = list(self.document.findall(questions))
        known = interview_cards(self.env) if places else []
        for place in places:
            cards = [one for one in known if one.docname.startswith(place["part"] + "/")]
            place.replace_self(self._with_answers(cards) if place["answers"] else self._links(cards))
        for labs in list(self.document.findall(said_in_labs)):
            labs.replace_self([node for lab in all_labs().values() for node in self._said(lab.docname)])

    def _links(self, cards: list[Copied]) -> list[nodes.Node]:
        """The questions by chapter, each a link to its card."""
        found: list[nodes.Node] = []
        for chapter in dict.fromkeys(one.chapter for one in cards):
            own = [one for one in cards if one.chapter == chapter]
            found.append(nodes.paragraph("", own[0].title, classes=["room-chapter"]))
            listed = nodes.bullet_list(classes=["room-questions"])
            for one in own:
                uri = f"{self.app.builder.get_relative_uri(self.env.docname, one.docname)}#card-{one.source.id}"
                link = nodes.reference("", "", *self._question(one), internal=True, refuri=uri)
                level = nodes.inline("", one.source.level, classes=["card-level"])
                listed += nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(" "), level))
            found.append(listed)
        return found

    def _with_answers(self, cards: list[Copied]) -> list[nodes.Node]:
        """Each question, and what one says to it."""
        found: list[nodes.Node] = []
        for one in cards:
            answer = next(part for part in one.node.findall(card_part) if part["part"] == "answer")
            asked = nodes.paragraph("", "", *self._question(one), classes=["aloud-question"])
            said = copies(answer.children, one.docname, self.env.docname)
            found.append(nodes.container("", asked, *said, classes=["aloud"], ids=[f"aloud-{one.source.id}"]))
        return found

    def _said(self, docname: str) -> Iterator[nodes.Node]:
        """What a lab says aloud, below its title."""
        if not self.env.metadata.get(docname, {}).get("aloud"):
            return
        for section in self.env.get_doctree(docname).findall(nodes.section):
            if section.children[0].astext() == ALOUD:
                link = cross_reference(self.env.docname, "std:doc", f"/{docname}", docname, explicit=False)
                said = copies(section.children[1:], docname, self.env.docname)
                title = nodes.paragraph("", "", link, classes=["aloud-question"])
                yield nodes.container("", title, *said, classes=["aloud"])

    def _question(self, one: Copied) -> list[nodes.Node]:
        asked = next(iter(one.node.findall(card_question)))
        return list(copies(asked.children, one.docname, self.env.docname))


def note_labs(app: Sphinx, document: nodes.document) -> None:
    """Remember what a lab has to say."""
    if app.env.docname.startswith("labs/") and "waiting" not in app.env.metadata[app.env.docname]:
        titles = [one for one in document.findall(nodes.title) if one.astext() == ALOUD]
        if titles:
            app.env.metadata[app.env.docname]["aloud"] = "".join(one.parent.pformat() for one in titles)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, and what fills them in."""
    app.setup_extension("_ext.cards.card_copies")
    app.add_node(questions)
    app.add_node(said_in_labs)
    app.add_directive("questions", Questions)
    app.add_directive("said-in-labs", SaidInLabs)
    app.add_post_transform(FillLists)
    app.connect("doctree-read", note_labs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
