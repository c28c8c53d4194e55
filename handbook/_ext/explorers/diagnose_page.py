"""``{diagnose}``: the element that reads a log in the browser, with all entries and the logs to try inside the page.

They are in the page itself, so that it works from a folder and asks the network for nothing. The form is written here,
not by the script, so that nothing moves when the script comes. Where scripts are off, and off the web, the content of
the directive stands in its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from ddplab.diagnose.browser import page_data
from ddplab.diagnose.entry import FOLDER, EntryError, entries
from ddplab.diagnose.tables import TABLES

from ..embed.lab_page import not_shown
from ..evidence import lab_source
from ..markup import close, has_folds
from ..problems import BuildError, suggestion
from .error_index import entry_names, page_name

# in the order in which a page loads them
SCRIPTS = ("diagnose_engine.js", "diagnose_answer.js", "diagnose_timeline.js", "diagnose.js")
_FORM = """<div class="diagnose-form">
{examples}<label for="diagnose-text">Paste what the ranks printed</label>
<textarea id="diagnose-text" rows="7" spellcheck="false" autocomplete="off"></textarea>
<div class="diagnose-row"><button type="button" class="diagnose-go">Diagnose the text</button>
<button type="button" class="diagnose-cancel" hidden>Cancel</button>
<progress max="1" value="0" aria-label="Part of the log that was read" hidden></progress>
<label class="diagnose-keep"><input type="checkbox"> Keep the text in this tab when I reload</label></div>
<div class="diagnose-drop">
<label for="diagnose-file">Or choose log files, or drop them here (plain or .gz; a file per rank is fine)</label>
<input type="file" id="diagnose-file" multiple></div>
<p class="diagnose-state" role="status"></p>
</div>
<div class="diagnose-results"></div>
"""


class diagnose_log(nodes.General, nodes.Element):  # noqa: N801  docutils names nodes so
    """The element; its children are what stands in its place.

    Attributes ``data``: JSON; ``logs``: names and texts of the logs to try; ``lab``: the document that recorded them.
    """


class Diagnose(SphinxDirective):
    """Place the element; ``:logs:`` is a lab, a colon, and the names of what it printed, divided by ``|``."""

    has_content = True
    option_spec: ClassVar[Any] = {"logs": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Make the element; an entry or a log that cannot be used ends the build."""
        try:
            data = page_data(entries())
        except EntryError as error:
            raise BuildError(f"diagnose: {error}") from error
        for path in (*FOLDER.glob("*.toml"), *TABLES):
            self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname]["diagnose"] = entry_names()
        node = diagnose_log(data=_json(data), logs=[], lab="")
        if "logs" in self.options:
            name, _, names = self.options["logs"].partition(":")
            node["logs"], node["lab"] = self._logs(name.strip(), [one.strip() for one in names.split("|")])
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]

    def _logs(self, name: str, names: list[str]) -> tuple[list[tuple[str, str]], str]:
        known = lab_source.all_labs()
        if name not in known:
            raise BuildError(f"diagnose: there is no lab {name!r}{suggestion(name, known)}")
        lab = known[name]
        self.env.note_dependency(str(lab.shown_file(self.config)))
        evidence = lab_source.lab_evidence(lab, self.config)
        texts = ["\n".join(block["printed"]) for block in evidence["blocks"] if "printed" in block]
        if len(texts) != len(names) and not not_shown(evidence):
            raise BuildError(f"diagnose: {len(names)} names of logs, but {name} printed {len(texts)}; name each")
        return list(zip(names, texts, strict=False)), lab.docname


def _json(data: Any) -> str:
    """Within a script element only "<" could end the element; the rest of HTML has no meaning there."""
    return json.dumps(data, ensure_ascii=False, sort_keys=True).replace("<", "\\u003c")


def element(data: str, logs: Sequence[tuple[str, str]], *, errors: str, recorded: str = "") -> str:
    """The element's markup up to what stands in its place.

    Args:
        data: what the engine reads, as JSON.
        logs: names and texts of the logs to try.
        errors: the folder of the entries' pages, as an address.
        recorded: the address of the page that shows where the logs come from.
    """
    examples = ""
    if logs:
        chips = "".join(f'<button type="button" class="diagnose-try">{escape(name)}</button>\n' for name, _ in logs)
        source = f'<a href="{escape(recorded)}">how these were made</a>' if recorded else ""
        examples = f'<div class="diagnose-row"><span>Try the output of a failed job:</span>\n{chips}{source}</div>\n'
    texts = _json([text for _, text in logs])
    return (
        f'<ddp-diagnose errors="{escape(errors)}">\n<script type="application/json">{data}</script>\n'
        f'<script type="application/json" class="diagnose-logs">{texts}</script>\n'
        f"{_FORM.format(examples=examples)}"
    )


def visit(self: HTML5Translator, node: nodes.Element) -> None:
    """The element in a browser, a plain block elsewhere."""
    end = "</div>\n"
    if has_folds(self.builder):
        here, env = self.builder.current_docname, self.builder.env
        errors = self.builder.get_relative_uri(here, page_name(_errors_page(env), "")).removesuffix(".html")
        lab = self.builder.get_relative_uri(here, node["lab"]) if node["lab"] in env.found_docs else ""
        self.body.append(element(node["data"], node["logs"], errors=errors, recorded=lab))
        end += "</ddp-diagnose>\n"
    self.body.append('<div class="diagnose-instead">\n')
    self.context.append(end)


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
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
