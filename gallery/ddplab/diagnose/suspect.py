"""Which rank to look at first, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .answers import shortened
from .candidates import Candidate, Kind
from .facts import Fact, Facts, number_of, what_of
from .hits import Exit
from .tables import suspects


@dataclass(frozen=True, slots=True)
class Suspect:
    """The rank that probably failed first, or that the others wait for."""

    rank: int
    why: str


def suspect(best: Candidate | None, facts: Facts, root: Exit | None) -> Suspect | None:
    """The suspect, or None if nothing makes one rank stand out.

    What the waiting ranks print (entries of the family ``peer``, and consequences) says nothing against them.
    """
    waiting = best is None or best.kind > Kind.GENERIC or (best.entry is not None and best.entry.family == "peer")
    if best and not waiting:
        return _reporting(best, root) or _by_numbers(facts)
    return _by_numbers(facts)


def _reporting(best: Candidate, root: Exit | None) -> Suspect | None:
    """The rank that the best answer is about, if it is one."""
    line = best.hits[0].number
    if best.exit:
        if best.exit.rank is None:
            return None
        return Suspect(best.exit.rank, suspects.exit.format(code=best.exit.code, line=line))
    ranks = {rank for rank in best.ranks if rank is not None}
    name = best.entry.title if best.entry else best.group.name if best.group else best.id
    what = f"“{shortened(name, 80)}”"
    if root and root.rank is not None and (root.rank in ranks or not ranks):
        return Suspect(root.rank, suspects.root.format(what=what, line=line))
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    others = {hit.rank for one in best.below for hit in one.hits} - {rank, None}
    return Suspect(rank, (suspects.first if others else suspects.alone).format(what=what, line=line))


def _by_numbers(facts: Facts) -> Suspect | None:
    for kind in ("absent", "unfinished"):
        for one in facts.all(kind):
            ranks = one.values[0].replace(",", " ").split()
            if len(ranks) == 1:
                why = getattr(suspects, kind).format(number=one.values[1], line=one.hit.number)
                return Suspect(int(ranks[0]), why)
    waits = facts.by_rank("timeout")
    return _diverged(waits) or _behind(facts, waits) or _silent(facts, waits)


def _diverged(waits: Mapping[int, Fact]) -> Suspect | None:
    """The one rank that waits in another collective under the same number."""
    numbers: dict[int | None, list[int]] = {}
    for rank in sorted(waits):
        numbers.setdefault(number_of(waits[rank]), []).append(rank)
    for number, ranks in numbers.items():
        places: dict[str, list[int]] = {}
        for rank in ranks:
            places.setdefault(what_of(waits[rank]), []).append(rank)
        alone = [what for what, own in places.items() if len(own) == 1]
        if number is not None and len(places) == 2 and len(alone) == 1:
            rank = places[alone[0]][0]
            others = next(what for what in places if what != alone[0])
            line = waits[rank].hit.number
            return Suspect(rank, suspects.diverged.format(own=alone[0], others=others, line=line))
    return None


def _behind(facts: Facts, waits: Mapping[int, Fact]) -> Suspect | None:
    """The one rank whose numbers are lower than those of all others."""
    work = facts.by_rank("work")
    counts = [
        ("enqueued", {rank: (int(one.values[0]), one) for rank, one in work.items()}),
        ("completed", {rank: (int(one.values[1]), one) for rank, one in work.items()}),
        ("waits", {rank: (n, one) for rank, one in waits.items() if (n := number_of(one)) is not None}),
    ]
    for kind, of_rank in counts:
        order = sorted(of_rank, key=lambda rank: (of_rank[rank][0], rank))
        if len(order) > 1 and of_rank[order[0]][0] < of_rank[order[1]][0]:
            own, fact = of_rank[order[0]]
            why = getattr(suspects, kind).format(own=own, others=of_rank[order[1]][0], line=fact.hit.number)
            return Suspect(order[0], why)
    return None


def _silent(facts: Facts, waits: Mapping[int, Fact]) -> Suspect | None:
    """The one rank without a time-out, where all others have one."""
    world = max([facts.world(), *(rank + 1 for rank in waits)])
    missing = sorted(set(range(min(world, len(waits) + 2))) - set(waits))
    if len(waits) == world - 1 and len(missing) == 1:
        return Suspect(missing[0], suspects.silent.format(world=world))
    return None
