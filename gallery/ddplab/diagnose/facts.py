"""What a log says in numbers: who waits in which collective, who came, which port."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..wording import ranks_text
from .tables import facts as known
from .tables import limits, patterns, says, words

if TYPE_CHECKING:
    from .hits import Exit, Hit
    from .lines import Line


@dataclass(frozen=True, slots=True)
class Fact:
    """A line with numbers, as text."""

    hit: Hit
    values: tuple[str, ...]
    group: str  # the process group, as torch numbers them


@dataclass(slots=True)
class Facts:
    """The first of each kind, process group and rank."""

    kept: dict[str, dict[tuple[str, int | None, str], Fact]] = field(default_factory=dict)
    last_errors: dict[int | None, Hit] = field(default_factory=dict)  # what NCCL gives as its last error
    ended: list[Exit] = field(default_factory=list)  # all processes in torchrun's summary

    def note(self, index: int, line: Line, hit_of: Callable[[int | None], Hit], rank: int | None) -> Hit | None:
        """Keep what a line says; the hit if it is new."""
        kind, _, pattern = known[index]
        found: re.Match[str] | None = pattern.search(line.text)
        if not found:
            return None
        group = patterns.process_group.search(line.text)
        if kind in ("init", "unused"):
            rank = int(found[1])
        key = (group[1] if group else "", rank, found[3] if kind == "init" else "")
        of_kind = self.kept.setdefault(kind, {})
        if key in of_kind or len(of_kind) >= limits.ranks_kept:
            return None
        of_kind[key] = Fact(hit_of(rank), tuple(one or "" for one in found.groups()), key[0])
        return of_kind[key].hit

    def all(self, kind: str) -> list[Fact]:
        """All of a kind, in the order of the log."""
        return list(self.kept.get(kind, {}).values())

    def by_rank(self, kind: str) -> dict[int, Fact]:
        """Of the process group of which most ranks say it; numbers of several groups do not compare."""
        groups: dict[str, dict[int, Fact]] = {}
        for fact in self.all(kind):
            if fact.hit.rank is not None:
                groups.setdefault(fact.group, {}).setdefault(fact.hit.rank, fact)
        return max(groups.values(), key=len, default={})

    def world(self) -> int:
        """How many ranks there are, as far as the log says; 0 if it does not."""
        said = [int(one.values[1]) for kind in ("came", "init") for one in self.all(kind)]
        said += [int(one.values[0]) for one in self.all("counted")]
        return max(said, default=0)

    def unfinished(self) -> list[int]:
        """Ranks on which NCCL's initialization began and did not end."""
        began, ended = (
            {int(one.values[0]) for one in self.all("init") if one.values[2] == word} for word in ("START", "COMPLETE")
        )
        return sorted(began - ended)


def what_of(fact: Fact) -> str:
    """The collective of a time-out: its operation, and its size where all ranks have the same."""
    _, operation, elements, *_ = fact.values
    return f"{operation} of {elements} elements" if elements and operation in words.same_sizes else operation


def number_of(fact: Fact) -> int | None:
    """Its sequence number; old torch gives none."""
    return int(fact.values[0]) if fact.values[0] else None


def sentences(facts: Facts) -> list[str]:
    """What the numbers say, for people."""
    said: list[str] = []
    waits = facts.by_rank("timeout")
    places: dict[str, list[int]] = {}
    for rank in sorted(waits):
        number = number_of(waits[rank])
        places.setdefault(what_of(waits[rank]) + ("" if number is None else f" #{number}"), []).append(rank)
    who = {place: ranks_text(ranks, limits.runs_shown) for place, ranks in places.items()}
    if len(who) == 1:
        what, ranks = next(iter(who.items()))
        said.append(says.timeouts.format(who=ranks[0].upper() + ranks[1:], what=what))
    elif who:
        said.append(says.diverged.format(each="; ".join(f"{ranks}: {what}" for what, ranks in list(who.items())[:4])))
    times = [int(one.values[4]) for one in facts.all("timeout")]
    if times and 0 < min(times) < limits.short_timeout_ms:
        said.append(says.short.format(seconds=min(times) // 1000))
    for kind, came, expected in (("came", 0, 1), ("counted", 1, 0)):
        for one in facts.all(kind)[-1:]:
            if one.values[came] != one.values[expected]:
                said.append(says.came.format(came=one.values[came], expected=one.values[expected]))
    for one in facts.all("unused")[:4]:
        said.append(says.unused.format(rank=one.values[0], indices=", ".join(one.values[1].split()[:20])))
    for one in facts.all("port")[:1]:
        said.append(says.port.format(port=one.values[0]))
    for one in facts.all("interface")[:1]:
        said.append(says.interface.format(interface=one.values[0]))
    return said
