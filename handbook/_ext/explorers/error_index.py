"""``{error-index}``: every entry of ``ddplab diagnose`` as a section that can be linked to, read, printed and searched.

An entry is one file of gallery/ddplab/diagnose/entries. The label of its section is ``error-<id>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ddplab.diagnose.entry import FOLDER, Entry, EntryError, entries

from ..evidence import labs
from ..markup import cross_reference
from ..problems import BuildError, warn_at

AREAS = {
    "ddp": "DDP",
    "collectives": "Collectives",
    "gloo": "gloo",
    "nccl": "NCCL and CUDA",
    "rendezvous": "Stores and rendezvous",
    "launch": "Launchers and processes",
    "data": "Data loading",
    "amp": "Mixed precision and NaN",
    "memory": "Memory",
    "checkpoint": "Checkpoints",
}
_ROLES = {
    "consequence": "A rank prints this when another one failed before it; look for that one.",
    "generic": "This says that something failed, not what; look for an earlier line.",
}


class error_entry(nodes.container):  # noqa: N801  docutils names nodes so
    """The body of an entry, which flashcards are made from; attribute ``entry_id``."""


class ErrorIndex(SphinxDirective):
    """All entries, by area."""

    def run(self) -> list[nodes.Node]:
        """Make a section for each area, and in it one for each entry."""
        try:
            found = entries()
        except EntryError as error:
            raise BuildError(f"error index: {error}") from error
        for name in found:
            self.env.note_dependency(str(FOLDER / f"{name}.toml"))
        ordered = sorted(found.items(), key=lambda item: item[1].title.lower())
        sections = []
        for area, title in AREAS.items():
            section = nodes.section("", nodes.title("", title), ids=[f"errors-{area}"])
            section.extend(self._entry(name, entry) for name, entry in ordered if entry.area == area)
            if len(section) > 1:
                sections.append(section)
        return list(sections)

    def _entry(self, name: str, entry: Entry) -> nodes.section:
        label = f"error-{name}"
        section = nodes.section("", nodes.title("", "", *self._inline(entry.title)), ids=[label], names=[label])
        self.state.document.note_explicit_target(section)
        message = nodes.literal_block(entry.message, entry.message, language="text", classes=["error-message"])
        role = nodes.Text(f". {_ROLES.get(entry.role, '')}".rstrip())
        seen = nodes.paragraph("", "", nodes.Text("Seen in "), *self._inline(entry.versions), role)
        body = error_entry("", message, seen, entry_id=name, classes=["error-entry"])
        for words, text in (("Each rank", entry.ranks), ("Cause", entry.cause)):
            body.extend(self._part(words, text))
        body += nodes.paragraph("", "", nodes.strong("", "Run"), nodes.Text(". "), *self._run(name, entry))
        for words, text in (("Fix", entry.fix), ("To be sure", entry.collect)):
            body.extend(self._part(words, text))
        if entry.see or entry.links:
            body += nodes.paragraph("", "", nodes.strong("", "Read"), nodes.Text(". "), *self._read(entry))
        section += body
        return section

    def _inline(self, text: str) -> list[nodes.Node]:
        found, messages = self.parse_inline(text, lineno=self.lineno)
        return [*found, *messages]

    def _part(self, words: str, text: str) -> list[nodes.Node]:
        """A text of the entry; the label ``words`` runs into its first paragraph."""
        if not text.strip():
            return []
        part = nodes.Element()
        lines = StringList(text.strip().splitlines(), source=str(FOLDER))
        self.state.nested_parse(lines, self.content_offset, part)
        if not isinstance(part.next_node(), nodes.paragraph):
            part.insert(0, nodes.paragraph())
        first = part[0]
        assert isinstance(first, nodes.paragraph)
        first[:0] = [nodes.strong("", words), nodes.Text(". ")]
        return list(part.children)

    def _run(self, name: str, entry: Entry) -> list[nodes.Node]:
        """Where it was reproduced, or why not."""
        if not entry.lab:
            return [nodes.Text(f"Not in a lab: {entry.not_run}.")]
        lab = labs.all_labs().get(entry.lab)
        if lab is None:
            warn_at(
                self.env,
                f"error {name!r}: there is no lab {entry.lab!r}",
                self.lineno,
            )
            return []
        return [nodes.Text("Reproduced in the lab "), self._reference("doc", f"/{lab.docname}"), nodes.Text(".")]

    def _read(self, entry: Entry) -> Iterator[nodes.Node]:
        targets: list[nodes.Node] = [self._reference("ref", label) for label in entry.see]
        targets += [nodes.reference("", link.split("://")[-1], refuri=link) for link in entry.links]
        for place, target in enumerate(targets):
            if place:
                yield nodes.Text(" · ")
            yield target

    def _reference(self, kind: str, target: str) -> nodes.Node:
        node = cross_reference(self.env.docname, f"std:{kind}", target, target, explicit=False)
        self.set_source_info(node)
        return node


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive; the body of an entry is written as any container."""
    app.add_node(error_entry)
    app.add_directive("error-index", ErrorIndex)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
