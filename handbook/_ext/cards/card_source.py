"""Interview cards and quizzes as they are written in the chapters.

A card is one directive; ``+++ name`` lines divide its body into parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from docutils.parsers.rst import directives

LEVELS = ("core", "deep", "staff")
OPTIONS: dict[str, Any] = dict.fromkeys(("question", "level", "evidence"), directives.unchanged)
OPTIONS["ordered"] = directives.flag
_PARTS = {"interview": ("weak", "flags", "depth", "follow-ups"), "quiz": ("why",)}
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_OPTION = re.compile(r"[-*] \[([ xX])\] +(.+)")
_EVIDENCE = re.compile(r"(lab|claim|section|cite):(\S+)")
_SHOWS = {"lab", "claim", "cite"}  # a section says it again


class CardError(ValueError):
    """A card is not as it should be; the message says what is wrong, ``line`` where."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Passage:
    """Source text of a part of a card, and the line of the file where it starts."""

    text: str
    line: int


@dataclass(frozen=True)
class Option:
    """One option of a quiz. Texts are MyST source."""

    text: str
    right: bool
    why: str  # a wrong option: what is wrong with it
    line: int


@dataclass(frozen=True)
class Card:
    """An interview card or a quiz. Texts are MyST source."""

    kind: str  # "interview" or "quiz"
    id: str
    question: str
    level: str  # one of LEVELS; a quiz may have none: ""
    evidence: tuple[tuple[str, str], ...]  # such as ("lab", "bucket-xray")
    parts: dict[str, Passage]  # interview: "answer" and, if there are, those in _PARTS; quiz: "why"
    options: tuple[Option, ...]  # of a quiz
    path: Path
    line: int

    @property
    def right_letters(self) -> str:
        """The letters of a quiz's right options: ``"B"`` or ``"A, C"``."""
        return ", ".join(letter(i) for i, option in enumerate(self.options) if option.right)

    @property
    def weak(self) -> str:
        """An answer that sounds right and is not enough; "" if the card has none."""
        return self.parts["weak"].text.strip() if "weak" in self.parts else ""

    @property
    def flags(self) -> list[str]:
        """What makes an interviewer doubt, one remark each."""
        return list(_items(self.parts["flags"].text)) if "flags" in self.parts else []


def letter(place: int) -> str:
    """0 is A."""
    return chr(ord("A") + place)


def parse_card(kind: str, name: str, options: dict[str, Any], body: Passage, path: Path, line: int) -> Card:
    """Make a card from the pieces of its directive.

    Raises:
        CardError: a piece is missing or wrong.
    """

    def wrong(reason: str, at: int = line) -> CardError:
        return CardError(f"{kind} {name!r} {reason}", at)

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
            raise wrong(f"has evidence {word!r}; write lab:ID, claim:ID, cite:KEY or section:LABEL")
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
        if not _SHOWS.intersection(word[1] for word in evidence):
            raise wrong("has nothing that shows it; add a lab:ID, claim:ID or cite:KEY to :evidence:")
        if "flags" in parts and not re.match(r"\s*- ", parts["flags"].text):
            raise wrong("has '+++ flags' that are not a list; write '- ' before each", parts["flags"].line)
    else:
        choices = tuple(_choices(head, wrong))
        if "ordered" not in options:
            choices = _shuffled(choices, name)
        if len(choices) < 2:
            raise wrong("needs at least two options, such as '- [x] around both'")
        if not any(choice.right for choice in choices):
            raise wrong("has no right option; mark it with [x]")
        if "why" not in parts:
            raise wrong("does not say why; add '+++ why' and the reason")
        for choice in sorted(choices, key=lambda choice: choice.line):
            if not choice.right and not choice.why:
                says = f"does not say why {choice.text!r} is wrong; add the reason below it, as '  : …'"
                raise wrong(says, choice.line)
    pairs = tuple((word[1], word[2]) for word in evidence if not isinstance(word, str))
    return Card(kind, name, question, level, pairs, parts, choices, path, line)


def _shuffled(choices: tuple[Option, ...], name: str) -> tuple[Option, ...]:
    """The same options in an order that follows from the id alone, so every form of the book and every build agree."""
    return tuple(sorted(choices, key=lambda choice: sha256(f"{name} {choice.text}".encode()).digest()))


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


def _items(text: str) -> Iterator[str]:
    """The items of a list, each in one line."""
    for item in re.split(r"^- ", text.strip(), flags=re.M)[1:]:
        yield " ".join(item.split())


def _choices(head: Passage, wrong: Any) -> Iterator[Option]:
    option = None
    for number, text in enumerate(head.text.splitlines(), head.line):
        line = text.strip()
        if found := _OPTION.fullmatch(line):
            if option:
                yield option
            option = Option(found[2], found[1] != " ", "", number)
        elif option and text.startswith(" ") and line.startswith(": "):
            option = replace(option, why=line[2:].strip())
        elif option and text.startswith(" ") and line:
            if option.why:
                option = replace(option, why=f"{option.why} {line}")
            else:
                option = replace(option, text=f"{option.text} {line}")
        elif line:
            raise wrong(f"has a line that is not an option: {line!r}; write - [ ] or - [x] before it", number)
    if option:
        yield option
