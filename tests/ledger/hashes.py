"""What a built file says, as a short hash: the same for every build of the same sources, whenever and wherever it ran.

Left out of a page is when a lab or a test ran, how long, and on which machine: an edition that is recorded again, with
the same results, leaves its hash as it was. What was printed, drawn or measured counts, and so do ranks and versions.
PDFs are the same bytes in each build, so of them every byte counts.
"""

import hashlib
import io
import re
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path, PurePath

_STAMPS = [
    re.compile(pattern)
    for pattern in (
        rb'content="[^"]*Run it: [^"]*"',  # the first letters of a lab's page, cut behind so many
        rb"</code>, \d+ s here",  # below the title of a lab
        rb"minutes \xc2\xb7 \d+ s\b",  # on its card
        rb'[>:\xb7] ?(?:[^<>":\xb7]+, \d+ cores(?= \xc2\xb7|, torch|\))|\d+ \xc3\x97 [^<>":\xb7]+(?= \xc2\xb7 torch))',
        # · 2026-11-21; torch 2.13.0, 2026-11-21 to 2026-11-27; 1.2 MiB, 2026-11-27; a cell of a table
        rb"20\d\d-\d\d-\d\d(?:(?<=\xb7 .{10})|(?<=[\dB], .{10})|(?<=<p>.{10}))(?: to 20\d\d-\d\d-\d\d)?",
        rb"Commit</p></td>\s*<td><p>[0-9a-f]+",  # at which an edition was recorded
        rb"\?v=[0-9a-f]+",  # Sphinx's mark of a script's bytes: what runs the script reads it, too
        rb'dcterms:modified">[^<]*',  # in an EPUB
        rb"<dc:date>[^<]*",
    )
]
_MODIFIED = re.compile(r'"mod": [\d.]+')


def digest(path: Path) -> str:
    """16 hex digits of what a file says, or of the names in a folder; "missing" if there is neither."""
    if path.is_dir():
        return _short("\n".join(sorted(one.name for one in path.iterdir())).encode())
    return _short(_said(path.name, path.read_bytes())) if path.exists() else "missing"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _said(name: str, data: bytes) -> bytes:
    kind = PurePath(name).suffix
    if kind in (".html", ".xhtml", ".opf"):
        for stamp in _STAMPS:
            data = stamp.sub(b"", data)
        return data
    if kind in (".zip", ".epub", ".apkg", ".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:  # names in their order, without dates
            inside = [f"{one} {_short(_said(one, packed.read(one)))}" for one in packed.namelist()]
        return "\n".join(inside).encode()
    return _notes(data) if kind == ".anki2" else data


def _notes(collection: bytes) -> bytes:
    """The cards of Anki's database, in their order, and how they look; without the numbers that are the time."""
    with closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(collection)
        cards = "select did, ord, guid, tags, flds from cards join notes on nid = notes.id order by cards.id"
        looks = base.execute("select models, decks from col").fetchall()
        return _MODIFIED.sub("", f"{looks} {base.execute(cards).fetchall()}").encode()
