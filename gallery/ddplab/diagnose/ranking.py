"""From all that was found in a log to a short list: the cause first, what followed from it below it.

`handbook/_static/diagnose.js` is a port of this file and of engine.py; a test compares the answers of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .entry import Entry
from .reading import Time
from .words import BUILT_IN

EVIDENCE_SHOWN = 3
SKEW_S = 2.0  # lines may stand this much out of order; more means that files were put one after the other

# Classes, best first. A warning ranks low, whatever its entry says, unless it explains what was found.
_FIRST, _CAUSE, _KILLED, _EXCEPTION, _EXIT, _GENERIC, _CONSEQUENCE, _WARNING, _STOPPED = range(9)
SCHEDULER = ("slurmstepd: ", "srun: ")  # no rank says these
_STOPS = ("KeyboardInterrupt", "SignalException", "SystemExit", "CalledProcessError")


@dataclass(frozen=True, slots=True)
class Source:
    """A log file, and the rank that its name tells."""

    name: str
    rank: int | None


@dataclass(slots=True)
class Hit:
    """A line that says something."""

    source: Source
    number: int
    rank: int | None
    text: str
    time: Time | None
    warning: bool
    begin: int = 0  # position in the buffer while it was read


@dataclass(slots=True)
class Found:
    """An entry that fits."""

    ranks: dict[int | None, Hit] = field(default_factory=dict)  # the first hit of each rank
    count: int = 0
    weight: int = 0
    only_warnings: bool = True
    last: tuple[Source, int, int] | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Equal exceptions: same type and message, same place."""

    name: str
    message: str
    where: str
    own: bool  # the place is in the user's code
    ranks: dict[int | None, Hit] = field(default_factory=dict)
    where_hit: Hit | None = None
    count: int = 0
    uncaught: bool = False  # for certain
    thread: bool = False  # it ended threads, and no process
    explained: set[str] = field(default_factory=set)  # ids of entries that fit the exception's text
    before: Group | None = None  # this one was raised while that one was handled
    after: Group | None = None


@dataclass(slots=True)
class Exit:
    """How torchrun says that a process ended."""

    rank: int | None
    code: int | None
    hit: Hit | None = None
    time: Time | None = None
    code_hit: Hit | None = None


@dataclass(slots=True)
class Findings:
    """All that is kept of the logs."""

    sources: list[Source] = field(default_factory=list)
    found: dict[str, Found] = field(default_factory=dict)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)  # root causes in torchrun's summaries
    agent_exits: list[Exit] = field(default_factory=list)  # first failures that an agent logged; ranks are local


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
    """One answer. Texts are Markdown; ``page`` is relative to the book."""

    id: str
    title: str
    role: str
    rank: int | None  # that failed first with it
    evidence: list[Evidence]
    why: str
    cause: str
    fix: str
    page: str
    collect: str = ""
    count: int = 1
    ranks: list[int] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)


@dataclass(slots=True)
class _Candidate:
    id: str
    role: str
    kind: int
    weight: int
    hits: list[Hit]  # first of each rank
    count: int
    explains: tuple[str, ...] = ()
    entry: Entry | None = None
    group: Group | None = None
    exit: Exit | None = None
    place: int = 0
    below: list[_Candidate] = field(default_factory=list)


def page_of(entry_id: str) -> str:
    """Where the book tells about an entry."""
    return f"errors.html#error-{entry_id}"


def rank_findings(findings: Findings, known: Mapping[str, Entry]) -> list[Diagnosis]:
    """The diagnoses, best first."""
    root = _root(findings)
    found = _entries_found(findings, known)
    found += _exceptions(findings, known)
    ended = _ended(findings, root, found)
    if ended:
        found.append(ended)
    _order(found, findings, root)
    _prefer_earlier_exception(found, root)
    _raise_explainers(found)
    found.sort(key=lambda one: (one.kind, one.place))
    return [_written(one, findings, root, known) for one in _nest(found)]


def _root(findings: Findings) -> Exit | None:
    """The first failure by torchrun's account; several agents may each have theirs."""
    best: Exit | None = None
    for one in findings.exits:
        if (
            best is None
            or (one.time and best.time and one.time.zoned == best.time.zoned and one.time.seconds < best.time.seconds)
            or (best.code in (-15, 143) and one.code not in (-15, 143))
        ):
            best = one
    return best


