"""The source of the tests that show claims: a page for each file, which a link of a claim opens at its test.

They are pages of the web book only, and no documents: nothing lists or searches them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders import Builder

from ..evidence import lab_source
from ..evidence.proofs import Proof, read_proofs
from ..markup import has_folds
from ..news import to_write

FOLDER = "_claims"


def test_uri(builder: Builder, docname: str, proof: Proof) -> str:
    """Where the source of a test is shown, or the lab, from a document; the web book only has such pages."""
    if proof.lab:
        return builder.get_relative_uri(docname, lab_source.all_labs()[proof.lab].docname)
    return f"{builder.get_relative_uri(docname, f'{FOLDER}/{proof.path.stem}')}#{proof.name}"


def note_changes(app: Sphinx) -> None:
    """Remember which pages are to be written: whose file, or a place of whose claims, has changed."""
    if has_folds(app.builder):
        places = _places(app)
        files = [(path, [places.get(one.claim) for one in proofs]) for path, proofs in _by_file()]
        shown = {_page(path): (path.read_text(encoding="utf-8"), claims) for path, claims in files}
        app.env.ddp_tests = to_write(app, "tests", shown)  # type: ignore[attr-defined]  # for `pages`


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file of tests, as Sphinx asks for it, if it is news or all pages are written."""
    if not has_folds(app.builder):
        return
    changed = getattr(app.env, "ddp_tests", ())
    app.env.ddp_tests = ()  # type: ignore[attr-defined]
    for path, proofs in _by_file():
        name = _page(path)
        if name in changed or getattr(app.builder, "writes_all", True):
            yield name, {"title": path.name, "body": _body(app, name, proofs)}, "page.html"


def _by_file() -> list[tuple[Path, list[Proof]]]:
    tests = (proof for proof in read_proofs() if not proof.lab)
    return [(path, list(proofs)) for path, proofs in groupby(tests, key=lambda proof: proof.path)]


def _page(path: Path) -> str:
    return f"{FOLDER}/{path.stem}"


def _places(app: Sphinx) -> dict[str, str]:
    """Where each claim stands, as an address from the top of the book."""
    register: Any = app.env.domains["claims"]
    return {entry.id: f"{entry.docname}.html#claim-{entry.id}" for entry in register.claims()}


def _body(app: Sphinx, page: str, proofs: list[Proof]) -> str:
    builder: Any = app.builder
    path = proofs[0].path
    code = builder.highlighter.highlight_block(path.read_text(encoding="utf-8"), "python").split("\n")
    entries: dict[tuple[int, int], list[Proof]] = {}
    for proof in proofs:
        entries.setdefault(proof.item.lines, []).append(proof)
    head, pre, code[0] = code[0].partition("<pre>")
    for (first, last), shown in entries.items():
        code[first - 1] = f'<div id="{shown[0].name}">{code[first - 1]}'
        code[last - 1] += "</div>"
    up = posixpath.relpath(".", posixpath.dirname(page))
    places = _places(app)
    claims = "".join(
        f'<li><a href="{up}/{escape(places[proof.claim])}">{escape(proof.claim)}</a>: '
        f'<a href="#{proof.name}"><code>{proof.name}</code></a></li>\n'
        for proof in proofs
        if proof.claim in places
    )
    title = f"<h1>tests/claims/{escape(path.name)}</h1>\n"
    return f'{title}<ul class="claim-tests">\n{claims}</ul>\n<div class="claim-test">{head}{pre}{_joined(code)}</div>'


def _joined(lines: list[str]) -> str:
    """Lines of code; behind the end of a block there is none, which would show as an empty one."""
    return "\n".join(lines).replace("</div>\n", "</div>")


def setup(app: Sphinx) -> None:
    """Make the pages with the others."""
    app.connect("html-collect-pages", pages)
