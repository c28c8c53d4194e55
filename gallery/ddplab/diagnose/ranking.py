"""From all that was found in a log to a short list: the cause first, what followed from it below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .answers import Diagnosis, shortened, written
from .candidates import Candidate, Kind, candidates, root_exit
from .entry import Entry
from .facts import sentences
from .findings import Findings
from .hits import Exit, Hit
from .nothing import Nothing, nothing_found
from .suspect import Suspect, suspect
from .tables import limits, says, words
from .timeline import Moment, timeline


@dataclass(slots=True)
class Answer:
    """All that is said of a log.

    Attributes:
        diagnoses: best first.
        suspect: the rank to look at first.
        timeline: lines of note, in the order of the log.
        nothing: what the log looks like, if there is no diagnosis but harmless notices.
    """

    diagnoses: list[Diagnosis]
    suspect: Suspect | None
    timeline: list[Moment]
    nothing: Nothing | None


def answer_to(runs: Sequence[Findings], known: Mapping[str, Entry]) -> Answer:
    """The answer to a log of one or more runs: to the last that failed."""
    each = [(one, _ranked(one, known)) for one in reversed(runs)]
    found, top = next((pair for pair in each if any(one.kind <= Kind.GENERIC for one in pair[1])), each[0])
    root = root_exit(found)
    several = len(found.sources) > 1
    diagnoses = [written(one, several, root, known) for one in top]
    if diagnoses:
        diagnoses[0].why = " ".join([diagnoses[0].why, *_said(top[0], found, found is not runs[0])])
    fails = any(one.role != "warning" for one in top)
    nothing = None if fails else nothing_found(found)
    return Answer(diagnoses, suspect(top[0] if fails else None, found.facts, root), timeline(top, found), nothing)


def _said(best: Candidate, found: Findings, later: bool) -> list[str]:
    """What the numbers add to the best answer, and that there is a run above if it is of a ``later`` one."""
    said = sentences(found.facts) if best.kind == Kind.CONSEQUENCE or best.entry else []
    if best.id.startswith("nccl-") and best.role == "generic":
        said += [
            says.last_error.format(text=shortened(h.text.strip(), 200))
            for h in list(found.facts.last_errors.values())[:1]
        ]
    return said + ([says.earlier.format(line=found.first_line)] if later else [])


def _ranked(findings: Findings, known: Mapping[str, Entry]) -> list[Candidate]:
    """The candidates, best first, each with what follows from it below it."""
    root = root_exit(findings)
    found = candidates(findings, known, root)
    _order(found, findings, root)
    _prefer_last_error(found, findings)
    _prefer_earlier_exception(found, root)
    _raise_explainers(found)
    found.sort(key=lambda one: (one.kind, one.role == "warning", one.place))
    return _nest(found)


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
        one.place = 2 * place
    for one in found:  # a scheduler reports at the end why a process was killed before
        if all(hit.text.startswith(tuple(words.scheduler)) for hit in one.hits):
            _put_before(one, [other for other in found if other.id in one.explains])


def _put_before(one: Candidate, others: list[Candidate]) -> None:
    """Move it in time, if need be; places are two apart, so that there is one between."""
    one.place = min([one.place, *(other.place - 1 for other in others)])


def _prefer_last_error(found: list[Candidate], findings: Findings) -> None:
    """What NCCL gives as its last error explains its generic message."""
    lines = {(hit.source.name, hit.number) for hit in findings.facts.last_errors.values()}
    for one in found:
        if one.entry and any((hit.source.name, hit.number) in lines for hit in one.hits):
            generic = [o for o in found if o.role == "generic" and o.id.startswith("nccl-") and o is not one]
            one.explains += tuple(o.id for o in generic)
            _put_before(one, generic)


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
