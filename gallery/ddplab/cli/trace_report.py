"""What ``ddplab trace`` found, in words, tables and lanes."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence

from ..model.assignment import MIB
from ..trace import Bucket, Lateness, Step, Trace, buckets
from ..trace.picture import Picture, aligned, lanes
from .text import short, table

_LISTED = 40  # rows of a table
_TIMES = "seconds", "computing_s", "communicating_s", "exposed_s"


def as_text(
    traces: Sequence[Trace],
    found: Sequence[list[Step]],
    shown: Sequence[tuple[Trace, Step]],
    picture: Picture,
    late: list[Lateness],
    compared: int,
) -> str:
    """Say what ranks of one job have in common, then what the first one did; or what each of several traces says."""
    alone = [_one(*one) for one in zip(traces, found, shown, strict=True)]
    if compared:
        parts = [[*_together(traces, found, late, compared), "", *lanes(picture, _columns())], alone[0]]
        if len({_sends(own) for own in found}) > 1:
            parts[1].append("not all of these ranks send the same: give one file to see its collectives")
    else:
        none = "the traces share no collective in which all wait: are they of the same job and the same steps?"
        parts = [*alone, *([[none]] if late else [])]
    return "\n\n".join("\n".join(part) for part in parts)


def title(traces: Sequence[Trace], drawn: int) -> str:
    """Say in a line what the picture shows."""
    if drawn == 1:
        return f"{_headline(traces[0])}; one step"
    return f"One step of {drawn} ranks{f', the first of {len(traces)}' if len(traces) > drawn else ''}"


def _columns() -> int:
    columns = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    return max(40, min(columns, 100) - 16)


def _one(trace: Trace, found: list[Step], shown: tuple[Trace, Step]) -> list[str]:
    steps = f"{len(found)} step{'s' * (len(found) != 1)}"
    lines = [f"{_headline(trace)}; {steps}", "", *_verdict(trace, found), "", *_bucket_table(found), ""]
    return [*lines, *lanes(aligned([shown]), _columns())]


def _headline(trace: Trace) -> str:
    rank = "" if trace.rank is None else f"rank {trace.rank}"
    rank += "" if not trace.world_size else f" of {trace.world_size}"
    where = trace.device or ("GPU" if trace.on_gpu else "CPU, gloo")
    known = ", ".join(part for part in (rank, where, trace.nccl and f"NCCL {trace.nccl}") if part)
    return f"{trace.path.name}: {known}"


def _medians_ms(found: list[Step]) -> list[float]:
    return [1e3 * float(statistics.median(getattr(step, name) for step in found)) for name in _TIMES]


def _verdict(trace: Trace, found: list[Step]) -> list[str]:
    whole, computing, sent, exposed = _medians_ms(found)
    worker = "the GPU" if trace.on_gpu else "the rank"
    lines = [
        f"median step {short(whole)} ms: {worker} computes {short(computing)} ms, "
        f"collectives {short(sent)} ms, exposed {short(exposed)} ms"
    ]
    if trace.on_gpu and computing + exposed < 0.5 * whole:
        lines.append(
            f"the GPU is idle for {1 - (computing + exposed) / whole:.0%} of the step: "
            "look at the host and the data first"
        )
    elif exposed > 0.1 * whole:
        lines.append(f"{exposed / whole:.0%} of the step is communication that shows: buckets, bytes or the network")
    else:
        lines.append("communication is hidden, or nearly: there is little to win from it")
    return lines


def _bucket_table(found: list[Step]) -> list[str]:
    own = buckets(found)
    if not own:
        counts = sorted({len(step.collectives) for step in found})
        return [f"steps do not send the same: {' or '.join(map(str, counts))} collectives each"]
    rows = [["", "collective", "elements", "MiB", "fastest ms", "slowest ms", "bus GB/s"]]
    longest = sorted(enumerate(own, 1), key=lambda one: -one[1].median_s)[:_LISTED]
    rows += [_row(number, bucket) for number, bucket in sorted(longest, key=lambda one: one[0])]
    lines = table(rows)
    if len(own) > _LISTED:
        lines.append(f"the {_LISTED} longest of {len(own)} in each step")
    stretched = max(own, key=lambda bucket: bucket.slowest_s - bucket.fastest_s)
    why = "a collective lasts until the last rank has come" if stretched.elements else "more bytes, or a later rank"
    if len(found) > 1 and stretched.slowest_s > 1.5 * stretched.fastest_s:
        lines.append(
            f"number {own.index(stretched) + 1} took {short(stretched.fastest_s * 1e3)} to "
            f"{short(stretched.slowest_s * 1e3)} ms: {why}"
        )
    return lines


def _row(number: int, bucket: Bucket) -> list[str]:
    return [
        str(number),
        bucket.name,
        "" if bucket.elements is None else f"{bucket.elements:,}",
        "" if bucket.nbytes is None else short(bucket.nbytes / MIB),
        short(bucket.fastest_s * 1e3),
        short(bucket.slowest_s * 1e3),
        "" if bucket.bus_bytes_per_s is None else short(bucket.bus_bytes_per_s / 1e9),
    ]


def _sends(found: list[Step]) -> tuple[tuple[str, int | None], ...]:
    return tuple((one.name, one.elements) for one in buckets(found))


def _together(traces: Sequence[Trace], found: Sequence[list[Step]], late: list[Lateness], compared: int) -> list[str]:
    times = {trace.rank: _medians_ms(own) for trace, own in zip(traces, found, strict=True)}
    worst = max(late, key=lambda one: one.awaited_s)
    rows = [["rank", "step ms", "computes", "collectives", "exposed", "came last", "waited", "waited for it"]]
    rows += [
        [
            str(one.rank),
            *map(short, times[one.rank]),
            str(one.last),
            short(1e3 * one.waited_s),
            short(1e3 * one.awaited_s),
        ]
        for one in sorted(late, key=lambda one: -one.awaited_s)[:_LISTED]
    ]
    per_step = worst.awaited_s / max(1, len(found[0])) * 1e3
    shows = times[worst.rank][_TIMES.index("exposed_s")]
    return [
        f"{len(late)} ranks, {compared} collectives compared; in each, the rank whose part was shortest came last",
        "",
        *table(rows),
        "ms; of a step, the median, but for waiting, which is the sum over all collectives compared",
        f"rank {worst.rank} costs most: others of these wait up to {short(per_step)} ms a step for it; "
        f"on it {short(shows)} ms are exposed, which is the collectives themselves",
    ]
