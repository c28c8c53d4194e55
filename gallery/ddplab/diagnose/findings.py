"""All that is kept of the logs while they are read; its size does not grow with theirs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .facts import Facts
from .hits import Exit, Hit, Source
from .lines import Time
from .tables import limits


@dataclass(slots=True)
class Found:
    """An entry that fits."""

    ranks: dict[int | None, Hit] = field(default_factory=dict)  # the first hit of each rank
    count: int = 0
    weight: int = 0
    only_warnings: bool = True
    last: tuple[Source, int, int] | None = None

    def is_repeated(self, hit: Hit, weight: int) -> bool:
        """Count the hit; a second needle of the same entry on the same line does not count."""
        self.weight = max(self.weight, weight)
        place = (hit.source, hit.number, hit.begin)
        if self.last == place:
            return True
        self.last = place
        self.count += 1
        self.only_warnings = self.only_warnings and hit.warning
        return False


@dataclass(slots=True, eq=False)
class Group:
    """Equal exceptions: same type and message, same place."""

    name: str
    message: str
    where: str
    ranks: dict[int | None, Hit] = field(default_factory=dict)
    where_hit: Hit | None = None
    count: int = 0
    uncaught: bool = False  # for certain
    thread: bool = True  # it ended threads, and no process
    explained: set[str] = field(default_factory=set)  # ids of entries that fit the exception's text
    before: Group | None = None  # this one was raised while that one was handled
    after: Group | None = None


@dataclass(slots=True)
class Last:
    """The last line of a file that looks like an error."""

    hit: Hit
    name: str  # of the exception; empty if it is none
    message: str


@dataclass(slots=True)
class Findings:
    """Entries that fit, exceptions, exits and numbers of a run."""

    sources: list[Source] = field(default_factory=list)
    found: dict[str, Found] = field(default_factory=dict)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)  # root causes in torchrun's summaries
    agent_exits: list[Exit] = field(default_factory=list)  # first failures that an agent logged; ranks are local
    facts: Facts = field(default_factory=Facts)
    last: list[Last] = field(default_factory=list)  # of each file
    dismissed: set[tuple[str, int]] = field(default_factory=set)  # exceptions that are no failure, by source and line
    started: Time | None = None  # the log's first time stamp
    first_line: int = 1  # of the run
    written: bool = False  # there is more than blanks
    tails: list[list[str]] = field(default_factory=list)  # the last lines of each file, the last one first

    @property
    def over(self) -> bool:
        """Whether the run has failed, and what begins after that is another one."""
        return bool(self.exits or self.agent_exits or any(group.uncaught for group in self.groups.values()))

    def group_of(self, name: str, message: str, where: str) -> Group | None:
        """The group of an exception; None if there are too many already."""
        key = (name, re.sub("[0-9]+", "#", message[:120]), where)
        if key not in self.groups and len(self.groups) < limits.groups_kept:
            self.groups[key] = Group(name, message[: limits.text_kept], where)
        return self.groups.get(key)


def add_first(ranks: dict[int | None, Hit], hit: Hit) -> bool:
    """Keep the first hit of each rank, of so many ranks; whether it was kept."""
    if hit.rank in ranks or len(ranks) >= limits.ranks_kept:
        return False
    ranks[hit.rank] = hit
    return True
