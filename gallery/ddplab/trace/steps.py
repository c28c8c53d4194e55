"""The steps of one rank's trace, and the buckets that they have in common."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from ..model.link import bus_bandwidth
from .read import Collective, Trace
from .spans import clipped, length, union, without

# Bus bandwidth of n bytes of input over p ranks in t seconds, as nccl-tests counts it (doc/PERFORMANCE.md). An
# all-gather's input is one rank's part.
_BUS: dict[str, Callable[[float, int, float], float]] = {
    "allreduce": bus_bandwidth,
    "broadcast": lambda n, p, t: n / t,
    "allgather": lambda n, p, t: n / t * (p - 1),
    "reducescatter": lambda n, p, t: n / t * (p - 1) / p,
}


@dataclass(frozen=True)
class Step:
    """One step of one rank; times in seconds."""

    start_s: float
    end_s: float
    collectives: tuple[Collective, ...]  # that the host launched in it
    computing_s: float  # of the step in which something computed
    communicating_s: float  # in which a collective ran
    exposed_s: float  # in which a collective ran and nothing computed

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Bucket:
    """One collective of every step: the same name, place and size in each."""

    name: str
    elements: int | None
    nbytes: int | None
    dtype: str
    fastest_s: float
    median_s: float
    slowest_s: float
    bus_bytes_per_s: float | None  # of the fastest, as nccl-tests counts; None without a size or with one rank


def steps(trace: Trace) -> list[Step]:
    """Divide a trace at its ``ProfilerStep#n``; one that has none is one step."""
    spans = trace.steps or _whole(trace)
    found = []
    for number, (start, end) in enumerate(spans):
        last = number + 1 == len(spans)  # the host may return before the GPU has ended
        own = tuple(one for one in trace.collectives if start <= one.launched_s < (float("inf") if last else end))
        running = union((one.start_s, one.end_s) for one in own)
        reach = max([end, *(one.end_s for one in own)])
        computing = clipped(trace.compute, start, reach)
        exposed = without(running, computing)
        found.append(Step(start, end, own, length(clipped(computing, start, end)), length(running), length(exposed)))
    return found


def _whole(trace: Trace) -> list[tuple[float, float]]:
    ends = [one.end_s for one in trace.collectives] + [end for _, end in trace.compute]
    starts = [one.start_s for one in trace.collectives] + [start for start, _ in trace.compute]
    return [(min(starts), max(ends))] if ends else []


def buckets(found: list[Step]) -> list[Bucket]:
    """What all steps send, one entry per collective; empty if steps do not send the same."""
    rows = [step.collectives for step in found if step.collectives]
    kinds = {tuple((one.name, one.elements, one.dtype) for one in row) for row in rows}
    if len(kinds) != 1:
        return []
    return [_bucket(column) for column in zip(*rows, strict=True)]


def _bucket(column: tuple[Collective, ...]) -> Bucket:
    first, seconds = column[0], [one.seconds for one in column]
    bus, rate = _BUS.get(first.name), None
    if bus and first.nbytes and first.ranks > 1 and min(seconds) > 0:
        rate = bus(first.nbytes, first.ranks, min(seconds))
    middle = statistics.median(seconds)
    return Bucket(first.name, first.elements, first.nbytes, first.dtype, min(seconds), middle, max(seconds), rate)
