"""The known messages: one TOML file each.

Their format is checked by tests, against ``entry.schema.json`` beside this file; what loads them stays light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .tables import read_toml

FOLDER = Path(__file__).parent / "entries"


class EntryError(Exception):
    """An entry cannot be used; the text is one line with the file, the problem, and what to do."""


@dataclass(frozen=True)
class Match:
    """A way to recognize the message: ``needle`` is literal and on the line; the others narrow it."""

    needle: str
    regex: re.Pattern[str] | None
    nearby: str

    @property
    def weight(self) -> int:
        """How specific it is."""
        return len(self.needle) + 20 * (self.regex is not None) + 20 * bool(self.nearby)


@dataclass(frozen=True)
class Entry:
    """One message: what it is, why it comes, what to do. Texts are Markdown."""

    id: str
    title: str
    area: str
    role: str  # "cause", "consequence" or "generic"
    versions: str
    message: str
    ranks: str
    cause: str
    fix: str
    matches: tuple[Match, ...]
    samples: tuple[str, ...]
    collect: str = ""
    lab: str = ""
    not_run: str = ""
    family: str = ""  # of messages that follow from the same causes: "exit", "peer"
    links: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()  # in the file also names of families; here ids only


def entries(folder: Path = FOLDER) -> dict[str, Entry]:
    """All entries of a folder by id, in the order of the ids.

    Raises:
        EntryError: an entry cannot be used.
    """
    return dict(_entries(folder))


@cache
def _entries(folder: Path) -> dict[str, Entry]:
    found = {path.stem: _read(path) for path in sorted(folder.glob("*.toml"))}
    families: dict[str, list[str]] = {"exit": []}
    for entry in found.values():
        if entry.family:
            families.setdefault(entry.family, []).append(entry.id)
    return {name: replace(entry, explains=_explained(entry, found, families)) for name, entry in found.items()}


def _explained(entry: Entry, found: dict[str, Entry], families: dict[str, list[str]]) -> tuple[str, ...]:
    """The ids that follow from the entry. What ends a rank is always followed by what its launcher prints."""
    ids: dict[str, None] = {}
    for name in (*entry.explains, *(["exit"] if entry.role == "cause" else [])):
        if name not in families and (name not in found or name == entry.id):
            raise EntryError(f"{entry.id}.toml: explains: there is no other entry or family {name!r}; fix the name")
        ids |= dict.fromkeys(families.get(name, [name]))
    ids.pop(entry.id, None)
    return tuple(ids)


def _read(path: Path) -> Entry:
    try:
        raw = read_toml(path)
        fields: dict[str, Any] = {
            key: value.strip() if isinstance(value, str) else tuple(value) for key, value in raw.items()
        }
        matches = tuple(_match(**one) for one in fields.pop("match"))
        samples = tuple(one["text"].strip("\n") for one in fields.pop("sample"))
        return Entry(id=path.stem, matches=matches, samples=samples, **fields)
    except KeyError as error:
        raise EntryError(f"{path}: {error} is missing; add it") from None
    except (ValueError, TypeError, re.error) as error:
        raise EntryError(f"{path}: {error}; entry.schema.json describes the format") from None


def _match(needle: str, regex: str = "", nearby: str = "") -> Match:
    return Match(needle, re.compile(regex, re.ASCII) if regex else None, nearby)
