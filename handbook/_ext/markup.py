"""Nodes and markup that the directives of several rooms make in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes
from sphinx import addnodes
from sphinx.builders import Builder
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator


def has_folds(builder: Builder) -> bool:
    """Whether pages of this builder are read in a browser, with folds and inputs; the others show everything."""
    return builder.name == "html"


def close(self: HTML5Translator, node: nodes.Element) -> None:
    """Write the closing tags that the visit of the node left in ``context``."""
    self.body.append(self.context.pop())


def inline(directive: SphinxDirective, text: str) -> list[nodes.Node]:
    """The nodes of a line of source text, with what is wrong with it."""
    found, messages = directive.parse_inline(text, lineno=directive.lineno)
    return [*found, *messages]


def cross_reference(
    docname: str, kind: str, target: str, text: str | nodes.Node, *, explicit: bool = True
) -> addnodes.pending_xref:
    """A reference that Sphinx resolves once all documents are read; it warns if there is no such target.

    Args:
        docname: the document that it stands in.
        kind: domain and type, such as ``std:doc``.
        target: what it leads to.
        text: what is shown; without ``explicit`` only until the title of the target is known.
        explicit: the text stays.
    """
    domain, _, reftype = kind.partition(":")
    shown = nodes.inline("", text) if isinstance(text, str) else text
    where = {"refdoc": docname, "refdomain": domain, "reftype": reftype, "reftarget": target}
    return addnodes.pending_xref("", shown, refexplicit=explicit, refwarn=True, **where)


def captioned(
    directive: SphinxDirective, content: nodes.Node, classes: Sequence[str], below: Sequence[nodes.Node] = ()
) -> nodes.figure:
    """A numbered figure: the first paragraph of the directive is its caption, the rest and ``below`` its legend.

    Raises:
        ValueError: the directive begins with something else.
    """
    first, *rest = [*directive.parse_content_to_nodes()] or [nodes.paragraph()]
    if not isinstance(first, nodes.paragraph):
        raise ValueError("begin with a paragraph that says what to see; it becomes the caption")
    figure = nodes.figure("", content, classes=list(classes))
    directive.set_source_info(figure)
    if first.children:
        figure += nodes.caption(first.rawsource, "", *first.children)
    if legend := [*rest, *below]:
        figure += nodes.legend("", *legend)
    directive.add_name(figure)
    return figure
