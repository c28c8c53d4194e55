"""Find the place where the ranks diverge, in the dumps of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..wording import ranks_text
from .divergence import Divergence, Side
from .dumps import Call, Dump, elements

_LOOK_AHEAD = 8  # so many collectives further on, a swapped or left out one is looked for


def compare(dumps: Sequence[Dump]) -> Divergence | None:
    """Return the first place where the ranks diverge, or None if all issued the same, as far as the dumps tell.

    The collectives of each group are aligned by their number. Where several groups diverge, the one whose collective
    was issued first, by the ranks' clocks, is returned: the others may follow from it.
    """
    found = [divergence for table in _tables(dumps) if (divergence := table.divergence())]
    return min(found, key=lambda divergence: (_issued_ns(divergence), divergence.kind), default=None)


def compare_lines(dumps: Sequence[Dump]) -> Divergence | None:
    """Return the first collective that is the same on all ranks, but not issued from the same line of the program.

    Two collectives of one size, in swapped order, raise nothing and wait for nobody: their lines alone tell. But a
    program may have good reason for two lines, such as the two sides of ``if rank == 0``.
    """
    found = [divergence for table in _tables(dumps) if (divergence := table.divergence_in_lines())]
    return min(found, key=_issued_ns, default=None)


def without_dump(dumps: Sequence[Dump]) -> tuple[int, ...]:
    """Return the ranks that belong to a group and have no dump; they died, or nobody collected their file."""
    known = {rank for dump in dumps for ranks in dump.members.values() for rank in ranks}
    highest = max((dump.rank for dump in dumps), default=-1)
    return tuple(sorted((known | set(range(highest + 1))) - {dump.rank for dump in dumps}))


_Calls = tuple[Call, ...]  # of one number: several, if they were coalesced
_Key = Callable[[_Calls], object]  # what must be equal on all ranks


@dataclass
class _Table:
    """The collectives of one group and backend on all its ranks, side by side."""

    group: str
    name: str
    dumps: dict[int, Dump]  # of the members
    calls: dict[int, dict[int, _Calls]] = field(default_factory=dict)  # rank → number → calls

    def divergence(self) -> Divergence | None:
        """The first collective that differs, or that a rank never issued."""
        for number in self._common():
            if len(groups := self._grouped(number, _signature)) > 1:
                return self._diverge("mismatch", number, groups, _signature)
        least, most = min(map(self._last, self.calls)), max(map(self._last, self.calls))
        if least == most:
            return None
        behind = [rank for rank in self.calls if self._last(rank) == least]
        ahead = [rank for rank in self.calls if self._last(rank) > least]
        recorded = [rank for rank in ahead if least + 1 in self.calls[rank]]
        overwritten = [rank for rank in ahead if rank not in recorded]
        groups = self._grouped(least + 1, _signature, recorded)
        groups += [ranks for ranks in (overwritten, behind) if ranks]
        return self._diverge("missing", least + 1, groups, _signature)

    def divergence_in_lines(self) -> Divergence | None:
        """The first collective that is the same, but from different lines."""
        for number in self._common():
            if len(self._grouped(number, _signature)) > 1:
                return None  # from here on the numbers mean different things
            places = [_lines(self.calls[rank][number]) for rank in self.calls]
            if all(places) and len(groups := self._grouped(number, _lines)) > 1:
                return self._diverge("lines", number, groups, _lines)
        return None

    def _last(self, rank: int) -> int:
        return max(self.calls[rank], default=0)

    def _common(self) -> range:
        """The numbers that no rank lacks, neither overwritten nor not issued yet."""
        first = max(min(numbers, default=1) for numbers in self.calls.values())
        return range(first, min(map(self._last, self.calls)) + 1)

    def _grouped(self, number: int, key: _Key, ranks: Sequence[int] | None = None) -> list[list[int]]:
        """The ranks, in groups that did the same."""
        groups: dict[object, list[int]] = {}
        for rank in self.calls if ranks is None else ranks:
            groups.setdefault(key(self.calls[rank][number]), []).append(rank)
        return list(groups.values())

    def _diverge(self, kind: str, number: int, groups: list[list[int]], key: _Key) -> Divergence:
        sides = []
        for ranks in groups:
            lowest = min(ranks)
            calls = self.calls[lowest].get(number)
            last = self.dumps[lowest].calls[-1] if self.dumps[lowest].calls else None
            issued = self._last(lowest) >= number
            sides.append(Side(tuple(sorted(ranks)), calls[0] if calls else None, issued, last))
        sides.sort(key=lambda side: (-len(side.ranks), side.ranks))
        differs = _differs([side.call for side in sides if side.call]) if kind == "mismatch" else ()
        notes = self._notes(number, sides, key) if kind != "missing" else []
        return Divergence(kind, self.group, self.name, number, differs, tuple(sides), tuple(notes))

    def _notes(self, number: int, sides: list[Side], key: _Key) -> list[str]:
        """Does what one side issues here appear later on the other? Then it is the order that differs."""
        most = self.calls[sides[0].ranks[0]]
        ahead = range(number + 1, number + 1 + _LOOK_AHEAD)
        notes = []
        for side in sides[1:]:
            own, who, others = self.calls[side.ranks[0]], ranks_text(side.ranks), ranks_text(sides[0].ranks)
            here, there = key(own[number]), key(most[number])
            theirs = next((n for n in ahead if n in most and key(most[n]) == here), None)
            later = next((n for n in ahead if n in own and key(own[n]) == there), None)
            if theirs and later:
                notes.append(
                    f"the order is swapped: {who} issued as {later} what {others} issued as {number}, "
                    f"and as {number} what {others} issued as {theirs}"
                )
            elif theirs:
                notes.append(f"{who} issued as {number} what {others} issued as {theirs}: something is missing before")
            elif later:
                notes.append(f"{others} issued as {number} what {who} issued as {later}: something was added before")
        return notes


def _tables(dumps: Sequence[Dump]) -> list[_Table]:
    by_rank = {dump.rank: dump for dump in dumps}
    members: dict[str, set[int]] = {}
    for dump in dumps:
        for group, ranks_of_group in dump.members.items():
            members.setdefault(group, set()).update(ranks_of_group)
    tables = []
    for group, backend in sorted({(call.group, call.backend) for dump in dumps for call in dump.calls}):
        names = {dump.names[group] for dump in dumps if group in dump.names} - {"", "undefined"}
        name = min(names, default="")
        calls: dict[int, list[Call]] = {
            rank: [call for call in dump.calls if (call.group, call.backend) == (group, backend)]
            for rank, dump in by_rank.items()
        }
        # A gloo dump that torch wrote does not name the members: then they are the ranks that were seen.
        belong = members.get(group) or (set(by_rank) if name == "default_pg" else {r for r in calls if calls[r]})
        # A rank whose buffer is overwritten and holds nothing of this group may have issued any number.
        ranks = [rank for rank in sorted(belong & set(by_rank)) if calls[rank] or not by_rank[rank].overwritten]
        table = _Table(group, name, {rank: by_rank[rank] for rank in ranks})
        for rank in ranks:
            numbers: dict[int, _Calls] = {}
            for call in calls[rank]:
                numbers[call.number] = (*numbers.get(call.number, ()), call)
            table.calls[rank] = numbers
        if len(ranks) > 1:
            tables.append(table)
    return tables


def _signature(calls: _Calls) -> object:
    return tuple(call.signature() for call in calls)


def _lines(calls: _Calls) -> object:
    return tuple(call.place for call in calls if call.place)


def _differs(calls: list[Call]) -> tuple[str, ...]:
    if len({call.operation for call in calls}) > 1:
        return ("operation",)
    sizes = {(elements(call.inputs), elements(call.outputs)) for call in calls}
    dtypes = {(call.input_dtypes, call.output_dtypes) for call in calls}
    return (("sizes",) if len(sizes) > 1 else ()) + (("dtypes",) if len(dtypes) > 1 else ()) or ("what they coalesce",)


def _issued_ns(divergence: Divergence) -> int:
    return min((side.call.created_ns for side in divergence.sides if side.call), default=0)
