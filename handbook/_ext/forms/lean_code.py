"""Highlighted code without an element for each name and parenthesis: they look like text, and are half of a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pygments.formatters import HtmlFormatter
from pygments.token import Name, Punctuation, Text, Whitespace
from sphinx.highlighting import PygmentsBridge

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LIKE_TEXT = {Name, Punctuation, Whitespace}  # in both styles of conf.py; Name.Function and the like do not


class LeanFormatter(HtmlFormatter):  # type: ignore[misc]  # Pygments has no types
    """Pygments' own, given fewer kinds of tokens; neighbours of one kind become one."""

    def format(self, tokensource: Iterator[tuple[Any, str]], outfile: Any) -> None:
        """Write the tokens as HTML."""
        super().format(((Text if kind in _LIKE_TEXT else kind, text) for kind, text in tokensource), outfile)


def setup(app: Sphinx) -> dict[str, Any]:
    """Make all highlighting of this build use the formatter."""
    PygmentsBridge.html_formatter = LeanFormatter
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
