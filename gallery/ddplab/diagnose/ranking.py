"""From all that was found in a log to a short list: the cause first, what followed from it below it."""

from __future__ import annotations

from collections.abc import Mapping

from .answers import Diagnosis, written
from .candidates import Candidate, Kind, candidates, root_exit
from .entry import Entry
from .findings import Exit, Findings, Hit
from .tables import limits, words


def rank_findings(findings: Findings, known: Mapping[str, Entry]) -> list[Diagnosis]:
    """The diagnoses, best first."""
    root = root_exit(findings)
    found = candidates(findings, known, root)
    _order(found, findings, root)
    _prefer_earlier_exception(found, root)
    _raise_explainers(found)
    found.sort(key=lambda one: (one.kind, one.place))
    several = len(findings.sources) > 1
    return [written(one, several, root, known) for one in _nest(found)]


def _order(found: list[Candidate], findings: Findings, root: Exit | None) -> None:
    """Give each candidate its place in time, and sort its hits so."""
    sources = {id(source): place for place, source in enumerate(findings.sources)}
    hits = [hit for one in found if not one.exit for hit in one.hits]
    times = [hit.time for hit in hits]
    known = all(times) and len({time.zoned for time in times if time}) <= 1
    by_time = False
    if known:
        latest = 0.0
        for hit in sorted(hits, key=lambda hit: (sources[id(hit.source)], hit.number)):
            assert hit.time
            by_time = by_time or hit.time.seconds < latest - limits.skew_s
            latest = max(latest, hit.time.seconds)
    blind = len(findings.sources) > 1 and not known  # files side by side, and no clock

    def moment(hit: Hit) -> tuple[float, int, int, int]:
        time = hit.time.seconds if by_time and hit.time else 0.0
        first = 0 if not blind or root is None or hit.rank == root.rank else 1
        return time, first, sources[id(hit.source)], hit.number

    for one in found:
        one.hits.sort(key=moment)
    ordered = sorted(found, key=lambda one: (*moment(one.hits[0]), -one.weight, one.id))
    for place, one in enumerate(ordered):
        one.place = place


def _prefer_earlier_exception(found: list[Candidate], root: Exit | None) -> None:
    """An exception that ended its rank, above causes that only others report, and later: such as a timeout."""
    causes = [one for one in found if one.kind == Kind.CAUSE]
    first = min((one.place for one in causes), default=-1)
    reporting = {hit.rank for one in causes for hit in one.hits if not hit.text.startswith(tuple(words.scheduler))}
    for one in found:
        if one.kind == Kind.EXCEPTION and one.group and one.place < first:
            ranks = one.ranks - {None} or {None}
            seen = root is not None and root.rank in ranks
            if (one.group.uncaught or seen) and not ranks & reporting:
                one.kind = Kind.FIRST


def _raise_explainers(found: list[Candidate]) -> None:
    """What explains a later finding must not rank below it."""
    for _ in range(4):  # chains are short
        for one in found:
            for other in found:
                if other.id in one.explains and Kind.EXIT <= other.kind < one.kind and one.place < other.place:
                    one.kind = other.kind


def _nest(found: list[Candidate]) -> list[Candidate]:
    """Put what follows below what it follows from."""
    top: list[Candidate] = []
    owner: dict[int, Candidate] = {}
    for one in found:
        parent = next((p for p in found if p is not one and one.id in p.explains and _above(p, one)), None)
        if parent is None and one.kind in (Kind.CONSEQUENCE, Kind.STOPPED) and found[0].kind <= Kind.GENERIC:
            parent = found[0]
        if parent is None:
            top.append(one)
        else:
            owner[id(one)] = parent
    for one in found:
        if id(one) in owner:
            parent, steps = owner[id(one)], 0
            while id(parent) in owner and steps < len(found):
                parent, steps = owner[id(parent)], steps + 1
            parent.below.append(one)
    return top


def _above(parent: Candidate, child: Candidate) -> bool:
    return (parent.kind, parent.place) < (child.kind, child.place)
