"""``{error-index}``: every entry of ``ddplab diagnose`` as a section that can be linked to, read, printed and searched.

An entry is one file of gallery/ddplab/diagnose/entries. The label of its section is ``error-<id>``. In a browser the
index keeps a line of each entry, found by ``list-filter.js``, and `error_pages` gives the entry a page of its own.
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
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from ddplab.diagnose.entry import FOLDER, Entry, EntryError, Match, entries

from ..evidence import lab_source
from ..markup import cross_reference, has_folds, inline
from ..order import Resolving
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
    "warning": "The program goes on after it; if the run failed, look for an error elsewhere.",
}


_GROUP = re.compile(r"(?<!\\)\((?:[^()\\]|\\.)*\)")  # without a group inside
_VARIES = re.compile(r"\[(?:[^]\\]|\\.)*\]|\\[wWsSdDbB]|(?<!\\)[.^$]")
_REPEATED = re.compile(r"(?:\0|\\.|[^\\])(?:[*?]|\{\d*,?\d*\})\??")


class error_entry(nodes.container):  # noqa: N801  docutils names nodes so
    """The body of an entry, which pages and flashcards are made from; attributes ``entry_id`` and ``says``.

    Its children: the message, where it was seen, then the parts; the first paragraph of a part has the attribute
    ``part``, the words that it begins with.
    """


def _fixed(match: Match) -> list[str]:
    """What every line of a match with a short needle has beside the needle, in pieces of four letters or more."""
    if match.regex is None or len(match.needle) >= 24:  # long ones say enough
        return []
    source = match.regex.pattern
    while (fewer := _GROUP.sub("\0", source)) != source:
        source = fewer
    if "|" in source:  # a choice at the top has nothing that is always there
        return []
    plain = _REPEATED.sub("\0", _VARIES.sub("\0", source))
    pieces = (re.sub(r"\\(.)", r"\1", piece).strip() for piece in re.split(r"\0\+?", plain))
    return [piece for piece in pieces if len(piece) >= 4 and piece not in match.needle]


def literal_parts(entry: Entry) -> list[list[str]]:
    """What a line of a log has if it is this message: all pieces of one of the lists."""
    found = [
        [match.needle, *_fixed(match)]
        for match in entry.matches
        if len(match.needle) >= 8  # shorter ones are words
    ]
    for line in entry.message.splitlines():
        pieces = [piece.strip() for piece in re.split(r"<[^<>]*>|…", line)]
        pieces = [piece for piece in pieces if len(piece) >= 4]
        if sum(map(len, pieces)) >= 16:
            found.append(pieces)
    wider = sorted(found, key=lambda pieces: sum(map(len, pieces)))  # what has a longer one has its part
    return [
        pieces
        for place, pieces in enumerate(wider)
        if not any(all(any(part in piece for piece in pieces) for part in other) for other in wider[:place])
    ]


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
        self.env.metadata[self.env.docname]["errors"] = [
            name for area in AREAS for name, entry in ordered if entry.area == area
        ]
        sections = []
        for area, title in AREAS.items():
            section = nodes.section("", nodes.title("", title), ids=[f"errors-{area}"])
            section.extend(self._entry(name, entry) for name, entry in ordered if entry.area == area)
            if len(section) > 1:
                sections.append(section)
        return list(sections)

    def _entry(self, name: str, entry: Entry) -> nodes.section:
        label = f"error-{name}"
        section = nodes.section("", nodes.title("", "", *inline(self, entry.title)), ids=[label], names=[label])
        self.state.document.note_explicit_target(section)
        message = nodes.literal_block(entry.message, entry.message, language="text", classes=["error-message"])
        role = nodes.Text(f". {_ROLES.get(entry.role, '')}".rstrip())
        seen = nodes.paragraph("", "", nodes.Text("Seen in "), *inline(self, entry.versions), role)
        body = error_entry("", message, seen, entry_id=name, says=literal_parts(entry), classes=["error-entry"])
        for words, text in (("Each rank", entry.ranks), ("Cause", entry.cause)):
            body.extend(self._part(words, text))
        body += self._labeled("Run", *self._run(name, entry))
        for words, text in (("Fix", entry.fix), ("To be sure", entry.collect)):
            body.extend(self._part(words, text))
        if entry.see or entry.links:
            body += self._labeled("Read", *self._read(entry))
        section += body
        return section

    @staticmethod
    def _labeled(words: str, *content: nodes.Node) -> nodes.paragraph:
        return nodes.paragraph("", "", nodes.strong("", words), nodes.Text(". "), *content, part=words)

    def _part(self, words: str, text: str) -> list[nodes.Node]:
        """A text of the entry; the label ``words`` runs into its first paragraph."""
        if not text.strip():
            return []
        part = nodes.Element()
        lines = StringList(text.strip().splitlines(), source=str(FOLDER))
        self.state.nested_parse(lines, self.content_offset, part)
        first = part.next_node()
        if not isinstance(first, nodes.paragraph):
            return [self._labeled(words), *part.children]
        return [self._labeled(words, *first.children), *part.children[1:]]

    def _run(self, name: str, entry: Entry) -> list[nodes.Node]:
        """Where it was reproduced, or why not."""
        if not entry.lab:
            return [nodes.Text(f"Not in a lab: {entry.not_run}.")]
        lab = lab_source.all_labs().get(entry.lab)
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


class ListEntries(SphinxPostTransform):
    """In a browser: keep a line of every entry, with as few elements as it takes; leave a place for the filter."""

    default_priority = Resolving.LISTS

    def run(self, **_: Any) -> None:
        """Change the document that is about to be written."""
        found = list(self.document.findall(error_entry)) if has_folds(self.app.builder) else []
        areas = list(dict.fromkeys(body.parent.parent for body in found))
        if areas:
            areas[0].parent.insert(areas[0].parent.index(areas[0]), _html(_FILTER))
        for area in areas:
            lines = [self._line(body) for body in area.findall(error_entry)]
            area[1:] = [_html('<ul class="error-list">\n'), *lines, _html("</ul>\n")]

    def _line(self, body: error_entry) -> nodes.raw:
        page = page_name(self.env.docname, body["entry_id"])
        address = self.app.builder.get_relative_uri(self.env.docname, page)
        title = "".join(_as_html(part) for part in body.parent.children[0].children)
        says = escape(json.dumps(body["says"], ensure_ascii=False))
        message = escape(body[0].astext(), quote=False)
        return _html(
            f'<li id="{body.parent["ids"][0]}" data-says="{says}"><a href="{address}">{title}</a>\n'
            f"<code>{message}</code></li>\n"
        )


def _as_html(node: nodes.Node) -> str:
    text = escape(node.astext(), quote=False)
    return f"<code>{text}</code>" if isinstance(node, nodes.literal) else text


_FILTER = '<form class="list-filter"></form>\n'


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def page_name(index: str, name: str) -> str:
    """The page of an entry, beside its index."""
    return f"{index}/{name}"


def add_script(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only the page that lists errors loads what filters them."""
    if has_folds(app.builder) and doctree and any(one.astext() == _FILTER for one in doctree.findall(nodes.raw)):
        app.add_js_file(SCRIPT, loading_method="defer")


def entry_names() -> list[str]:
    """The entries that there are now; a document that shows them notes these in its metadata."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def with_other_entries(app: Sphinx, env: BuildEnvironment, *_: Any) -> list[str]:
    """The documents to read again because entries have come or gone; a folder as a dependency is always out of date."""
    now = entry_names()
    shown = {
        name: [facts[key] for key in ("errors", "diagnose") if key in facts] for name, facts in env.metadata.items()
    }
    return [name for name, lists in shown.items() if any(sorted(one) != now for one in lists)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive; outside of a browser the body of an entry is written as any container."""
    app.add_node(error_entry)
    app.add_directive("error-index", ErrorIndex)
    app.add_post_transform(ListEntries)
    app.connect("html-page-context", add_script)
    app.connect("env-get-outdated", with_other_entries)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
