"""A register of ids over all documents, which claims and cards share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from docutils import nodes
from sphinx.domains import Domain
from sphinx.environment import BuildEnvironment

from ..problems import Problem


@dataclass(frozen=True)
class Entry:
    """One directive with an id, where it stands, and what it holds."""

    id: str
    docname: str
    line: int
    content: Any = None


class Register(Domain):
    """A domain that knows which document holds which ids; it stays right in incremental and parallel builds."""

    initial_data: ClassVar[dict[str, Any]] = {"entries": {}, "said": {}, "checked": ""}
    node: ClassVar[type[nodes.Element]]  # what an entry becomes in its document

    def note(self, entry: Entry) -> None:
        """Remember an entry of the document that is being read."""
        self.data["entries"].setdefault(entry.docname, []).append(entry)

    def entries(self) -> list[Entry]:
        """All entries, in the reading order of the book."""
        order = {docname: place for place, docname in enumerate(_reading_order(self.env))}
        docnames = sorted(self.data["entries"], key=lambda name: (order.get(name, len(order)), name))
        return [entry for name in docnames for entry in self.data["entries"][name]]

    def process_doc(self, env: BuildEnvironment, docname: str, document: nodes.document) -> None:
        """Remember what the entries of the document that was read say, as other pages show it."""
        said = "".join(
            repr({name: value for name, value in node.attributes.items() if name != "source_card"})
            + "".join(child.pformat() for child in node.children)
            for node in document.findall(self.node)
        )
        if said:
            self.data["said"][docname] = hashlib.sha256(said.encode()).hexdigest()

    def shown(self) -> object:
        """What pages show of all entries: who they are, in their order, and what they say. It has no numbers of lines.

        An entry that only moves within its file is the same.
        """
        return [(entry.docname, entry.id) for entry in self.entries()], sorted(self.data["said"].items())

    def repeated(self, what: str) -> Iterable[Problem]:
        """Every entry whose id is taken by an earlier one."""
        first: dict[str, Entry] = {}
        for entry in self.entries():
            if entry.id and entry.id in first:
                place = f"{self.env.doc2path(first[entry.id].docname)}:{first[entry.id].line}"
                yield Problem(
                    (entry.docname, entry.line), f"the {what} id {entry.id!r} is taken by {place}; rename one"
                )
            first.setdefault(entry.id, entry)

    def clear_doc(self, docname: str) -> None:
        """Forget a document that is read again or gone."""
        for kept in ("entries", "said"):
            self.data[kept].pop(docname, None)

    def merge_domaindata(self, docnames: Iterable[str], otherdata: dict[str, Any]) -> None:
        """Take over what a parallel process has read."""
        for kept in ("entries", "said"):
            self.data[kept] |= {name: otherdata[kept][name] for name in docnames if name in otherdata[kept]}

    def resolve_any_xref(self, *_: Any) -> list[Any]:
        """Nothing of this domain is found by ``any``."""
        return []


def _reading_order(env: BuildEnvironment) -> Iterable[str]:
    """The documents as the tables of contents lead through them."""
    seen: Counter[str] = Counter()

    def walk(docname: str) -> Iterable[str]:
        seen[docname] += 1
        if seen[docname] == 1:
            yield docname
            for child in env.toctree_includes.get(docname, []):
                yield from walk(child)

    return walk(env.config.root_doc)
