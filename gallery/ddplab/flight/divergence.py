"""The place where the ranks diverge, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from ..wording import ranks_text
from .dumps import Call


@dataclass(frozen=True)
class Side:
    """Ranks that did the same at the place where the ranks diverge."""

    ranks: tuple[int, ...]
    call: Call | None  # what they issued there, the lowest rank's; None: nothing, or no longer recorded
    issued: bool  # False: they never issued a collective of that number
    last: Call | None  # what the lowest of these ranks issued last, in any group


@dataclass(frozen=True)
class Divergence:
    """The first collective of a group that is not the same on all ranks.

    ``kind``: "mismatch" (they issued different ones), "missing" (some ranks never issued one) or "lines" (the same
    one, from different lines of the program).
    """

    kind: str
    group: str
    name: str  # the group's description, "default_pg", or ""
    number: int
    differs: tuple[str, ...]  # of a mismatch: "operation", "sizes", "dtypes"
    sides: tuple[Side, ...]  # the most ranks first
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that differ from the others: the fewer ones, or all where no side is larger.

        Whether they are the ones at fault only the program can tell.
        """
        groups = [side.ranks for side in self.sides]
        if self.kind == "missing":
            absent = self.absent
            groups = [absent, tuple(rank for ranks in groups for rank in ranks if rank not in absent)]
        groups.sort(key=len)
        fewer = groups[:-1] if len(groups[-1]) > len(groups[-2]) else groups
        return tuple(sorted(rank for ranks in fewer for rank in ranks))

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that never issued a collective of this number."""
        return tuple(sorted(rank for side in self.sides if not side.issued for rank in side.ranks))

    def __str__(self) -> str:
        """A headline, a line for each side, and notes."""
        group = f"group {self.group}" + (f" ({self.name})" if self.name else "")
        place = f"collective {self.number} of {group}"
        if self.kind == "missing":
            head = f"The ranks diverge at {place}: {ranks_text(self.absent)} never issued it."
        elif self.kind == "mismatch":
            head = f"The ranks diverge at {place}: they differ in {' and '.join(self.differs)}."
        else:
            head = f"The ranks issue {place} from different lines."
        lines = [head] + [f"  {ranks_text(side.ranks)}: {self._action(side)}" for side in self.sides]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _action(self, side: Side) -> str:
        last = side.last
        if side.call is not None:
            went_on = last is not None and last.record > side.call.record
            return str(side.call) + (f"; the last was {self._numbered(last)}" if went_on and last else "")
        if side.issued:
            return "issued it, but the recorder has overwritten what it was"
        return f"never issued it; the last was {self._numbered(last)}" if last else "never issued a collective"

    def _numbered(self, call: Call) -> str:
        group = "" if call.group == self.group else f" of group {call.group}"
        return f"{call.number}{group}: {call}"