def _entries_found(findings: Findings, known: Mapping[str, Entry]) -> list[_Candidate]:
    made = []
    for entry_id in sorted(findings.found):
        found, entry = findings.found[entry_id], known[entry_id]
        kind = {"cause": _CAUSE, "generic": _GENERIC, "consequence": _CONSEQUENCE}[entry.role]
        explains = any(other in findings.found for other in entry.explains)
        if found.only_warnings and kind != _CONSEQUENCE and not explains:
            kind = _WARNING
        hits = list(found.ranks.values())
        made.append(
            _Candidate(entry_id, entry.role, kind, found.weight, hits, found.count, entry.explains, entry=entry)
        )
    return made


def _exceptions(findings: Findings, known: Mapping[str, Entry]) -> list[_Candidate]:
    """Exceptions that no entry explains; of a chain the last, unless an entry tells the cause of one of it."""
    made = []
    for group in findings.groups.values():
        if group.explained:
            continue
        chain, one = [group], group.before
        while one and one not in chain and len(chain) < 8:
            chain.append(one)
            one = one.before
        one = group.after
        while one and one not in chain and len(chain) < 16:
            chain.append(one)
            one = one.after
        if any(known[entry_id].role == "cause" for other in chain for entry_id in other.explained):
            continue
        if group.after and not group.after.explained and group.after is not group:
            continue
        name, kind = ("stopped", _STOPPED) if group.name in _STOPS else ("python-exception", _EXCEPTION)
        if group.thread and kind == _EXCEPTION:
            kind = _GENERIC
        made.append(_Candidate(name, "generic", kind, 0, list(group.ranks.values()), group.count, group=group))
    return made


def _ended(findings: Findings, root: Exit | None, found: list[_Candidate]) -> _Candidate | None:
    """How the first failing process ended, if nothing in the log tells why."""
    one = root or next((e for e in findings.agent_exits if e.code not in (-15, 143)), None)
    if one is None or one.code is None or one.code == 0 or one.hit is None:
        return None
    number = -one.code if one.code < 0 else one.code - 128 if one.code > 128 else 0
    sudden = number in (9, 11, 7, 4)
    for other in found:
        if other.kind == _CAUSE:
            ranks = {hit.rank for hit in other.hits}
            if not sudden or root is None or None in ranks or root.rank in ranks:
                return None
        elif other.kind in (_EXCEPTION, _GENERIC):
            ranks = {hit.rank for hit in other.hits}
            if not sudden and (root is None or None in ranks or root.rank in ranks):
                return None
            if sudden and (root is None or root.rank in ranks):
                return None
    names = {9: "exit-killed", 11: "exit-segfault", 6: "exit-abort", 7: "exit-bus-error", 15: "exit-terminated"}
    name = names.get(number, f"exit-signal-{number}" if 0 < number < 65 else "exit-code")
    if any(other.id == name for other in found):
        return None  # an entry tells it from another line
    kind = _KILLED if sudden else _EXIT
    return _Candidate(name, "generic", kind, 0, [one.code_hit or one.hit], 1, exit=one)


def _order(found: list[_Candidate], findings: Findings, root: Exit | None) -> None:
    """Give each candidate its place in time, and sort its hits so."""
    sources = {id(source): place for place, source in enumerate(findings.sources)}
    hits = [hit for one in found if not one.exit for hit in one.hits]
    times = [hit.time for hit in hits]
    known = all(times) and len({time.zoned for time in times if time}) <= 1
    by_line = sorted(hits, key=lambda hit: (sources[id(hit.source)], hit.number))
    by_time = False
    if known:
        latest = 0.0
        for hit in by_line:
            assert hit.time
            by_time = by_time or hit.time.seconds < latest - SKEW_S
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


def _prefer_earlier_exception(found: list[_Candidate], root: Exit | None) -> None:
    """An exception that ended its rank, above causes that only others tell of, and later: such as a timeout."""
    causes = [one for one in found if one.kind == _CAUSE]
    first = min((one.place for one in causes), default=-1)
    told = {hit.rank for one in causes for hit in one.hits if not hit.text.startswith(SCHEDULER)}
    for one in found:
        if one.kind == _EXCEPTION and one.group and one.place < first:
            ranks = {hit.rank for hit in one.hits} - {None} or {None}
            seen = root is not None and root.rank in ranks
            if (one.group.uncaught or seen) and not ranks & told:
                one.kind = _FIRST


def _raise_explainers(found: list[_Candidate]) -> None:
    """What explains a later finding must not rank below it."""
    for _ in range(4):  # chains are short
        for one in found:
            for other in found:
                if other.id in one.explains and _EXIT <= other.kind < one.kind and one.place < other.place:
                    one.kind = other.kind


def _nest(found: list[_Candidate]) -> list[_Candidate]:
    """Put what follows below what it follows from."""
    top: list[_Candidate] = []
    owner: dict[int, _Candidate] = {}
    for one in found:
        parent = next((p for p in found if p is not one and one.id in p.explains and _above(p, one)), None)
        if parent is None and one.kind in (_CONSEQUENCE, _STOPPED) and found[0].kind <= _GENERIC:
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


