"""Steps that Sphinx and sphinx-gallery take in each build, and here only when something asks for them.

As in `patches`, what is relied on is checked first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes, environment
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util._serialise import stable_str

from ..news import nothing_read
from ..order import Configured
from ..problems import expect


def compare_settings_as_read() -> None:
    """Let Sphinx compare the settings of two builds as they were read.

    It keeps them as extensions and the builder have left them, and so every build said that they had changed.
    """
    differing: Any = getattr(environment, "_differing_config_keys", None)
    expect(differing, "Sphinx", "sphinx.environment has no _differing_config_keys")
    if getattr(differing, "__wrapped__", None):
        return

    @functools.wraps(differing)
    def as_read(old: Config, new: Config) -> frozenset[str]:
        before, now = (getattr(config, "as_read", {}) for config in (old, new))
        return frozenset(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))

    environment._differing_config_keys = as_read


def note_settings(app: Sphinx, config: Config) -> None:
    """Keep the settings before anything is added to them."""
    config.as_read = {option.name: stable_str(option.value) for option in config}


def number_from_outlines() -> None:
    """Let Sphinx number figures from an outline of each document: it unpickles all of them, in every build."""
    assign: Any = TocTreeCollector.assign_figure_numbers
    if getattr(assign, "__wrapped__", None):
        return
    takes = assign.__code__.co_varnames[: assign.__code__.co_argcount]
    expect(takes == ("self", "env"), "Sphinx", "TocTreeCollector.assign_figure_numbers does not take (env)")

    @functools.wraps(assign)
    def from_outlines(collector: TocTreeCollector, env: Any) -> list[str]:
        if nothing_read(env):
            return []
        env.get_doctree = functools.partial(_outline, env, env.get_doctree)
        try:
            numbered: list[str] = assign(collector, env)
        finally:
            del env.get_doctree
        return numbered

    changed: Any = TocTreeCollector
    changed.assign_figure_numbers = from_outlines


def _outline(env: BuildEnvironment, get_doctree: Any, docname: str) -> nodes.Element:
    """What numbers depend on in a document, kept until it is read again."""
    kept: dict[str, tuple[int, nodes.Element]] = env.__dict__.setdefault("ddp_outlines", {})
    read = env.all_docs[docname]
    if kept.get(docname, (0,))[0] != read:
        kept[docname] = read, nodes.Element("", *_parts(get_doctree(docname), env))
    return kept[docname][1]


def _parts(node: nodes.Element, env: BuildEnvironment) -> Iterator[nodes.Element]:
    """Copies of sections, lists of documents, and what has a number, in their order; other nodes left out."""
    for child in node.children:
        if not isinstance(child, nodes.Element):
            continue
        below = _parts(child, env)
        if isinstance(child, nodes.section | addnodes.toctree):
            yield _copy(child, *below)
        elif child["ids"] and any(domain.get_enumerable_node_type(child) for domain in env.domains.sorted()):
            kinds = nodes.caption | nodes.title | nodes.literal_block
            named = [one for one in child.children if isinstance(one, kinds)]
            yield _copy(child, *(_copy(one, nodes.Text(one.astext())) for one in named), *below)
        else:
            yield from below


def _copy(node: nodes.Element, *children: nodes.Node) -> nodes.Element:
    copy = node.copy()
    copy.rawsource, copy.document = "", None  # type: ignore[assignment]  # else it holds on to the whole
    copy += children
    return copy


def setup(app: Sphinx) -> dict[str, Any]:
    """Change what every build does."""
    app.setup_extension("_ext.news")
    compare_settings_as_read()
    number_from_outlines()
    app.connect("config-inited", note_settings, Configured.AS_READ)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
