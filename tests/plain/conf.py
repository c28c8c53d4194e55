"""The same pages by Sphinx and its public extensions alone: what `make bench` compares our share with.

Our directives are containers of their text here, and our roles literals; no output of a lab is shown.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import docutils.parsers.rst.directives as known_directives
import docutils.parsers.rst.roles as known_roles
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("conf_of_the_book", ROOT / "conf.py")
assert spec is not None
assert spec.loader is not None
book = importlib.util.module_from_spec(spec)
spec.loader.exec_module(book)
globals().update({name: value for name, value in vars(book).items() if not name.startswith("_")})

extensions = [name for name in book.extensions if not name.startswith("_ext.")]
sys.path.remove(str(ROOT / "handbook"))
html_math_renderer = "mathjax"
html_static_path = [str(ROOT / "handbook" / "_static")]
nitpicky = False
suppress_warnings = ["*", "ref", "myst", "toc", "docutils", "image", "config"]


class AnyOptions(dict):
    """An option_spec that takes every option as text."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return known_directives.unchanged


class Container(SphinxDirective):
    """Whatever a directive of ours holds, as text."""

    has_content = True
    optional_arguments = 99
    final_argument_whitespace = True
    option_spec = AnyOptions()

    def run(self) -> list[nodes.Node]:
        """Parse what it holds, headings too."""
        return [nodes.container("", *self.parse_content_to_nodes(allow_section_headings=True))]


def literal(name: str, rawtext: str, text: str, *_: Any, **__: Any) -> tuple[list[nodes.Node], list[Any]]:
    """Whatever a role of ours holds."""
    return [nodes.literal(rawtext, text)], []


def setup(app: Sphinx) -> None:
    """Let unknown directives and roles be plain ones."""
    directive, role = known_directives.directive, known_roles.role

    def known_directive(name: str, *rest: Any) -> Any:
        found, messages = directive(name, *rest)
        return (found, messages) if found else (Container, [])

    def known_role(name: str, *rest: Any) -> Any:
        found, messages = role(name, *rest)
        return (found, messages) if found else (literal, [])

    known_directives.directive, known_roles.role = known_directive, known_role
