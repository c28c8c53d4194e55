"""Which rank comes last: several ranks' traces of the same steps, compared without a common clock.

A kernel of NCCL begins when its rank arrives and ends, on all ranks, when the last one has arrived and the data has
moved. So for each collective the rank with the shortest kernel came last, and the others waited for the difference.
Gloo's spans begin and end in the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ..errors import BadInput
from .read import Collective, Trace


@dataclass(frozen=True)
class Lateness:
    """What one rank waited, and made others wait."""

    rank: int
    waited_s: float  # for ranks that came later, over all collectives compared
    last: int  # collectives in which it came last
    awaited_s: float  # that the rank which waited longest spent waiting for it


def lateness(traces: list[Trace]) -> tuple[list[Lateness], int]:
    """Compare the ranks; returns an entry per rank, and how many collectives all of them have.

    Raises:
        BadInput: two traces are of the same rank, or one does not say its rank.
    """
    ranks: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            raise BadInput(
                f"{trace.path} does not say which rank it is; compare traces recorded within a process group"
            )
        if trace.rank in ranks:
            raise BadInput(f"{trace.path} and {ranks[trace.rank].path} are both of rank {trace.rank}; give one of each")
        ranks[trace.rank] = trace
    meetings = _meetings(ranks)
    waited: dict[int, float] = defaultdict(float)
    awaited: dict[int, float] = defaultdict(float)
    last: Counter[int] = Counter()
    for meeting in meetings:
        late = min(meeting, key=lambda rank: meeting[rank].seconds)
        last[late] += 1
        gaps = {rank: one.seconds - meeting[late].seconds for rank, one in meeting.items()}
        awaited[late] += max(gaps.values())
        for rank, gap in gaps.items():
            waited[rank] += gap
    return [Lateness(rank, waited[rank], last[rank], awaited[rank]) for rank in sorted(ranks)], len(meetings)


def _meetings(ranks: dict[int, Trace]) -> list[dict[int, Collective]]:
    """Collectives that all ranks have: the n-th of each group, if name and size agree."""
    numbered = {rank: _by_number(trace) for rank, trace in ranks.items()}
    shared = set.intersection(*(set(found) for found in numbered.values())) if numbered else set()
    meetings = [{rank: found[key] for rank, found in numbered.items()} for key in sorted(shared)]
    return [meeting for meeting in meetings if len({(one.name, one.elements) for one in meeting.values()}) == 1]


def _by_number(trace: Trace) -> dict[tuple[str, int], Collective]:
    count: Counter[str] = Counter()
    found = {}
    for one in sorted(trace.collectives, key=lambda one: one.launched_s):
        found[one.group, count[one.group]] = one
        count[one.group] += 1
    return found
