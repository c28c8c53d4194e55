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
    """All interview cards, in reading order of the chapters that they ask about.

    That is the chapter of the first section, else of the first claim, that the card points to; else its own page.
    """
    places, found = Places(env), []
    entries = [one for one in cast(Register, env.domains["cards"]).entries() if one.content.kind == "interview"]
    documents = [env.get_doctree(name) for name in dict.fromkeys(entry.docname for entry in entries)]
    read = {node["source_card"].id: node for document in documents for node in document.findall(card)}
    claims = {one.id: one.docname for one in cast(Register, env.domains["claims"]).entries()}
    sections = {name: place[0] for name, place in env.domains.standard_domain.anonlabels.items()}
    for entry in entries:
        pointed = [sections.get(target, "") for kind, target in entry.content.evidence if kind == "section"]
        pointed += [claims.get(target, "") for kind, target in entry.content.evidence if kind == "claim"]
        chapter = next((path[0] for name in pointed if (path := places.path(name))), entry.docname)
        part = places.part_of(chapter)
        title = part.title if part else ""
        found.append(Copied(entry.content, read[entry.id], entry.docname, chapter, name_of(env, chapter), title))
    order = {name: place for place, name in enumerate(places.spine)}
    return sorted(found, key=lambda one: order.get(one.chapter, len(order)))


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
