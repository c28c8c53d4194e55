"""One style sheet for all pages: the theme's, the extensions' and the book's own, in their order.

A page that names a dozen style sheets is drawn after the last of them has come. Scripts wait until a page is read.
Fonts are asked for before the sheet that names them, so that no line moves when they come: a face that is late is not
used on that page (``font-display: optional``). What a page says of this stands in ``_templates/page.html``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from posixpath import normpath

from furo import get_pygments_stylesheet
from sphinx.builders.html import StandaloneHTMLBuilder

from ..problems import expect

FILE = "page.css"
# What the book uses nothing of, half of the bytes of the extensions: whole families of sphinx-design's classes.
LEFT_OUT = re.compile(
    r"\.sd-(accordion|align|animate|aside|avatar|badge|bg|border|btn|cards|fade|fs|g[xy]|m[xytlr]|outline|p[xytblr]?|"
    r"rounded|steps?|text)\b"
)
_GALLERY = "sg_"  # sphinx-gallery's, for thumbnails, notebooks and notes that our pages do not have
_URL = re.compile(r"""url\((["']?)(?!data:|#|/|https?:)([^"')]+)\1\)""")
_FACE = re.compile(r"@font-face\s*\{[^}]*\}")
_RULE = re.compile(r"[^{}]+\{[^{}]*\}")
_SPACE = re.compile(r"""("[^"]*"|'[^']*')|/\*.*?\*/|\s+""", re.DOTALL)


def write_style(builder: StandaloneHTMLBuilder) -> None:
    """Make the one sheet of those that have been copied, and have the pages that are then written name it only.

    Sheets of a single page, which it adds to these, stay its own.
    """
    sheets = getattr(builder, "_orig_css_files", None)
    expect(isinstance(sheets, list), "Sphinx", "the builder of pages has no list _orig_css_files")
    static = Path(builder.outdir, "_static")
    if builder.config.html_theme == "furo":  # which gives it its dark half at the end of a build only
        (static / "pygments.css").write_text(get_pygments_stylesheet(), encoding="utf-8")
    names = [str(one.filename).removeprefix("_static/") for one in sorted(sheets or [], key=lambda one: one.priority)]
    sheet = "\n".join(lean(_read(static, name)) for name in names if not name.startswith(_GALLERY))
    if not (static / FILE).is_file() or (static / FILE).read_text(encoding="utf-8") != sheet:
        (static / FILE).write_text(sheet, encoding="utf-8")
    builder.add_css_file(FILE)
    builder._orig_css_files = builder._css_files[-1:]
    faces = [face for face in _FACE.findall(sheet) if "unicode-range" not in face]  # the others are for few pages
    fonts = [(_URL.findall(face)[0][1], _said(face, "style"), _said(face, "weight")) for face in faces]
    builder.globalcontext["fonts"] = json.dumps(fonts)


def _said(face: str, what: str) -> str:
    found = re.search(rf"font-{what}:\s*([^;}}]+)", face)
    return found[1].strip() if found else "normal"


def _read(static: Path, name: str) -> str:
    """A style sheet whose addresses count from ``_static``."""
    folder = Path(name).parent.as_posix()

    def at_home(match: re.Match[str]) -> str:
        target = normpath(f"{folder}/{match[2]}")
        return f'url("{target}")'

    return _URL.sub(at_home, (static / name).read_text(encoding="utf-8"))


def lean(sheet: str) -> str:
    """A style sheet with one blank for white space, and without comments and rules for what is left out."""
    sheet = _SPACE.sub(lambda found: found[1] or " " * found[0].isspace(), sheet)
    return _RULE.sub(
        lambda rule: "" if all(map(LEFT_OUT.search, rule[0].partition("{")[0].split(","))) else rule[0], sheet
    )
