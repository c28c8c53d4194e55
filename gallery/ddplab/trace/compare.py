"""Which rank comes last: several ranks' traces of the same steps, compared without a common clock.

A kernel of NCCL begins when its rank arrives. Where each rank needs data of every other, it ends on all ranks when the
last one has arrived and the data has moved: the rank with the shortest kernel came last, and the others waited for the
difference. Gloo's spans begin and end in the same way. What one rank gives or takes alone is left out: the root of a
broadcast may be done before the others have come.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass

from ..errors import BadInput
from .read import Collective, Trace

_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
_CLOCKS_S = 1e-3  # more than two clocks drift apart within a trace


@dataclass(frozen=True)
class Lateness:
    """What one rank waited, and made others wait."""

    rank: int
    waited_s: float  # for ranks that came later, over all collectives compared
    last: int  # collectives in which it came last
    awaited_s: float  # that the rank which waited longest spent waiting for it


def lateness(traces: list[Trace]) -> tuple[list[Lateness], int]:
    """Compare the ranks; returns an entry per rank, and in how many collectives all of them wait for each other.

    Raises:
        BadInput: two traces are of the same rank, one does not say its rank, or they are not of the same steps.
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
    """Collectives in which all ranks wait for each other: the n-th of each group, if name and size agree."""
    numbered = {rank: _by_number(trace) for rank, trace in ranks.items()}
    shared = set.intersection(*(set(found) for found in numbered.values())) if numbered else set()
    meetings = [{rank: found[key] for rank, found in numbered.items()} for key in sorted(shared)]
    kinds = [{(one.name, one.elements) for one in meeting.values()} for meeting in meetings]
    alike = [
        meeting
        for meeting, kind in zip(meetings, kinds, strict=True)
        if len(kind) == 1 and next(iter(kind))[0] not in _ONE_SIDED
    ]
    if all(trace.on_gpu for trace in ranks.values()):
        _check_ends(alike, ranks)
    return alike


def _check_ends(meetings: list[dict[int, Collective]], ranks: dict[int, Trace]) -> None:
    """Refuse traces whose n-th collectives do not meet, however the clocks are set: most must end together."""
    first = next(iter(ranks))
    for rank in ranks:
        apart = [meeting[rank].end_s - meeting[first].end_s for meeting in meetings]
        clock_s = statistics.median(apart or [0.0])
        met = [
            abs(gap - clock_s) <= _CLOCKS_S + min(meeting[rank].seconds, meeting[first].seconds)
            for gap, meeting in zip(apart, meetings, strict=True)
        ]
        if sum(met) < 0.8 * len(met):
            raise BadInput(
                f"{ranks[rank].path} and {ranks[first].path} are not of the same steps, or one lacks kernels: only "
                f"{sum(met)} of {len(met)} collectives end together; give one file to read it alone"
            )


def _by_number(trace: Trace) -> dict[tuple[str, int], Collective]:
    count: Counter[str] = Counter()
    found = {}
    for one in sorted(trace.collectives, key=lambda one: one.launched_s):
        found[one.group, count[one.group]] = one
        count[one.group] += 1
    return found
