"""Cards of the whole book on another page: what stands in the chapters, copied when that page is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from docutils import nodes
from sphinx import addnodes
from sphinx.environment import BuildEnvironment
from sphinx.util import docname_join

from ..cards.card_page import card
from ..cards.card_source import Card
from ..cards.register import Register
from .orientation import Places, name_of


@dataclass(frozen=True)
class Copied:
    """An interview card, the chapter that it asks about, and where it stands."""

    source: Card
    node: card  # as it was read; copy it with `copies`
    docname: str
    chapter: str  # docname
    title: str  # of the chapter
    part: str  # such as "I. Understand"

    @property
    def facts(self) -> dict[str, str]:
        """What a script sorts and filters by."""
        facts = {"id": self.source.id, "level": self.source.level, "chapter": self.chapter}
        return facts | {"title": self.title, "part": self.part}


def interview_cards(env: BuildEnvironment) -> list[Copied]:
    """All interview cards, in reading order of the chapters that they ask about."""
    register, places, found = cast(Register, env.domains["cards"]), Places(env), []
    for entry in register.entries():
        if entry.content.kind != "interview":
            continue
        chapter = _chapter(env, places, entry.content, entry.docname)
        node = next(n for n in env.get_doctree(entry.docname).findall(card) if n["source_card"].id == entry.id)
        part = places.part_of(chapter)
        title = part.title if part else ""
        found.append(Copied(entry.content, node, entry.docname, chapter, name_of(env, chapter), title))
    order = {name: place for place, name in enumerate(places.spine)}
    return sorted(found, key=lambda one: order.get(one.chapter, len(order)))


def _chapter(env: BuildEnvironment, places: Places, source: Card, docname: str) -> str:
    """The chapter of the first section, else of the first claim, that the card points to; else its own page."""
    labels = env.domains.standard_domain.anonlabels
    claims = {one.id: one.docname for one in cast(Register, env.domains["claims"]).entries()}
    kinds = [("section", {name: place[0] for name, place in labels.items()}), ("claim", claims)]
    for kind, places_of in kinds:
        for evidence, target in source.evidence:
            if evidence == kind and (path := places.path(places_of.get(target, ""))):
                return path[0]
    return docname


def copies(children: list[nodes.Node], docname: str, here: str) -> Iterator[nodes.Node]:
    """The nodes of ``docname`` for the page ``here``: their references count from there."""
    for child in children:
        copy = child.deepcopy()
        if isinstance(copy, nodes.Element):
            for xref in copy.findall(addnodes.pending_xref):
                if xref.get("reftype") == "doc":
                    xref["reftarget"] = "/" + docname_join(docname, xref["reftarget"])
                xref["refdoc"] = here
            for link in list(copy.findall(nodes.reference)):
                if "refid" in link:  # leads to a place beside the card, not beside its copy
                    link.replace_self(nodes.inline("", "", *link.children))
        yield copy
