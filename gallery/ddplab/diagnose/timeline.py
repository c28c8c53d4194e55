"""What happened in the order of the log: each finding's first line on each rank, and what it says in numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .answers import shortened
from .candidates import Candidate, Kind
from .facts import Facts
from .findings import Findings
from .hits import Hit
from .lines import Time
from .tables import limits, says

_ORDER = ("error", "consequence", "warning", "fact")  # what is kept first where there is too much


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of note; ``seconds`` since the log's first time stamp, None if that is not known."""

    rank: int | None
    line: int
    seconds: float | None
    text: str
    kind: str  # "error", "warning", "consequence", "fact"


def timeline(top: Iterable[Candidate], findings: Findings) -> list[Moment]:
    """At most so many lines of note, by their numbers."""
    made: dict[tuple[str, int, int | None], Moment] = {}
    for kind, hit, text in [*_of_candidates(top), *_of_facts(findings.facts)]:
        line = shortened(re.sub("[ \t]+", " ", text).strip(" \r"), limits.timeline_chars)
        moment = Moment(hit.rank, hit.number, _seconds(hit.time, findings.started), line, kind)
        made.setdefault((hit.source.name, hit.number, hit.rank), moment)
    kept = sorted(made.values(), key=lambda one: (_ORDER.index(one.kind), one.line))[: limits.timeline_kept]
    return sorted(kept, key=lambda one: (one.line, -1 if one.rank is None else one.rank, _ORDER.index(one.kind)))


def _of_candidates(top: Iterable[Candidate]) -> Iterator[tuple[str, Hit, str]]:
    for best in top:
        for one in (best, *best.below):
            kind = "error" if one is best else "consequence"
            if one.kind in (Kind.CONSEQUENCE, Kind.WARNING):
                kind = "consequence" if one.kind == Kind.CONSEQUENCE else "warning"
            for hit in one.hits:
                yield kind, hit, hit.body


def _of_facts(facts: Facts) -> Iterator[tuple[str, Hit, str]]:
    for of_kind in facts.kept.values():
        for fact in of_kind.values():
            yield "fact", fact.hit, fact.hit.body
    for hit in facts.last_errors.values():
        yield "fact", hit, hit.body
    for one in facts.ended:
        if one.hit:
            yield "fact", one.hit, says.exited.format(rank=one.rank, code=one.code)


def _seconds(time: Time | None, started: Time | None) -> float | None:
    if time is None or started is None or time.zoned != started.zoned:
        return None
    return math.floor((time.seconds - started.seconds) * 1000 + 0.5) / 1000
