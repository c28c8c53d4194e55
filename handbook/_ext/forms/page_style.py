"""One style sheet for all pages: what the book uses of the theme's, the extensions' and its own.

A page that names a dozen style sheets is drawn after the last of them has come. Scripts wait until a page is read.
Fonts are asked for before the sheet that names them, so that no line moves when they come: a face that is late is not
used on that page (``font-display: optional``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from posixpath import normpath
from typing import Any

import tinycss2
from sphinx.application import Sphinx
from sphinx.builders import Builder

from ..order import Finished
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
    """Write the one sheet, and lead every page to it instead of the sheets that it was made of.

    Which classes a page has is kept, so that a build that writes one page reads one page.
    """
    if exception or app.builder.name != "html":
        return
    out, static = Path(app.outdir), Path(app.outdir, "_static")
    kept_file = Path(app.doctreedir, f"style-{sha256(str(out).encode()).hexdigest()[:8]}.json")
    kept = _read_kept(kept_file)
    before: dict[str, Any] = kept["pages"]
    found = {page.relative_to(out).as_posix(): _stamp(page) for page in _pages(out)}
    texts = {
        name: Path(out, name).read_text(encoding="utf-8")
        for name, stamp in found.items()
        if before.get(name, {}).get("stamp") != stamp
    }
    classes = {name: before[name]["classes"] for name in found.keys() - texts.keys()}
    classes |= {name: _classes(text) for name, text in texts.items()}
    used = {name for of_page in classes.values() for name in of_page}
    scripts = [path for path in static.rglob("*.js") if path.name not in _DATA]
    used.update(name for path in scripts for name in re.findall(r"[\w-]+", path.read_text(encoding="utf-8")))
    sources = {name: _read(static, name) for name in _names(app.builder)}
    made_of = sha256(repr((sources, sorted(used), Path(__file__).read_bytes())).encode()).hexdigest()
    sheet = _on_disk(static)
    if kept["made_of"] != made_of or not sheet:
        sheet = "\n".join("".join(_lean(tinycss2.parse_stylesheet(text), used)) for text in sources.values())
    if sheet != _on_disk(static):
        (static / FILE).write_text(sheet, encoding="utf-8")
        texts = {name: Path(out, name).read_text(encoding="utf-8") for name in found}  # the others name the old one
    for name, text in texts.items():
        if (shown := led(app.builder, text)) != text:
            Path(out, name).write_text(shown, encoding="utf-8")
            found[name] = _stamp(Path(out, name))
    now = {name: {"stamp": stamp, "classes": classes[name]} for name, stamp in sorted(found.items())}
    if kept != (kept := {"made_of": made_of, "pages": now}):
        kept_file.write_text(json.dumps(kept), encoding="utf-8")


def led(builder: Builder, text: str) -> str:
    """A page as it is led to the one sheet that there is; as it stands where there is none yet."""
    sheet = _on_disk(Path(builder.outdir, "_static"))
    if not sheet:
        return text
    version = sha256(sheet.encode()).hexdigest()[:8]
    return _defer(_lead(text, _names(builder), f"{FILE}?v={version}", _fonts(sheet)))


def _names(builder: Builder) -> list[str]:
    """The sheets of every page, as files in ``_static``, in their order; a page's own stay its own."""
    sheets = getattr(builder, "_orig_css_files", None)
    expect(isinstance(sheets, list), "Sphinx", "the builder of pages has no list _orig_css_files")
    names = [str(sheet.filename) for sheet in sorted(sheets or [], key=lambda sheet: sheet.priority)]
    return [name.removeprefix("_static/") for name in names]


@functools.lru_cache(maxsize=2)
def _fonts(sheet: str) -> list[tuple[str, str, str]]:
    faces = [face for face in _FACE.findall(sheet) if "unicode-range" not in face]  # the others are for few pages
    return [(_URL.findall(face)[0][1], _said(face, "style"), _said(face, "weight")) for face in faces]


def _classes(text: str) -> list[str]:
    return sorted({name for found in _CLASSES.findall(text) for name in found.split()})


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_mtime_ns, facts.st_size]


def _read_kept(path: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {"made_of": "", "pages": {}}
    return kept


def _on_disk(static: Path) -> str:
    return (static / FILE).read_text(encoding="utf-8") if (static / FILE).is_file() else ""


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
    app.connect("build-finished", write_style, Finished.NEXT)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
