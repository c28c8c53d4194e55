"""An edition in one file, to carry it from the machine that recorded it; what is unpacked is checked first.

A zip, since its table of names and sizes can be judged before anything is read. Equal editions give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .edition import DamagedError, Edition

FORMAT = 1
_INDEX = "archive.json"  # format, name of the edition, and the SHA-256 of every other file
_MOST_FILES, _MOST_BYTES, _MOST_IN_ALL = 5000, 16 << 20, 256 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_PATH = re.compile(r"manifest\.json|claims/test_\w{1,80}\.json|labs/[a-z0-9][a-z0-9-]{0,80}\.(json|svg)")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class ArchiveError(ValueError):
    """An archive cannot be made or cannot be trusted; the message is one line that names the file and the reason."""


def pack(edition: Edition, into: Path) -> Path:
    """Write ``NAME.zip`` into a folder and return its path.

    Raises:
        DamagedError: a file of the edition is damaged or missing.
        ArchiveError: the edition holds a file that does not belong there.
    """
    _read_all(edition)
    files = _contents_of(edition.folder)
    _check(edition.name, files)
    index = {"format": FORMAT, "edition": edition.name, "sha256": {name: _sha256(files[name]) for name in files}}
    files[_INDEX] = (json.dumps(index, indent=1, sort_keys=True) + "\n").encode()
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(f"{edition.name}/{name}", _EPOCH)
            entry.external_attr, entry.create_system = (stat.S_IFREG | 0o644) << 16, 3
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    path = into / f"{edition.name}.zip"
    into.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(written.getvalue())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def unpack(file: Path, editions: Path, *, replace: bool = False) -> tuple[Edition, str]:
    """Check an archive whole, and then put its edition into the folder of the editions.

    Args:
        file: what ``pack`` wrote.
        editions: the folder that holds them.
        replace: also where an edition of that name is there that is newer.

    Returns:
        The edition, and what became of it: ``"added"``, ``"replaced"`` or ``"unchanged"``.

    Raises:
        ArchiveError: it is not an archive of an edition, is damaged, or holds what does not belong there; or there is a
            newer edition of that name. Nothing was written.
    """
    name, files = _open(file)
    try:
        _check(name, files)
    except ArchiveError as problem:
        raise ArchiveError(f"{file}: {problem}") from None
    there = Edition(editions / name)
    if there.folder.exists():
        if _contents_of(there.folder) == files:
            return there, "unchanged"
        new, old = _date(files), _date_of(there)
        if old >= new and not replace:
            dates = f"it was recorded until {new}, but {there.folder} until {old}"
            raise ArchiveError(f"{file}: {dates}; add --replace to take the archive anyway")
    editions.mkdir(parents=True, exist_ok=True)
    before = there.folder.exists()
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=editions) as folder:
        fresh, old_one = Path(folder) / "new", Path(folder) / "old"
        for path, content in files.items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_bytes(content)
        if before:
            there.folder.rename(old_one)
        try:
            fresh.rename(there.folder)
        except BaseException:
            if before and not there.folder.exists():
                old_one.rename(there.folder)
            raise
    return there, "replaced" if before else "added"


def _contents_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read_all(edition: Edition) -> None:
    if not (edition.folder / "manifest.json").exists():
        raise DamagedError(f"{edition.folder} holds no recorded edition")
    edition.labs(), edition.results(), edition.hardware()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _date_of(edition: Edition) -> str:
    try:
        return max((kept["date"] for kept in (*edition.labs().values(), *edition.results().values())), default="")
    except DamagedError:
        return ""


def _date(files: dict[str, bytes]) -> str:
    """When the last lab or claim was recorded; the files are checked."""
    kept = [json.loads(content) for name, content in files.items() if re.match("(labs|claims)/.*json", name)]
    dates = [date for one in kept for date in [one.get("date"), *(r["date"] for r in one.get("results", {}).values())]]
    return max(filter(None, dates), default="")


# -- reading what a stranger may have written -------------------------------------------------------


def _open(file: Path) -> tuple[str, dict[str, bytes]]:
    """The edition's name, and its files by path: names, sizes and checksums hold."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _contents(archive)
    except FileNotFoundError:
        raise ArchiveError(f"{file}: no such file") from None
    except ArchiveError as problem:
        raise ArchiveError(f"{file}: {problem}") from None
    except _DAMAGE as error:
        raise ArchiveError(f"{file}: not an archive of an edition, or damaged ({error})") from None


_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError)


def _contents(archive: zipfile.ZipFile) -> tuple[str, dict[str, bytes]]:
    entries = archive.infolist()
    name = entries[0].filename.partition("/")[0] if entries else ""
    if not NAME.fullmatch(name):
        raise ArchiveError(f"its edition is named {name!r}; use small letters, digits and hyphens")
    if len(entries) > _MOST_FILES or sum(entry.file_size for entry in entries) > _MOST_IN_ALL:
        raise ArchiveError(f"it is larger than {_MOST_FILES} files or {_MOST_IN_ALL >> 20} MiB")
    files: dict[str, bytes] = {}
    for entry in entries:
        path = entry.filename.removeprefix(f"{name}/")
        if path == entry.filename or not (_PATH.fullmatch(path) or path == _INDEX) or path in files:
            raise ArchiveError(f"{entry.filename!r} does not belong in an archive")
        if (kind := stat.S_IFMT(entry.external_attr >> 16)) not in (0, stat.S_IFREG):
            raise ArchiveError(f"{entry.filename!r} is {'a link' if kind == stat.S_IFLNK else 'not a plain file'}")
        with archive.open(entry) as stream:
            files[path] = stream.read(_MOST_BYTES + 1)  # what it unpacks to, whatever the table says
        if len(files[path]) > _MOST_BYTES:
            raise ArchiveError(f"{entry.filename!r} is larger than {_MOST_BYTES >> 20} MiB")
    index = _json(_INDEX, files.pop(_INDEX, b""), {"format": int, "edition": str, "sha256": {str: str}})
    if (index["format"], index["edition"]) != (FORMAT, name):
        raise ArchiveError(f"{_INDEX} is of format {index['format']} and edition {index['edition']!r}")
    if wrong := sorted(files.keys() ^ index["sha256"].keys()):
        raise ArchiveError(f"{wrong[0]} is missing, or not in {_INDEX}")
    if wrong := [path for path in files if _sha256(files[path]) != index["sha256"][path]]:
        raise ArchiveError(f"{wrong[0]} is damaged: its checksum differs from that in {_INDEX}")
    return name, files


# A shape is a type, a tuple of shapes of which one fits, a list of one shape, a dictionary of needed entries (an entry
# whose name ends in "?" may be missing), or {str: shape} for any names.
_NUMBER = (int, float)
_LAUNCH = {"ranks": int, "backend": str, "torch": str, "gpus": int, "times?": int}
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
                "why?": str,
                "failed?": str,
            }
        },
    },
}


def _check(name: str, files: dict[str, bytes]) -> None:
    """Refuse files that the recorder does not write."""
    if "manifest.json" not in files:
        raise ArchiveError("manifest.json is missing")
    drawn: set[str] = set()
    for path, content in files.items():
        if not _PATH.fullmatch(path):
            raise ArchiveError(f"{path} does not belong in an edition")
        if path.endswith(".svg"):
            _check_svg(path, content)
            continue
        kept = _json(path, content, _SHAPES[path.partition("/")[0]])
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


def _json(path: str, content: bytes, shape: Any) -> dict[str, Any]:
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
