"""``.. kit:: ddplab.launch``: a function or class of the kit, with its signature and docstring.

griffe reads the kit without importing it, so the page needs no torch. (sphinx-autoapi does that, too, but follows every
import into the standard library and torch, which costs each form of the book seven seconds.)

Option ``members``: methods to show below a class, as a list of words. For pages and blocks in reStructuredText, as
docstrings are.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from ..evidence import lab_source
from ..problems import warn_at

if TYPE_CHECKING:
    import griffe

_STYLE: Any = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)  # it stands for Sphinx's configuration


@functools.cache
def _kit(gallery: Path) -> griffe.Module:
    import griffe  # here, as few documents need it

    loaded = griffe.load("ddplab", search_paths=[gallery], allow_inspection=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


class Kit(SphinxDirective):
    """Show one public name of the kit."""

    required_arguments = 1
    option_spec = {"members": directives.unchanged}  # noqa: RUF012  (as docutils declares it)

    def run(self) -> list[nodes.Node]:
        """Make the description; a name that the kit does not have is reported and left out."""
        name, members = self.arguments[0], self.options.get("members", "").split()
        lines: list[str] = []
        try:
            for path in (name, *(f"{name}.{member}" for member in members)):
                lines += self._described(path, "   " if path != name else "")
        except KeyError:
            warn_at(self.env, f"{self.name}: the kit has no {path}", self.lineno)
            return []
        made = self.parse_text_to_nodes("\n".join(lines))
        for signature in (one for node in made for one in node.findall(addnodes.desc_signature)):
            for link in list(signature.findall(addnodes.pending_xref)):  # types: most are Python's or torch's
                link.replace_self(link.children)
        return made

    def _described(self, path: str, indent: str) -> list[str]:
        import griffe

        found: griffe.Object | griffe.Alias = _kit(lab_source.ROOT / "gallery")[path.removeprefix("ddplab.")]
        found = found.final_target if isinstance(found, griffe.Alias) else found
        self.env.note_dependency(str(found.filepath))
        kind, shown, options = "data", "", [f"   :value: {getattr(found, 'value', '')}"]
        if isinstance(found, griffe.Function):
            kind, shown, options = ("method" if indent else "function"), found.signature(), []
        elif isinstance(found, griffe.Class):
            raised = any(str(base).endswith(("Error", "Exception")) for base in found.bases)
            kind, shown, options = ("exception" if raised else "class"), found.signature(), []
        options.append(f"   :canonical: {found.canonical_path}")  # docstrings may name it so
        text = found.docstring.value if found.docstring else ""
        place = [] if indent else [f".. py:currentmodule:: {path.rpartition('.')[0]}", ""]
        body = [f"   {line}" for line in str(GoogleDocstring(text, _STYLE)).splitlines()]
        return [
            f"{indent}{line}" for line in [*place, f".. py:{kind}:: {shown or found.name}", *options, "", *body, ""]
        ]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("kit", Kit)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
