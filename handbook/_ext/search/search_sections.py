"""Search by section: every section of the book with its words, for the search box in the browser (``search.js``).

A section is also found by the questions that it answers, as people asked them (``asked_questions``).

The words are collected while a document is read, so that a build that changes one page reads one page. They are
written as a script, since a page that was opened from a file may load scripts and nothing else.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from ddplab.diagnose.entry import entries

from ..explorers.error_index import error_entry
from ..explorers.error_pages import pages
from ..problems import BuildError, read_toml
from .asked_questions import questions

TEXT_LENGTH = 1500  # characters of a section that are searched; what a section is about stands at its start
FILE = "search-sections.js"
_SKIPPED = (nodes.section, nodes.title, nodes.math, nodes.math_block, nodes.raw, nodes.comment, nodes.system_message)


def kind_of(docname: str, ids: list[str]) -> str:
    """What a section is to a reader who searches: ``chapter``, ``error``, ``practice``, ``lab`` or ``reference``."""
    if any(name.endswith("-quiz") for name in ids):
        return "practice"
    folder, _, page = docname.rpartition("/")
    if docname == "repair/errors":
        return "error"
    if docname.startswith("labs/"):
        return "lab"
    return {"reference": "reference"}.get(folder, "practice" if page == "practice" else "chapter")


def collect(app: Sphinx, document: nodes.document) -> None:
    """Keep the sections of the document that was just read."""
    docname = app.env.docname
    if "nosearch" in app.env.metadata[docname]:  # Sphinx's own word for it, in the first lines of a page
        return
    titles = [title.astext() for title in document.findall(nodes.title)]
    page = titles[0] if titles else docname
    app.env.metadata[docname]["search"] = [  # Sphinx keeps it, drops it and merges it with the document
        {"ids": ids, "title": title, "page": page, "depth": depth, "kind": kind_of(docname, ids), **_words(section)}
        | _says(section)
        for section in document.findall(nodes.section)
        for ids, depth in [_place(section)]
        if ids and (title := section.next_node(nodes.title).astext())  # type: ignore[union-attr]
    ]


def _place(section: nodes.Node | None) -> tuple[list[str], int]:
    """The ids of a section and, behind them, those of the sections around it; and how deep it stands, 1 for a page."""
    ids: list[str] = []
    depth = 0
    while section is not None:
        if isinstance(section, nodes.section):
            ids, depth = ids + section["ids"], depth + 1
        section = section.parent
    return ids, depth


def _words(section: nodes.section) -> dict[str, str]:
    text: list[str] = []
    code: list[str] = []
    for node in _own(section):
        (text if isinstance(node, nodes.Text) else code).append(node.astext())
    return {"text": _short(text), "code": _short(code)}


def _says(section: nodes.section) -> dict[str, list[list[str]]]:
    """What a line of a log has if it is the message of this section, or stands around the message."""
    body = next((one for one in section.children if isinstance(one, error_entry)), None)
    if body is None:
        return {}
    samples = entries()[body["entry_id"]].samples
    return {"says": body["says"], "prints": [parts for text in samples for parts in _fixed_parts(text)]}


def _fixed_parts(sample: str) -> Iterator[list[str]]:
    """What any log has in the place of each line of the sample: no numbers, no folders, no prefix that names a rank."""
    for line in sample.splitlines():
        pieces = (" ".join(piece.split()) for piece in re.split(r"^\[rank\d+\]:|/[^\s\"]*/|\d+", line))
        kept = [piece for piece in pieces if len(piece) >= 4]
        letters = len(re.findall(r"[^\W\d_]", " ".join(kept)))
        if letters >= 16 and "Traceback (most recent" not in line:  # a ruler or an exception's bare name is anybody's
            yield kept


def _short(pieces: list[str]) -> str:
    return " ".join(" ".join(dict.fromkeys(pieces)).split())[:TEXT_LENGTH]


def _own(node: nodes.Element) -> Iterator[nodes.Node]:
    """Text and code of a section without those below it."""
    for child in node.children:
        if isinstance(child, _SKIPPED):
            continue
        if isinstance(child, nodes.Text | nodes.literal | nodes.literal_block):
            yield child
        elif isinstance(child, nodes.Element):
            yield from _own(child)


def write_file(app: Sphinx, exception: Exception | None) -> None:
    """Write the sections of all documents, if the book was built for the web and they have changed."""
    if exception or app.builder.name != "html":
        return
    words = Path(app.srcdir, "search.toml")
    known = read_toml(words) if words.is_file() else {"words": {}, "sections": {}}
    own = pages(app.env)
    answers = defaultdict(list)
    for one in questions(app.srcdir)[1]:
        answers[one.get("section")].append(one["question"])
    sections = [
        {**section, "at": app.builder.get_target_uri(page or docname), "to": "" if page or top else section["ids"][0]}
        | {"asked": _asked(section["ids"], known["sections"])}
        | {"questions": answers[section["ids"][0]] + answers[f"{page or docname}#{section['ids'][0]}"]}
        for docname, facts in sorted(app.env.metadata.items())
        for section in facts.get("search", ())
        for page, top in [(own.get(section["ids"][0]), section["title"] == section["page"])]
    ]
    if unknown := known["sections"].keys() - {name for section in sections for name in section["ids"]}:
        raise BuildError(f"{words.name}: the book has no section {', '.join(sorted(unknown))}")
    data = json.dumps({"words": known["words"], "sections": sections}, ensure_ascii=False)
    script = f"window.ddpSearchData = {data};\n"
    file = Path(app.outdir, "_static", FILE)
    if not file.is_file() or file.read_text(encoding="utf-8") != script:
        file.write_text(script, encoding="utf-8")


def _asked(ids: list[str], words: dict[str, str]) -> str:
    """What readers call a section, from ``search.toml``; a section inside of it is not called so."""
    return next((words[name] for name in ids[:2] if name in words), "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", collect)
    app.connect("build-finished", write_file)
    app.add_js_file("search.js", loading_method="defer")
    app.add_css_file("search.css")
    return {"env_version": 4, "parallel_read_safe": True, "parallel_write_safe": True}