def _above(parent: _Candidate, child: _Candidate) -> bool:
    return (parent.kind, parent.place) < (child.kind, child.place)


# -- words --------------------------------------------------------------------------------------------


def _written(one: _Candidate, findings: Findings, root: Exit | None, known: Mapping[str, Entry]) -> Diagnosis:
    several = len(findings.sources) > 1
    evidence = [_evidence(hit, several) for hit in one.hits[:EVIDENCE_SHOWN]]
    ranks = sorted({hit.rank for hit in one.hits if hit.rank is not None})
    rank = one.hits[0].rank if one.hits[0].rank is not None else (ranks[0] if ranks else None)
    if one.exit:
        rank = one.exit.rank
        ranks = [] if rank is None else [rank]
    elif rank is None and root and one.kind <= _GENERIC:
        rank = root.rank
    entry, group = one.entry or known.get(one.id), one.group
    if group and group.where_hit and group.where_hit.number != one.hits[0].number:
        evidence.insert(1, _evidence(group.where_hit, several))
        evidence = evidence[:EVIDENCE_SHOWN]
    page = page_of(one.id) if entry else "diagnose.html"
    collect = ""
    if one.entry:
        title, cause, fix, collect = one.entry.title, one.entry.cause, one.entry.fix, one.entry.collect
    elif group:
        title, cause, fix, collect = _exception_words(group)
    else:
        assert one.exit
        title, cause, fix, collect = _exit_words(one.id, one.exit, entry)
    followed = [
        Followed(
            f.id,
            f.entry.title if f.entry else f"{f.group.name}" if f.group else f.id,
            f.count,
            _evidence(f.hits[0], several),
        )
        for f in one.below
    ]
    why = _why(one, rank, ranks, root)
    return Diagnosis(
        one.id, title, one.role, rank, evidence, why, cause, fix, page, collect, one.count, ranks, followed
    )


def _evidence(hit: Hit, several: bool) -> Evidence:
    return Evidence(hit.number, hit.rank, hit.text.strip(), hit.source.name if several else "")


def ranks_text(ranks: list[int]) -> str:
    """Such as ``rank 3`` or ``ranks 0–3, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{a}" if a == b else f"{a}–{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:6]]
    more = ", …" if len(runs) > 6 else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}{more}"


def _why(one: _Candidate, rank: int | None, ranks: list[int], root: Exit | None) -> str:
    number = one.hits[0].number
    if one.exit:
        return f"torchrun names it as the first failure (line {number}), and nothing else in the log tells why."
    times = "once" if one.count == 1 else f"{one.count} times"
    said = f"Seen {times}"
    if len(ranks) > 1:
        said += f", by {ranks_text(ranks)}; first by rank {rank} in line {number}."
    elif ranks:
        said += f", by {ranks_text(ranks)} alone, first in line {number}."
    else:
        said += f", first in line {number}; the lines do not say which rank."
    if root and root.rank is not None:
        if root.rank in ranks:
            said += f" torchrun, too, saw rank {root.rank} fail first."
        elif not ranks:
            said += f" torchrun saw rank {root.rank} fail first."
        elif one.kind <= _GENERIC:
            said += f" torchrun saw rank {root.rank} fail first: look at its output, too."
    return said


def _exception_words(group: Group) -> tuple[str, str, str, str]:
    message = group.message.strip()
    name = f"{group.name}: {shortened(message, 100)}" if message else group.name
    place = f" at `{group.where}`" if group.where else ""
    cause = f" It was raised while `{group.before.name}` was handled." if group.before else ""
    title, text, fix, collect = BUILT_IN["stopped" if group.name in _STOPS else "python-exception"]
    text = text.replace("{type}", group.name).replace("{place}", place)
    return title.replace("{name}", name), text + cause, fix, collect


def shortened(text: str, most: int) -> str:
    """At most so many characters, an ellipsis included."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _exit_words(name: str, one: Exit, entry: Entry | None) -> tuple[str, str, str, str]:
    who = "A process" if one.rank is None else f"Rank {one.rank}"
    title, cause, fix, collect = BUILT_IN.get(name) or BUILT_IN["exit-signal"]
    if entry:  # the title names the rank; the rest is as in the index
        cause, fix, collect = entry.cause, entry.fix, entry.collect
    number = name.removeprefix("exit-signal-")
    return title.replace("{who}", who).replace("{code}", str(one.code)).replace("{number}", number), cause, fix, collect
