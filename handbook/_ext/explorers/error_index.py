"""``{error-index}``: every entry of ``ddplab diagnose`` as a section that can be linked to, read, printed and searched.

An entry is one file of gallery/ddplab/diagnose/entries. The label of its section is ``error-<id>``. In a browser an
entry is folded below its title and message, and ``list-filter.js`` finds one by words or by a line of a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from ddplab.diagnose.entry import FOLDER, Entry, EntryError, entries

from ..evidence import labs
from ..markup import cross_reference, has_folds
from ..problems import BuildError, warn_at

SCRIPT = "list-filter.js"
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
    """The body of an entry, which flashcards are made from; attributes ``entry_id`` and ``says``."""


def literal_parts(entry: Entry) -> list[list[str]]:
    """What a line of a log has if it is this message: all pieces of one of the lists."""
    found = [[match.needle] for match in entry.matches if len(match.needle) >= 8]  # shorter ones are words
    for line in entry.message.splitlines():
        pieces = [piece.strip() for piece in re.split(r"<[^<>]*>|…", line)]
        pieces = [piece for piece in pieces if len(piece) >= 4]
        if sum(map(len, pieces)) >= 16:
            found.append(pieces)
    return [pieces for place, pieces in enumerate(found) if pieces not in found[:place]]


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
        body = error_entry("", message, seen, entry_id=name, says=literal_parts(entry), classes=["error-entry"])
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


class FoldEntries(SphinxPostTransform):
    """In a browser: fold every entry, with as few elements as it takes; leave a place for the filter."""

    default_priority = 700  # after references are resolved

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        found = list(self.document.findall(error_entry)) if has_folds(self.app.builder) else []
        if found:
            area = found[0].parent.parent
            area.parent.insert(area.parent.index(area), _html(_FILTER))
        for body in found:
            section = body.parent
            assert isinstance(section, nodes.section)
            for literal in list(section.findall(nodes.literal)):  # docutils writes an element for each word
                literal.replace_self(_html(f'<code class="literal">{escape(literal.astext(), quote=False)}</code>'))
            for shown in [one for one in section.findall(nodes.inline) if isinstance(one.parent, nodes.reference)]:
                shown.parent.replace(shown, shown.children)
            message, *rest = body.children
            run = next(part for part in rest if part.children and part.children[0].astext() == "Run")
            rest.remove(run)
            seen = rest[0]
            assert isinstance(seen, nodes.paragraph)
            seen += [nodes.Text(" "), *run.children[2:]]  # to where it was seen, without its label
            says = escape(json.dumps(body["says"], ensure_ascii=False))
            begin = _html(f'<details class="error-entry" data-says="{says}">\n<summary><h3>')
            said = f'</h3><code class="error-message">{escape(message.astext(), quote=False)}</code></summary>\n'
            title = section[0]
            section.clear()
            section += [begin, *title.children, _html(said), *rest, _html("</details>\n")]


_FILTER = '<form class="list-filter"></form>\n'


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def add_script(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only the page that lists errors loads what filters them; beside it stand its areas, without their entries."""
    if has_folds(app.builder) and doctree and any(one.astext() == _FILTER for one in doctree.findall(nodes.raw)):
        app.add_js_file(SCRIPT, loading_method="defer")
        context["toc"] = re.sub(r"<ul>(?:(?!</?ul>).)*</ul>", "", context["toc"], flags=re.DOTALL)  # innermost lists


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive; outside of a browser the body of an entry is written as any container."""
    app.add_node(error_entry)
    app.add_directive("error-index", ErrorIndex)
    app.add_post_transform(FoldEntries)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
