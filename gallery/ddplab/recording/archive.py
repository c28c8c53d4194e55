"""An edition in one file, to carry it from the machine that recorded it; what is unpacked is checked first.

A zip, since its table of names and sizes can be judged before anything is read. Equal editions give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path

from .contents import PATH, check, read_object
from .contents import ArchiveError as ArchiveError
from .edition_folder import DamagedError, Edition

FORMAT = 1
_INDEX = "archive.json"  # format, name of the edition, and the SHA-256 of every other file
_MOST_FILES, _MOST_BYTES, _MOST_IN_ALL = 5000, 16 << 20, 256 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(edition: Edition, into: Path) -> Path:
    """Write ``NAME.zip`` into a folder and return its path.

    Raises:
        DamagedError: a file of the edition is damaged or missing.
        ArchiveError: the edition holds a file that does not belong there.
    """
    _read_all(edition)
    files = _contents_of(edition.folder)
    check(edition.name, files)
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
        check(name, files)
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
        if path == entry.filename or not (PATH.fullmatch(path) or path == _INDEX) or path in files:
            raise ArchiveError(f"{entry.filename!r} does not belong in an archive")
        if (kind := stat.S_IFMT(entry.external_attr >> 16)) not in (0, stat.S_IFREG):
            raise ArchiveError(f"{entry.filename!r} is {'a link' if kind == stat.S_IFLNK else 'not a plain file'}")
        with archive.open(entry) as stream:
            files[path] = stream.read(_MOST_BYTES + 1)  # what it unpacks to, whatever the table says
        if len(files[path]) > _MOST_BYTES:
            raise ArchiveError(f"{entry.filename!r} is larger than {_MOST_BYTES >> 20} MiB")
    index = read_object(_INDEX, files.pop(_INDEX, b""), {"format": int, "edition": str, "sha256": {str: str}})
    if (index["format"], index["edition"]) != (FORMAT, name):
        raise ArchiveError(f"{_INDEX} is of format {index['format']} and edition {index['edition']!r}")
    if wrong := sorted(files.keys() ^ index["sha256"].keys()):
        raise ArchiveError(f"{wrong[0]} is missing, or not in {_INDEX}")
    if wrong := [path for path in files if _sha256(files[path]) != index["sha256"][path]]:
        raise ArchiveError(f"{wrong[0]} is damaged: its checksum differs from that in {_INDEX}")
    return name, files
