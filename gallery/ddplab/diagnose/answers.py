"""A candidate as an answer: evidence, why it was chosen, cause, fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..wording import ranks_text
from .candidates import Candidate, Kind
from .entry import Entry
from .findings import Group, Last
from .hits import Exit, Hit
from .tables import answers, errors, general, limits, signals, why


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log; ``source`` is the file if there are several."""

    line_number: int
    rank: int | None
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Followed:
    """What was found and follows from a diagnosis."""

    id: str
    title: str
    count: int
    evidence: Evidence


@dataclass(slots=True)
class Diagnosis:
    """One answer. Texts are Markdown.

    Attributes:
        id: of the entry of the error index, such as ``"gloo-timeout"``.
        title: the entry's title.
        role: ``"cause"``, ``"consequence"`` or ``"generic"``.
        rank: the rank that failed first with it; None if the log does not name one.
        evidence: the lines that it was found in.
        why: why it was found, and on which ranks.
        cause: what led to it.
        fix: what to do.
        page: where it is explained, relative to the book.
        collect: what would make sure of it; may be empty.
        count: how often it was seen.
        ranks: all ranks that it was seen on.
        followed: what else was found, and follows from it.
    """

    id: str
    title: str
    role: str
    rank: int | None
    evidence: list[Evidence]
    why: str
    cause: str
    fix: str
    page: str
    collect: str = ""
    count: int = 1
    ranks: list[int] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)


def written(one: Candidate, several: bool, root: Exit | None, known: Mapping[str, Entry]) -> Diagnosis:
    """The candidate as an answer; ``several`` files were read, ``root`` is the first failure by torchrun's account."""
    evidence = [_evidence(hit, several) for hit in one.hits[: limits.evidence_shown]]
    ranks = sorted(rank for rank in one.ranks if rank is not None)
    rank = one.hits[0].rank if one.hits[0].rank is not None else (ranks[0] if ranks else None)
    if one.exit:
        rank = one.exit.rank
        ranks = [] if rank is None else [rank]
    elif rank is None and root and one.kind <= Kind.GENERIC:
        rank = root.rank
    entry = one.entry or known.get(one.id)
    if one.group and one.group.where_hit and one.group.where_hit.number != one.hits[0].number:
        evidence.insert(1, _evidence(one.group.where_hit, several))
    text = {"title": "", "cause": "", "fix": "", "collect": ""}
    if one.group:
        text = _of_exception(one.id, one.group)
    elif one.exit:
        text = _of_exit(one.id, one.exit)
    elif one.last:
        text = _of_last(one.id, one.last)
    if entry:
        text |= {key: getattr(entry, key) for key in text if key != "title" or not one.exit}  # that names the rank
    return Diagnosis(
        id=one.id,
        role=one.role,
        rank=rank,
        evidence=evidence[: limits.evidence_shown],
        why=_why(one, rank, ranks, root) + (why.last if one.last else ""),
        page=page_of(one.id) if entry else "repair/diagnose.html",
        count=one.count,
        ranks=ranks,
        followed=[Followed(f.id, _short_title(f), f.count, _evidence(f.hits[0], several)) for f in one.below],
        **text,
    )


def page_of(entry_id: str) -> str:
    """Where an entry is in the book."""
    return f"repair/errors/{entry_id}.html"


def shortened(text: str, most: int) -> str:
    """At most so many characters, an ellipsis included."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _evidence(hit: Hit, several: bool) -> Evidence:
    return Evidence(hit.number, hit.rank, hit.text.strip(), hit.source.name if several else "")


def _short_title(one: Candidate) -> str:
    return one.entry.title if one.entry else one.group.name if one.group else one.id


def _why(one: Candidate, rank: int | None, ranks: list[int], root: Exit | None) -> str:
    if one.exit:
        text = why.exit
    else:
        text = why.once if one.count == 1 else why.often
        if ranks and None in one.ranks:
            text += why.some_lines
        else:
            text += why.several_ranks if len(ranks) > 1 else why.one_rank if ranks else why.no_rank
        if root and root.rank is not None:
            if root.rank in ranks:
                text += why.root_too
            elif not ranks:
                text += why.root
            elif one.kind <= Kind.GENERIC:
                text += why.other_root
    by, line = ranks_text(ranks, limits.runs_shown), one.hits[0].number
    return str(text).format(count=one.count, ranks=by, rank=rank, line=line, root=root and root.rank)


def _of_exception(name: str, group: Group) -> dict[str, str]:
    message = group.message.strip()
    title = f"{group.name}: {shortened(message, 100)}" if message else group.name
    place = why.place.format(where=group.where) if group.where else ""
    text = {key: one.format(name=title, type=group.name, place=place) for key, one in answers[name].items()}
    text["cause"] += f" {general[group.name]}" if group.name in general else ""
    if group.before:
        text["cause"] += why.while_handling.format(before=group.before.name)
    return text


def _of_last(name: str, last: Last) -> dict[str, str]:
    if last.name:
        return _of_exception(name, Group(last.name, last.message, ""))
    line = last.hit.text.strip()
    what, todo = next((e[1:3] for e in errors if e[0].search(last.message)), errors[-1][1:3])
    return {k: one.format(name=shortened(line, 100), what=what, next=todo) for k, one in answers[name].items()}


def _of_exit(name: str, one: Exit) -> dict[str, str]:
    text = answers.get(name, answers["exit-signal"])
    number = name.removeprefix("exit-signal-")
    signal = next((signal for signal in signals.values() if signal.id == name), None)
    who = "A process" if one.rank is None else f"Rank {one.rank}"
    title = signal.title if signal else text["title"]
    return text | {"title": title.format(who=who, code=one.code, number=number)}
