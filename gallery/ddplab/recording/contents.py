"""What an edition may hold: names of files, the shape of each JSON, drawings that run nothing and load nothing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

PATH = re.compile(r"manifest\.json|claims/test_\w{1,80}\.json|labs/[a-z0-9][a-z0-9-]{0,80}\.(json|svg)")


class ArchiveError(ValueError):
    """An archive cannot be made or cannot be trusted; the message is one line that names the file and the reason."""


# A shape is a type, a tuple of shapes of which one fits, a list of one shape, a dictionary of needed entries (an entry
# whose name ends in "?" may be missing), or {str: shape} for any names.
_NUMBER = (int, float)
_LAUNCH: dict[str, Any] = {"ranks": int, "backend": str, "torch": str, "gpus": int, "times?": int, "collectives?": int}
_LAUNCH |= {"shared?": str, "nccl?": (str, type(None)), "gpu?": (str, type(None))}
_KEY = re.compile(r"[0-9a-f]{16}")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
_SHAPES: dict[str, Any] = {
    "manifest.json": {"edition": str, "machine": {str: object}, "hardware?": {str: object}, "dates": [str]},
    "labs": {
        "key": _KEY,
        "date": _DATE,
        "seconds": _NUMBER,
        "machine": {str: object},
        "launches": [_LAUNCH],
        "values": {str: {"value": (int, float, str), "unit": str}},
        "blocks": [{"code": str, "printed?": [str], "figures?": [{"file": str, "alt": str}]}],
        "read": [str],
        "failed?": str,
        "needs?": str,
    },
    "claims": {
        "machine": {str: object},
        "results": {
            str: {
                "outcome": re.compile("passed|failed|skipped"),
                "key": _KEY,
                "date": _DATE,
                "seconds": _NUMBER,
                "test": str,
                "launches": [_LAUNCH],
                "read": [str],
                "machine?": {str: object},
                "why?": str,
                "failed?": str,
            }
        },
    },
}


def check(name: str, files: dict[str, bytes]) -> None:
    """Refuse files that the recorder does not write."""
    if "manifest.json" not in files:
        raise ArchiveError("manifest.json is missing")
    drawn: set[str] = set()
    for path, content in files.items():
        if not PATH.fullmatch(path):
            raise ArchiveError(f"{path} does not belong in an edition")
        if path.endswith(".svg"):
            _check_svg(path, content)
            continue
        kept = read_object(path, content, _SHAPES[path.partition("/")[0]])
        if path == "manifest.json" and kept["edition"] != name:
            raise ArchiveError(f"manifest.json is of the edition {kept['edition']!r}, not of {name!r}")
        if path.startswith("labs/"):
            figures = [figure["file"] for block in kept["blocks"] for figure in block.get("figures", ())]
            own = re.compile(re.escape(Path(path).stem) + r"-\d+\.svg")
            for figure in figures:
                if not own.fullmatch(figure) or f"labs/{figure}" not in files:
                    raise ArchiveError(f"{path} shows {figure!r}, which is missing or of another lab")
            drawn |= {f"labs/{figure}" for figure in figures}
    if stray := sorted({path for path in files if path.endswith(".svg")} - drawn):
        raise ArchiveError(f"{stray[0]} is shown by no lab")


def read_object(path: str, content: bytes, shape: Any) -> dict[str, Any]:
    """Return the JSON object in ``content``; raise ArchiveError, which names ``path``, unless it has this shape."""

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not a number")

    try:
        kept = json.loads(content.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{path} is not JSON ({error})") from None
    if wrong := _misfit(kept, shape, path):
        raise ArchiveError(wrong)
    return dict(kept)


def _misfit(value: Any, shape: Any, where: str) -> str:
    """What does not fit the shape; empty if all does."""
    if isinstance(shape, re.Pattern):
        return "" if isinstance(value, str) and shape.fullmatch(value) else f"{where} is {value!r}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is not a list"
        return next(filter(None, (_misfit(one, shape[0], f"{where}[{i}]") for i, one in enumerate(value))), "")
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where} is not an object"
        if str in shape:
            shape = dict.fromkeys(value, shape[str])
        if absent := [name for name in shape if name not in value and not name.endswith("?")]:
            return f"{where} lacks {absent[0]!r}"
        parts = ((name.removesuffix("?"), inner) for name, inner in shape.items())
        named = (_misfit(value[name], inner, f"{where}: {name}") for name, inner in parts if name in value)
        return next(filter(None, named), "")
    kinds = shape if isinstance(shape, tuple) else (shape,)
    fits = isinstance(value, kinds) and (bool in kinds or object in kinds or not isinstance(value, bool))
    return "" if fits and (not isinstance(value, float) or math.isfinite(value)) else f"{where} is {value!r}"


_SVG = "{http://www.w3.org/2000/svg}"
_ELEMENTS = re.compile(
    "svg|g|path|use|text|tspan|defs|rect|clipPath|style|pattern|image|circle|ellipse|line|polyline|polygon|"
    "linearGradient|radialGradient|stop|mask|marker|symbol|title|desc"
)
_DECLARATION = re.compile(
    r"<\?xml version=['\"]1\.0['\"]( encoding=['\"]utf-8['\"])?( standalone=['\"]no['\"])?\?>\s*", re.I
)
_OUTSIDE = re.compile(r"@import|javascript:|expression\(|\\|url\(\s*['\"]?(?!['\"]?\s*#)", re.IGNORECASE)


def _check_svg(path: str, content: bytes) -> None:
    """Refuse a drawing that could run a script or load something: only shapes, text, and references to itself."""
    try:
        text = _DECLARATION.sub("", content.decode("utf-8"), count=1)
        if "<!" in text or "<?" in text:
            raise ArchiveError(f"{path} has a declaration, which no drawing of the recorder has")
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{path} is not SVG ({error})") from None
    for element in root.iter():
        kind = element.tag.removeprefix(_SVG)
        if not _ELEMENTS.fullmatch(kind) or not element.tag.startswith(_SVG):
            raise ArchiveError(f"{path} has the element <{kind}>, which no drawing of the recorder has")
        for name, value in element.attrib.items():
            attribute = name.rpartition("}")[2].lower()
            inside = attribute not in ("href", "src") or value.startswith(("#", "data:image/png;base64,"))
            if attribute.startswith("on") or not inside or _OUTSIDE.search(value):
                raise ArchiveError(f"{path} has {attribute}={value[:40]!r}, which could run or load something")
        if kind == "style" and _OUTSIDE.search("".join(element.itertext())):
            raise ArchiveError(f"{path} has a style that could load something")
