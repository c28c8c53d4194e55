"""A page for each entry of the error index in a browser: ``errors/<id>.html`` beside ``errors.html``.

The index is one document, which print, EPUB and flashcards show whole. Where it is written for the web, each of its
entries becomes a page, and what refers to an entry leads there. The pages are no documents of their own: so they are
read once, with the index, and stand in no list of contents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

from ddplab.diagnose.entry import Entry, entries

from ..markup import has_folds
from ..order import Page
from .error_index import AREAS, error_entry, page_name

# The parts of an entry in the order of its page, and their headings there: first what one does about it.
PARTS = {
    "Cause": "Cause",
    "Fix": "Fix",
    "To be sure": "Check",
    "Each rank": "What each rank shows",
    "In a log": "In a log",
    "Run": "Where it was made",
    "Read": "Read on",
}


def pages(env: BuildEnvironment) -> dict[str, str]:
    """The page of each entry by its label, in the order of the index."""
    found = ((index, name) for index, facts in env.metadata.items() for name in facts.get("errors", ()))
    return {f"error-{name}": page_name(index, name) for index, name in found}


def know_pages(app: Sphinx, builder: Builder) -> None:
    """For what is written now, and not for other forms of the book, entries stand on their pages."""
    if not has_folds(builder):
        return
    env = builder.env
    for index in {index for index, facts in env.metadata.items() if facts.get("errors")}:  # its areas only
        for listed in list(env.tocs[index].findall(nodes.bullet_list))[1:]:
            if len(list(listed.findall(nodes.bullet_list))) == 1:
                listed.parent.remove(listed)
    std = env.domains.standard_domain
    for label, page in pages(env).items():
        index, _, title = std.labels[label]
        if index == page:
            continue  # said already
        std.labels[label], std.anonlabels[label] = (page, "", title), (page, "")
        env.titles[page] = env.longtitles[page] = nodes.title("", title)
        env.toc_num_entries[page] = 1
        env.toctree_includes.setdefault(index, []).append(page)


def write_pages(app: Sphinx, index: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """With the index, write its pages."""
    if not (has_folds(app.builder) and doctree and app.env.metadata.get(index, {}).get("errors")):
        return
    builder = app.builder
    assert isinstance(builder, StandaloneHTMLBuilder)
    scripts, sheets = list(context["script_files"]), list(context["css_files"])
    whole, written = app.env.get_doctree(index), set()
    for body in whole.findall(error_entry):
        page = page_name(index, body["entry_id"])
        document = whole.copy()
        entry = entries()[body["entry_id"]]
        section = _page(body, entry)
        section += _back(builder, page, index, entry.area)
        document += section
        for reference in document.findall(addnodes.pending_xref):
            reference["refdoc"] = page
        app.env.apply_post_transforms(document, page)
        builder.write_doc(page, document)
        written.add(Path(builder.get_output_path(page)))
    context["script_files"][:], context["css_files"][:] = scripts, sheets  # of this page; they are the builder's lists
    for path in set(Path(builder.outdir, index).glob("*.html")) - written:
        path.unlink()  # an entry that is no more


def _page(body: error_entry, entry: Entry) -> nodes.section:
    """The entry as a page, its texts copied."""
    above = body.parent
    message, seen, *rest = body.children
    parts: dict[str, list[nodes.Node]] = {}
    for node in rest:
        assert isinstance(node, nodes.Element)
        if "part" in node:
            current = parts.setdefault(node["part"], [])
            node = nodes.paragraph("", "", *(child.deepcopy() for child in node.children[2:]))
            if not node.children:
                continue
        current.append(node.deepcopy())
    parts["In a log"] = _wordings(entry)
    page = nodes.section("", above[0].deepcopy(), ids=above["ids"], classes=["error-page"])
    page += [message.deepcopy(), seen.deepcopy()]
    for words, heading in PARTS.items():
        if words in parts:
            page += nodes.section("", nodes.title("", heading), *parts[words], ids=["-".join(heading.lower().split())])
    return page


def _back(builder: Builder, page: str, index: str, area: str) -> nodes.paragraph:
    """The way on: to where a whole log is read, and to the list that the entry stands in."""
    found = nodes.paragraph(classes=["error-back"])
    reader = next((name for name, facts in builder.env.metadata.items() if "diagnose" in facts), "")
    if reader:
        found += [
            nodes.Text("Such a line is seldom alone: "),
            _link(builder, page, reader, "", "have the whole log read"),
        ]
        found += nodes.Text(". ")
    found += [nodes.Text("All messages: "), _link(builder, page, index, f"errors-{area}", AREAS[area]), nodes.Text(".")]
    return found


def _link(builder: Builder, page: str, document: str, anchor: str, words: str) -> nodes.reference:
    address = builder.get_relative_uri(page, document) + (f"#{anchor}" if anchor else "")
    return nodes.reference("", words, internal=True, refuri=address)


def _wordings(entry: Entry) -> list[nodes.Node]:
    """The message as logs show it, and what else is taken for it."""
    plain = " ".join("\n".join((entry.message, *entry.samples)).split())
    others = [match.needle.strip() for match in entry.matches if " ".join(match.needle.split()) not in plain]
    said = "\n".join(dict.fromkeys(entry.samples))
    found: list[nodes.Node] = [nodes.literal_block(said, said, language="text", classes=["error-message"])]
    if others:
        words = [part for one in dict.fromkeys(others) for part in (nodes.Text(", "), nodes.literal("", one))][1:]
        found.append(nodes.paragraph("", "", nodes.Text("Other wordings have "), *words, nodes.Text(".")))
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Work before the pages are written, and before anything is added to the page of the index."""
    app.connect("write-started", know_pages)
    app.connect("html-page-context", write_pages, Page.OTHERS)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
