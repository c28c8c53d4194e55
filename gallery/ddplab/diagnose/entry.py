"""The known messages: one TOML file each, read and checked."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "entries"
AREAS = ("ddp", "collectives", "rendezvous", "launch", "nccl", "gloo", "data", "amp", "memory", "checkpoint")
ROLES = ("cause", "consequence", "generic")
_TEXTS = ("title", "area", "role", "versions", "message", "ranks", "cause", "fix")
_TEXTS_OR_NOT = ("collect", "lab", "not_run")
_LISTS = ("links", "see", "explains")
_LEAST_NEEDLE = 6  # characters
_MOST_WILD = 2  # unbounded wildcards of one regex: more can take a power of the line's length


class EntryError(Exception):
    """An entry cannot be used; the text is one line with the file, the key, and what to do."""

    def __init__(self, path: Path, key: str, problem: str) -> None:
        super().__init__(f"{path}: {key}: {problem}")


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
    role: str
    versions: str
    message: str
    ranks: str
    cause: str
    fix: str
    collect: str
    lab: str
    not_run: str
    links: tuple[str, ...]
    see: tuple[str, ...]
    explains: tuple[str, ...]
    matches: tuple[Match, ...]
    samples: tuple[str, ...]


def entries(folder: Path = FOLDER) -> dict[str, Entry]:
    """All entries of a folder by id, in the order of the ids.

    Raises:
        EntryError: an entry cannot be used.
    """
    return dict(_entries(folder))


@cache
def _entries(folder: Path) -> dict[str, Entry]:
    return {path.stem: read_entry(path) for path in sorted(folder.glob("*.toml"))}


def check_explains(folder: Path = FOLDER) -> None:
    """What an entry explains must be there. The command line does without this check; the book and the tests do not.

    Raises:
        EntryError: an entry explains itself, or one that is not there.
    """
    found = entries(folder)
    for entry in found.values():
        for other in entry.explains:
            if other not in found or other == entry.id:
                problem = f"there is no other entry {other!r}; add it or take it out"
                raise EntryError(folder / f"{entry.id}.toml", "explains", problem)


def read_entry(path: Path) -> Entry:
    """One entry.

    Raises:
        EntryError: it cannot be used.
    """
    if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", path.stem):
        raise EntryError(path, "file name", "an id has small letters, digits and single hyphens; rename the file")
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EntryError(path, "TOML", f"{error}; mend the syntax") from None
    unknown = set(raw) - {*_TEXTS, *_TEXTS_OR_NOT, *_LISTS, "match", "sample"}
    if unknown:
        raise EntryError(path, min(unknown), "unknown key; take it out or spell it as the others do")
    texts = {}
    for key in (*_TEXTS, *_TEXTS_OR_NOT):
        value = raw.get(key, "")
        if not isinstance(value, str):
            raise EntryError(path, key, "must be a text; put it in quotes")
        texts[key] = value.strip()
        if key in _TEXTS and not texts[key]:
            raise EntryError(path, key, "is missing or empty; write it")
    for key, allowed in (("area", AREAS), ("role", ROLES)):
        if texts[key] not in allowed:
            raise EntryError(path, key, f"{texts[key]!r} is unknown; take one of {', '.join(allowed)}")
    if "\n" in texts["title"] or texts["title"].endswith("."):
        raise EntryError(path, "title", "must be one line without a period at its end")
    lists: dict[str, tuple[str, ...]] = {}
    for key in _LISTS:
        value = raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise EntryError(path, key, "must be a list of texts")
        lists[key] = tuple(value)
    for link in lists["links"]:
        if not link.startswith("https://"):
            raise EntryError(path, "links", f"{link!r} must begin with https://")
    if not texts["lab"] and not texts["not_run"]:
        raise EntryError(path, "lab", "is missing; name the lab, or say in not_run why none runs here")
    if texts["not_run"] and not lists["links"]:
        raise EntryError(path, "links", "what was not run here needs a source; add an official page or thread")
    matches = tuple(_match(path, one) for one in _tables(path, raw, "match"))
    samples = []
    for one in _tables(path, raw, "sample"):
        if set(one) != {"text"} or not isinstance(one["text"], str) or not one["text"].strip():
            raise EntryError(path, "sample", "needs the one key text, lines as a log shows them")
        samples.append(one["text"].strip("\n"))
    fields: dict[str, Any] = {**texts, **lists}
    return Entry(id=path.stem, **fields, matches=matches, samples=tuple(samples))


def _tables(path: Path, raw: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = raw.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise EntryError(path, key, f"at least one [[{key}]] is needed; add it")
    return value


def _match(path: Path, raw: dict[str, Any]) -> Match:
    for key, value in raw.items():
        if key not in ("needle", "regex", "nearby"):
            raise EntryError(path, f"match.{key}", "unknown key; a match has needle, regex, nearby")
        if not isinstance(value, str) or not value.strip() or "\n" in value:
            raise EntryError(path, f"match.{key}", "must be a text of one line")
    needle = raw.get("needle", "")
    if len(needle) < _LEAST_NEEDLE:
        raise EntryError(path, "match.needle", f"{needle!r} has fewer than {_LEAST_NEEDLE} characters; take more text")
    source = raw.get("regex")
    if source is None:
        return Match(needle, None, raw.get("nearby", ""))
    problem = regex_problem(source)
    if problem:
        raise EntryError(path, "match.regex", problem)
    return Match(needle, re.compile(source, re.ASCII), raw.get("nearby", ""))


_TOKEN = re.compile(
    r"(?P<escape>\\(?:.|$))|(?P<set>\[\^?(?:\\.|[^\]\\])*\]?)|(?P<open>\((?:\?(?:<[=!]?|P.?|.)?)?)|(?P<close>\))"
    r"|(?P<repeat>[*+?]|\{\d*,?\d*\})(?P<lazy>\??)(?P<greed>\+?)|(?P<other>.)",
    re.DOTALL,
)


def regex_problem(source: str) -> str:
    """What is wrong with a regex, or nothing.

    It must mean the same in Python and JavaScript, and must not take exponential time: nothing that repeats
    without bound may stand in a group that repeats.
    """
    try:
        re.compile(source, re.ASCII)
    except re.error as error:
        return f"no regex of Python: {error}; mend it"
    repeats_in = [False]  # for each open group: does it hold a repeat?
    closed = False  # the last atom was a group that holds a repeat
    last, wild = "", 0
    for token in _TOKEN.finditer(source):
        text = token[0]
        if token["escape"]:
            if text[1:] not in "dDwWsSbBnrt" and (text[1:].isalpha() or text[1:].isdigit()):
                return f"{text} is not common to Python and JavaScript; write it in another way"
            closed = False
        elif token["set"]:
            if text in ("[]", "[^]") or re.match(r"\[\^?\]", text):
                return "']' as the first of a set differs in JavaScript; write \\]"
            closed = False
        elif token["open"]:
            if len(text) > 1 and text not in ("(?:", "(?=", "(?!"):
                return f"{text} is not common to Python and JavaScript; use (…), (?:…), (?=…) or (?!…)"
            repeats_in.append(False)
            closed = False
        elif token["close"]:
            closed = repeats_in.pop()
            repeats_in[-1] = repeats_in[-1] or closed
        elif token["repeat"]:
            if token["greed"]:
                return f"{text} is possessive, which JavaScript does not have; take out the last +"
            unbounded = token["repeat"] in ("*", "+") or token["repeat"].endswith(",}")
            if closed and token["repeat"] != "?":
                return "a repeat of a group that repeats can take exponential time; take one of the two out"
            if token["repeat"] != "?":
                repeats_in[-1] = True
            if unbounded and (last == "." or last.startswith("[^")):
                wild += 1
            closed = False
        else:
            closed = False
        last = text
    if wild > _MOST_WILD:
        return f"more than {_MOST_WILD} unbounded wildcards are slow on long lines; bound them, such as .{{0,80}}"
    return ""
