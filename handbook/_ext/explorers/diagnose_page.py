"""``{diagnose}``: the element that reads a log in the browser, with all entries inside the page.

The entries are in the page itself, so that it works from a folder and asks the network for nothing.
Where scripts are off, and off the web, the content of the directive stands in its place.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ddplab.diagnose.browser import page_data
from ddplab.diagnose.entry import FOLDER, EntryError, entries
from ddplab.diagnose.tables import TABLES

from ..markup import close, has_folds
from ..problems import BuildError
from .error_index import entry_names, page_name

SCRIPTS = ("diagnose_engine.js", "diagnose.js")  # in the order in which a page loads them


class diagnose_log(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """The element; its children are what stands in its place. Attribute ``data``: JSON."""


class Diagnose(SphinxDirective):
    """Place the element."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the element; an entry that cannot be used ends the build."""
        try:
            data = page_data(entries())
        except EntryError as error:
            raise BuildError(f"diagnose: {error}") from error
        for path in (*FOLDER.glob("*.toml"), TABLES):
            self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname]["diagnose"] = entry_names()
        # Within a script element only "<" could end the element; the rest of HTML has no meaning there.
        node = diagnose_log(data=json.dumps(data, ensure_ascii=False, sort_keys=True).replace("<", "\\u003c"))
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """The element in a browser, a plain block elsewhere."""
    if has_folds(self.builder):
        here, index = self.builder.current_docname, _errors_page(self.builder.env)
        errors = self.builder.get_relative_uri(here, page_name(index, "")).removesuffix(".html")
        self.body.append(f'<ddp-diagnose errors="{errors}">\n')
        self.body.append(f'<script type="application/json">{node["data"]}</script>\n<div class="diagnose-instead">\n')
        self.context.append("</div>\n</ddp-diagnose>\n")
    else:
        self.body.append('<div class="diagnose-instead">\n')
        self.context.append("</div>\n")


def add_script(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Only the page that needs them loads the scripts and their style sheet."""
    if has_folds(app.builder) and doctree and next(iter(doctree.findall(diagnose_log)), None):
        for script in SCRIPTS:
            app.add_js_file(script, loading_method="defer")
        app.add_css_file("diagnose.css")


def _errors_page(env: BuildEnvironment) -> str:
    """The document of the error index: where the label ``errors`` stands, in a small book the page of that name."""
    docname: str = env.domains.standard_domain.anonlabels.get("errors", ("errors", ""))[0]
    return docname


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and its node."""
    app.add_node(diagnose_log, html=(visit, close))
    app.add_directive("diagnose", Diagnose)
    app.connect("html-page-context", add_script)
    app.setup_extension("_ext.explorers.error_index")  # reads this page again when entries have come or gone
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
