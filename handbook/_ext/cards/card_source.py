"""Interview cards and quizzes as they are written in the chapters, read without building the book.

A card is one directive; ``+++ name`` lines divide its body into parts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils.parsers.rst import Directive, directives
from docutils.parsers.rst.states import MarkupError
from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from myst_parser.parsers.directives import parse_directive_text

LEVELS = ("core", "deep", "staff")
OPTIONS: dict[str, Any] = dict.fromkeys(("question", "level", "evidence"), directives.unchanged)
_PARTS = {"interview": ("depth", "follow-ups"), "quiz": ("why",)}
_INFO = re.compile(r"\{(interview|quiz)\}\s*(.*)")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_OPTION = re.compile(r"[-*] \[([ xX])\] +(.+)")
_EVIDENCE = re.compile(r"(lab|claim|section):(\S+)")


class CardError(ValueError):
    """A card is not as it should be; ``reason`` and ``line`` say what and where, the message says both and the file."""

    def __init__(self, reason: str, path: Path, line: int) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.reason, self.line = reason, line


@dataclass(frozen=True)
class Passage:
    """Source text of a part of a card, and the line of the file where it starts."""

    text: str
    line: int


@dataclass(frozen=True)
class Option:
    """One option of a quiz."""

    text: str
    right: bool


@dataclass(frozen=True)
class Card:
    """An interview card or a quiz. Texts are MyST source."""

    kind: str  # "interview" or "quiz"
    id: str
    question: str
    level: str  # one of LEVELS; a quiz may have none: ""
    evidence: tuple[tuple[str, str], ...]  # such as ("lab", "bucket-xray")
    parts: dict[str, Passage]  # interview: "answer", "depth", "follow-ups"; quiz: "why"
    options: tuple[Option, ...]  # of a quiz
    path: Path
    line: int

    @property
    def right_letters(self) -> str:
        """The letters of a quiz's right options: ``"B"`` or ``"A, C"``."""
        return ", ".join(letter(i) for i, option in enumerate(self.options) if option.right)


def letter(place: int) -> str:
    """0 is A."""
    return chr(ord("A") + place)


def parse_card(kind: str, name: str, options: dict[str, Any], body: Passage, path: Path, line: int) -> Card:
    """Make a card from the pieces of its directive.

    Raises:
        CardError: a piece is missing or wrong.
    """

    def wrong(reason: str, at: int = line) -> CardError:
        return CardError(f"{kind} {name!r} {reason}", path, at)

    if not _ID.fullmatch(name):
        raise wrong("needs an id of small letters, digits and hyphens, such as bucket-order")
    question, level = (options.get("question") or "").strip(), (options.get("level") or "").strip()
    if not question:
        raise wrong("has no question; add :question:")
    if level not in LEVELS and (level or kind == "interview"):
        raise wrong(f"has the unknown level {level!r}; take one of {', '.join(LEVELS)}")
    evidence = tuple(_EVIDENCE.fullmatch(word) or word for word in (options.get("evidence") or "").split())
    for word in evidence:
        if isinstance(word, str):
            raise wrong(f"has evidence {word!r}; write lab:ID, claim:ID or section:LABEL")
    parts: dict[str, Passage] = {}
    for part, passage in _split(body):
        if part not in ("", *_PARTS[kind]) or part in parts:
            raise wrong(f"has an unknown or repeated part '+++ {part}'", passage.line - 1)
        if part and not passage.text.strip():
            raise wrong(f"has nothing below '+++ {part}'", passage.line - 1)
        parts[part] = passage
    head, choices = parts.pop(""), tuple[Option, ...]()
    if kind == "interview":
        if not head.text.strip():
            raise wrong("has no answer")
        parts["answer"] = head
    else:
        choices = tuple(_choices(head, wrong))
        if len(choices) < 2:
            raise wrong("needs at least two options, such as '- [x] around both'")
        if not any(choice.right for choice in choices):
            raise wrong("has no right option; mark it with [x]")
        if "why" not in parts:
            raise wrong("does not say why; add '+++ why' and the reason")
    pairs = tuple((word[1], word[2]) for word in evidence if not isinstance(word, str))
    return Card(kind, name, question, level, pairs, parts, choices, path, line)


def _split(body: Passage) -> Iterator[tuple[str, Passage]]:
    """The parts of a body by name; the text before the first ``+++`` has the name ''."""
    name, start, lines, code = "", body.line, list[str](), ""
    for number, text in enumerate(body.text.splitlines(), body.line):
        fence = re.match(r"\s*(`{3,}|~{3,})", text)
        if fence and (not code or fence[1].startswith(code)):
            code = "" if code else fence[1]
        if text.startswith("+++") and not code:
            yield name, Passage("\n".join(lines), start)
            name, start, lines = text[3:].strip(), number + 1, []
        else:
            lines.append(text)
    yield name, Passage("\n".join(lines), start)


def _choices(head: Passage, wrong: Any) -> Iterator[Option]:
    right, words = False, ""
    for number, text in enumerate(head.text.splitlines(), head.line):
        if found := _OPTION.fullmatch(text.strip()):
            if words:
                yield Option(words, right)
            right, words = found[1] != " ", found[2]
        elif words and text.startswith(" ") and text.strip():
            words += " " + text.strip()
        elif text.strip():
            raise wrong(f"has a line that is no option: {text.strip()!r}", number)
    if words:
        yield Option(words, right)


# -- finding cards in files -------------------------------------------------------------------------


class _Shape(Directive):
    """Tells MyST which options a card has."""

    required_arguments, has_content, option_spec = 1, True, OPTIONS


def read_cards(folder: Path) -> dict[str, Card]:
    """Every card of the chapters in ``folder`` by id, in file and line order.

    Raises:
        CardError: a card is wrong, or its id is taken.
    """
    cards: dict[str, Card] = {}
    for path in sorted(folder.rglob("*.md")):
        for card in _cards_of(path, path.stat().st_mtime_ns):
            if card.id in cards:
                first = cards[card.id]
                raise CardError(f"the id {card.id!r} is taken by {first.path}:{first.line}", path, card.line)
            cards[card.id] = card
    return cards


@functools.lru_cache(maxsize=64)
def _cards_of(path: Path, _changed: int) -> tuple[Card, ...]:
    return tuple(_find(path.read_text(encoding="utf-8"), path, 0))


def _find(text: str, path: Path, lines_above: int) -> Iterator[Card]:
    for token in MarkdownIt().use(colon_fence_plugin).parse(text):
        if token.map is None or token.type not in ("fence", "colon_fence"):
            continue
        line = lines_above + token.map[0] + 1
        found = _INFO.fullmatch(token.info.strip())
        if not found:
            if token.type == "colon_fence":  # a box that may hold cards
                yield from _find(token.content, path, line)
            continue
        try:
            pieces = parse_directive_text(_Shape, found[2], token.content, line=line)
        except MarkupError as error:
            raise CardError(f"{found[1]}: {error}", path, line) from error
        for warning in pieces.warnings:
            raise CardError(f"{found[1]} {found[2]!r}: {warning.msg}", path, warning.lineno or line)
        body = Passage("\n".join(pieces.body), line + pieces.body_offset + 1)
        yield parse_card(found[1], pieces.arguments[0], pieces.options, body, path, line)
