"""Old addresses: at each page of the first edition stands one that sends its reader on, to the right section.

``redirects.toml`` in the source folder names the old pages; sections are found by their labels. With scripts off the
reader comes to the page that took the old one's place.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from ..problems import BuildError, read_toml

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><link rel="canonical" href="{to}">
<script>location.replace({sections}[location.hash.slice(1)] || "{to}" + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={to}"></noscript></head>
<body><h1>This page has moved</h1><p>It is now <a href="{to}">{title}</a>.</p></body></html>
"""


def write_pages(app: Sphinx, exception: Exception | None) -> None:
    """Write a page at each old address.

    Raises:
        BuildError: ``redirects.toml`` names a page or a label that the book does not have, or a page that it does.
    """
    file = Path(app.srcdir, "redirects.toml")
    if exception or app.builder.name != "html" or not file.is_file():
        return
    labels = app.env.domains.standard_domain.anonlabels
    for old, facts in read_toml(file).items():
        if old in app.env.found_docs:
            raise BuildError(f"{file.name}: the book has a page {old!r}; take it out")
        unknown = [label for label in facts.get("labels", ()) if label not in labels]
        if facts["to"] not in app.env.found_docs or unknown:
            raise BuildError(f"{file.name}: [{old}]: the book has no {', '.join(unknown) or facts['to']}")

        def address(docname: str, anchor: str = "", old: str = old) -> str:
            return app.builder.get_relative_uri(old, docname) + (f"#{anchor}" if anchor else "")

        sections = {label: address(*labels[label]) for label in facts.get("labels", ())}
        title = app.env.titles[facts["to"]].astext()
        page = _PAGE.format(title=escape(title), to=address(facts["to"]), sections=json.dumps(sections))
        target = Path(app.outdir, f"{old}.html")
        if not target.is_file() or target.read_text(encoding="utf-8") != page:
            target.write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("build-finished", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
