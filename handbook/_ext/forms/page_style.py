"""One style sheet for all pages: what the book uses of the theme's, the extensions' and its own.

A page that names a dozen style sheets is drawn after the last of them has come. Scripts wait until a page is read.
Fonts are asked for before the sheet that names them, so that no line moves when they come: a face that is late is not
used on that page (``font-display: optional``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from posixpath import normpath
from typing import Any

import tinycss2
from sphinx.application import Sphinx

from ..problems import expect

FILE = "page.css"
_LINK = re.compile(r'\s*<link rel="stylesheet"[^>]* href="(?P<up>(?:\.\./)*)_static/(?P<file>[^"?]*)[^"]*"[^>]*>')
_CLASSES = re.compile(r'\bclass="([^"]*)"')
_URL = re.compile(r"""url\((["']?)(?!data:|#|/|https?:)([^"')]+)\1\)""")
_FACE = re.compile(r"@font-face\s*\{[^}]*\}")
# A browser fetches no font ahead of time for a page that was opened from a file: there, it may come a moment later.
_PRELOAD = (
    '<script>for(const [f,style,weight] of {fonts})if(location.protocol=="file:")document.fonts.add(new FontFace('
    '"Source Serif 4","url({static}/"+f+")",{{style,weight,display:"swap"}}));else document.head.append(Object.assign('
    'document.createElement("link"),{{rel:"preload",as:"font",crossOrigin:"",href:"{static}/"+f}}))</script>'
)
_AHEAD = re.compile(r"\n<script>for\(const \[f,style,weight\].*?</script>")
_HOLD_SCRIPTS = "searchtools.js"  # Sphinx's search page calls its scripts while it is read
_DATA = ("search-sections.js", "searchindex.js", "interview-cards.js")  # words, not scripts


def write_style(app: Sphinx, exception: Exception | None) -> None:
    """Write the one sheet, and lead every page to it instead of the sheets that it was made of."""
    if exception or app.builder.name != "html":
        return
    static = Path(app.outdir, "_static")
    sheets = getattr(app.builder, "_css_files", None)  # those of every page; a page's own stay its own
    expect(isinstance(sheets, list), "Sphinx", "the builder of pages has no list _css_files")
    names = [str(sheet.filename) for sheet in sorted(sheets or [], key=lambda sheet: sheet.priority)]
    names = [name.removeprefix("_static/") for name in names]
    texts = {path: path.read_text(encoding="utf-8") for path in _pages(Path(app.outdir))}
    scripts = [path for path in static.rglob("*.js") if path.name not in _DATA]
    used = {name for text in texts.values() for found in _CLASSES.findall(text) for name in found.split()}
    used.update(name for path in scripts for name in re.findall(r"[\w-]+", path.read_text(encoding="utf-8")))
    sheet = "\n".join("".join(_lean(tinycss2.parse_stylesheet(_read(static, name)), used)) for name in names)
    if not (static / FILE).is_file() or (static / FILE).read_text(encoding="utf-8") != sheet:
        (static / FILE).write_text(sheet, encoding="utf-8")
    version = sha256(sheet.encode()).hexdigest()[:8]
    faces = [face for face in _FACE.findall(sheet) if "unicode-range" not in face]  # the others are for few pages
    fonts = [(_URL.findall(face)[0][1], _said(face, "style"), _said(face, "weight")) for face in faces]
    for path, text in texts.items():
        led = _defer(_lead(text, names, f"{FILE}?v={version}", fonts))
        if led != text:
            path.write_text(led, encoding="utf-8")


def _said(face: str, what: str) -> str:
    found = re.search(rf"font-{what}:\s*([^;}}]+)", face)
    return found[1].strip() if found else "normal"


def _pages(folder: Path) -> Iterator[Path]:
    """The pages of this build; another edition in ``editions/`` is a build of its own."""
    for path in folder.rglob("*.html"):
        if path.relative_to(folder).parts[0] not in ("_static", "_downloads", "_sources", "editions"):
            yield path


def _read(static: Path, name: str) -> str:
    """A style sheet whose addresses count from ``_static``."""
    folder = Path(name).parent.as_posix()

    def at_home(match: re.Match[str]) -> str:
        target = normpath(f"{folder}/{match[2]}")
        return f'url("{target}")'

    return _URL.sub(at_home, (static / name).read_text(encoding="utf-8"))


def _lean(rules: Iterable[Any], used: set[str]) -> Iterator[str]:
    """The rules as text, without comments and without selectors of classes that no page has."""
    for rule in rules:
        if rule.type == "qualified-rule":
            kept = [selector for selector in _selectors(rule.prelude) if _needed(selector, used)]
            if kept:
                yield f"{','.join(kept)}{{{_text(rule.content)}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports", "layer") and rule.content:
            inside = "".join(_lean(tinycss2.parse_rule_list(rule.content), used))
            if inside:
                yield f"@{rule.at_keyword} {_text(rule.prelude)}{{{inside}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword != "charset":
            content = ";" if rule.content is None else f"{{{_text(rule.content)}}}"
            yield f"@{rule.at_keyword} {_text(rule.prelude)}{content}"


def _selectors(prelude: Sequence[Any]) -> Iterator[str]:
    """What stands between the commas."""
    selector: list[Any] = []
    for token in prelude:
        if token == ",":
            yield _text(selector)
            selector = []
        else:
            selector.append(token)
    yield _text(selector)


def _needed(selector: str, used: set[str]) -> bool:
    """Whether a page may have what it selects: all classes that it asks for, outside of ``:not()`` and the like."""
    plain = re.sub(r"\[[^\]]*\]", "", selector)
    while plain != (flat := re.sub(r"\([^()]*\)", "", plain)):
        plain = flat
    return "\\" in plain or all(name in used for name in re.findall(r"\.([a-zA-Z_][\w-]*)", plain))


def _text(tokens: Sequence[Any]) -> str:
    """The tokens as text, with one blank for white space, and none for comments."""
    text: str = tinycss2.serialize([token for token in tokens if token.type != "comment"])
    return re.sub(r"\s+", " ", text).strip() if '"' not in text and "'" not in text else text.strip()


def _lead(text: str, names: Sequence[str], address: str, fonts: Sequence[tuple[str, str, str]]) -> str:
    """The page with one link in place of the first of these sheets, behind its fonts, and none for the others."""
    seen = False

    def one(match: re.Match[str]) -> str:
        nonlocal seen
        if match["file"] not in (*names, FILE):
            return match[0]
        first, seen = not seen, True
        static = f"{match['up']}_static"
        ahead = _PRELOAD.format(fonts=json.dumps(fonts), static=static)
        return f'\n{ahead}\n<link rel="stylesheet" href="{static}/{address}">' if first else ""

    head, end, body = text.partition("</head>")
    return _LINK.sub(one, _AHEAD.sub("", head)) + end + body


def _defer(text: str) -> str:
    return text if _HOLD_SCRIPTS in text else re.sub(r"<script (?!defer)([^>]*\bsrc=)", r"<script defer \1", text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on the pages when all of them, and all style sheets, are written."""
    app.connect("build-finished", write_style, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
