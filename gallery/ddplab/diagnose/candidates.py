"""What may have failed: entries that fit, exceptions that no entry explains, and how the first process exited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from .entry import Entry
from .findings import Findings, Group, Last
from .hits import Exit, Hit
from .tables import signals, words

_TERMINATED = (-15, 143)  # exit codes of a process that SIGTERM ended: somebody else failed before
_SIGNALS = 64


class Kind(IntEnum):
    """Classes of answers, best first. A warning ranks low, whatever its entry says, unless it explains a finding."""

    FIRST = 0
    CAUSE = 1
    KILLED = 2
    EXCEPTION = 3
    EXIT = 4
    GENERIC = 5
    CONSEQUENCE = 6
    WARNING = 7
    STOPPED = 8


@dataclass(slots=True)
class Candidate:
    """One possible answer."""

    id: str
    role: str
    kind: Kind
    hits: list[Hit]  # first of each rank
    count: int
    weight: int = 0
    explains: tuple[str, ...] = ()
    entry: Entry | None = None
    group: Group | None = None
    exit: Exit | None = None
    last: Last | None = None
    place: int = 0  # in time
    below: list[Candidate] = field(default_factory=list)  # what follows from it

    @property
    def ranks(self) -> set[int | None]:
        """The ranks that its lines name; None for lines that name no rank."""
        return {hit.rank for hit in self.hits}


def candidates(findings: Findings, known: Mapping[str, Entry], root: Exit | None) -> list[Candidate]:
    """All that may be an answer; ``root`` is the first failure by torchrun's account."""
    found = _entries_found(findings, known) + _exceptions(findings, known)
    exited = _first_exit(findings, root, found)
    found += [exited] if exited else []
    if all(one.kind == Kind.WARNING for one in found):
        found += _last_lines(findings, found)
    return found


def root_exit(findings: Findings) -> Exit | None:
    """The first failure by torchrun's account; several agents may each have theirs."""
    best: Exit | None = None
    for one in findings.exits:
        if (
            best is None
            or (one.time and best.time and one.time.zoned == best.time.zoned and one.time.seconds < best.time.seconds)
            or (best.code in _TERMINATED and one.code not in _TERMINATED)
        ):
            best = one
    return best


def _entries_found(findings: Findings, known: Mapping[str, Entry]) -> list[Candidate]:
    made = []
    for entry_id in sorted(findings.found):
        found, entry = findings.found[entry_id], known[entry_id]
        kind = Kind[entry.role.upper()]
        explains = any(other in findings.found for other in entry.explains)
        if found.only_warnings and kind != Kind.CONSEQUENCE and not explains:
            kind = Kind.WARNING
        hits = list(found.ranks.values())
        made.append(Candidate(entry_id, entry.role, kind, hits, found.count, found.weight, entry.explains, entry))
    return made


def _exceptions(findings: Findings, known: Mapping[str, Entry]) -> list[Candidate]:
    """Exceptions that no entry explains; of a chain the last one, unless an entry gives the cause of one of them."""
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
        name, kind = "python-exception", Kind.GENERIC if group.thread else Kind.EXCEPTION
        if group.name in words.stops:
            name, kind = "stopped", Kind.STOPPED
        made.append(Candidate(name, "generic", kind, list(group.ranks.values()), group.count, group=group))
    return made


def _last_lines(findings: Findings, found: list[Candidate]) -> list[Candidate]:
    """The last line that looks like an error, of the first file that has one, when nothing better is known.

    What a warning says of a cause is better, unless the line is an exception; a line that an entry fits is known.
    """
    known = {(hit.source.name, hit.number) for one in found for hit in one.hits} | findings.dismissed
    warned = any(one.role == "cause" for one in found)
    for one in findings.last:
        if (one.hit.source.name, one.hit.number) not in known:
            name = "python-exception" if one.name else "last-error"
            kind = Kind.WARNING if warned and not one.name else Kind.GENERIC
            return [Candidate(name, "generic", kind, [one.hit], 1, last=one)]
    return []


def _first_exit(findings: Findings, root: Exit | None, found: list[Candidate]) -> Candidate | None:
    """How the first failing process exited, if nothing in the log gives the reason."""
    one = root or next((e for e in findings.agent_exits if e.code not in _TERMINATED), None)
    if one is None or one.code is None or one.code == 0 or one.hit is None:
        return None
    number = -one.code if one.code < 0 else one.code - 128 if one.code > 128 else 0
    signal = signals.get(number)
    sudden = signal is not None and signal.sudden
    for other in found:
        of_root = root is None or root.rank in other.ranks
        if other.kind == Kind.CAUSE:
            if not sudden or of_root or None in other.ranks:
                return None
        elif other.kind in (Kind.EXCEPTION, Kind.GENERIC) and (of_root or (not sudden and None in other.ranks)):
            return None
    name = signal.id if signal else f"exit-signal-{number}" if 0 < number <= _SIGNALS else "exit-code"
    if any(other.id == name for other in found):
        return None  # an entry has found it in another line
    return Candidate(name, "generic", Kind.KILLED if sudden else Kind.EXIT, [one.code_hit or one.hit], 1, exit=one)
