"""Cards of the whole book on another page: what stands in the chapters, copied when that page is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import docname_join

from ..evidence import lab_source
from ..navigation.orientation import Places, name_of
from ..news import nothing_read
from ..order import AllRead
from .card_page import card
from .card_source import Card
from .register import Entry, Register


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
    places = Places(env)
    asked = [(entry, chapter) for entry, chapter in _chapters(env, places) if entry.content.kind == "interview"]
    documents = [env.get_doctree(name) for name in dict.fromkeys(entry.docname for entry, _ in asked)]
    read = {node["source_card"].id: node for document in documents for node in document.findall(card)}
    found = []
    for entry, chapter in asked:
        part = places.part_of(chapter)
        title = part.title if part else ""
        found.append(Copied(entry.content, read[entry.id], entry.docname, chapter, name_of(env, chapter), title))
    return found


def _chapters(env: BuildEnvironment, places: Places) -> list[tuple[Entry, str]]:
    """All cards, each with the chapter that it asks about, in the reading order of these.

    That is the chapter of the first section, else of the first claim, that the card points to; else its own page.
    A quiz asks about the page that it stands on.
    """
    claims = {one.id: one.docname for one in cast(Register, env.domains["claims"]).entries()}
    sections = {name: place[0] for name, place in env.domains.standard_domain.anonlabels.items()}
    found = []
    for entry in cast(Register, env.domains["cards"]).entries():
        shown = entry.content.evidence if entry.content.kind == "interview" else ()
        pointed = [sections.get(target, "") for kind, target in shown if kind == "section"]
        pointed += [claims.get(target, "") for kind, target in shown if kind == "claim"]
        chapter = next((path[0] for name in pointed if (path := places.path(name))), entry.docname)
        found.append((entry, chapter))
    order = {name: place for place, name in enumerate(places.spine)}
    return sorted(found, key=lambda one: order.get(one[1], len(order)))


def keep_chapters(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Keep for the decks, a project of their own, which chapter each card asks about."""
    path = kept_chapters()
    if nothing_read(env) and path.is_file():
        return []
    text = json.dumps(chapters(env), ensure_ascii=False, indent=0)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:  # where it is newer, decks are made again
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return []


def chapters(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Of each card the document and the title of the chapter that it asks about, in reading order."""
    return {entry.id: (chapter, name_of(env, chapter)) for entry, chapter in _chapters(env, Places(env))}


def kept_chapters() -> Path:
    """The file that holds of each card the document and the title of the chapter, in reading order."""
    return lab_source.ROOT / "_build" / "card-chapters.json"


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


def setup(app: Sphinx) -> dict[str, Any]:
    """Keep the chapters when the book has been read."""
    app.connect("env-get-updated", keep_chapters, AllRead.NUMBERED)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
