"""What the theme leaves out for those who read with the keyboard or by ear."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from sphinx.application import Sphinx

from ..order import Page

_PRE = re.compile(r"<pre\b([^>]*)>(.*?)</pre>", re.DOTALL)
_WIDE = 60  # characters; longer lines scroll, at the latest on a phone, so the keyboard must reach them


def fix_page(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Make wide listings focusable, give the captions of the navigation their level, and citations no wrong role."""
    body = context.get("body", "").replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    context["body"] = _PRE.sub(_focusable, body)
    for name in ("body", "furo_navigation_tree"):
        if name in context:
            context[name] = context[name].replace(' role="heading"', ' role="heading" aria-level="2"')


def _focusable(match: re.Match[str]) -> str:
    attributes, content = match.groups()
    lines = unescape(re.sub(r"<[^>]*>", "", content)).splitlines()
    wide = max(map(len, lines), default=0) > _WIDE and "tabindex" not in attributes
    focus = ' tabindex="0"' if wide else ""
    return f"<pre{attributes}{focus}>{content}</pre>"


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on each page after the theme has."""
    app.connect("html-page-context", fix_page, Page.WHOLE)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
