"""``ddplab trace``: what profiler traces say of buckets, exposed communication, bandwidth and late ranks."""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..model.buckets import MIB
from ..trace import Bucket, Lateness, Step, Trace, buckets, lateness, read_trace, steps
from ..trace.picture import lanes, svg
from . import print_json
from .text import short, table

EXAMPLE = """\
examples:
  ddplab trace rank0.json                  buckets, exposed communication, bandwidth
  ddplab trace trace/*.json.gz             several ranks of one job: which of them comes last
  ddplab trace rank0.json --svg step.svg   the median step as a picture

A trace is what torch.profiler exports: export_chrome_trace, or tensorboard_trace_handler. Record it with a schedule and
profiler.step(), so that it knows its steps. Of NCCL's collectives, sizes are in it from torch 2.3 on; of gloo's, with
record_shapes=True.

exit code: 0 read, 2 the input cannot be used
"""
_LISTED = 40  # collectives of a step
_TRACES = ("*.json", "*.json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("traces", metavar="FILE", nargs="+", type=Path, help="a trace, or a folder of them")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the first trace's median step as a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    traces = [read_trace(path) for path in _files(arguments.traces)]
    for trace in traces:
        if not trace.collectives:
            raise BadInput(f"{trace.path} holds no collective: one process, or a trace without the steps of a job")
    late, compared = lateness(traces) if len(traces) > 1 else ([], 0)
    found = [steps(trace) for trace in traces]
    if arguments.svg:
        _write(arguments.svg, svg(traces[0], _median(found[0])))
    if arguments.json:
        reports = [_as_json(trace, own) for trace, own in zip(traces, found, strict=True)]
        print_json({"traces": reports, "compared": compared, "lateness": [asdict(one) for one in late]})
        return 0
    parts = [_as_text(trace, own) for trace, own in zip(traces, found, strict=True)]
    if late:
        parts.append(_late(late, compared, len(found[0])))
    print("\n\n".join("\n".join(part) for part in parts))
    return 0


def _files(given: Sequence[Path]) -> list[Path]:
    files = []
    for path in given:
        if path.is_dir():
            inside = sorted(file for pattern in _TRACES for file in path.glob(pattern))
            if not inside:
                raise BadInput(f"{path} holds no trace: no file {' or '.join(_TRACES)}")
            files += inside
        else:
            files.append(path)
    return files


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def _median(found: list[Step]) -> Step:
    return sorted(found, key=lambda step: step.seconds)[len(found) // 2]


# -- in words -----------------------------------------------------------------------------------------


def _as_text(trace: Trace, found: list[Step]) -> list[str]:
    step = _median(found)
    lines = [_headline(trace, found), "", *_verdict(trace, found), "", *_bucket_table(found), ""]
    return [*lines, *lanes(trace, step, max(40, min(shutil.get_terminal_size((80, 24)).columns, 100) - 14))]


def _headline(trace: Trace, found: list[Step]) -> str:
    rank = "" if trace.rank is None else f"rank {trace.rank}"
    rank += "" if not trace.world_size else f" of {trace.world_size}"
    where = trace.device or ("GPU" if trace.on_gpu else "CPU, gloo")
    known = ", ".join(part for part in (rank, where, trace.nccl and f"NCCL {trace.nccl}") if part)
    return f"{trace.path.name}: {known}; {len(found)} step{'s' * (len(found) != 1)}"


def _verdict(trace: Trace, found: list[Step]) -> list[str]:
    def ms(name: str) -> float:
        return 1e3 * float(statistics.median(getattr(step, name) for step in found))

    whole, computing, sent, exposed = map(ms, ("seconds", "computing_s", "communicating_s", "exposed_s"))
    worker = "the GPU" if trace.on_gpu else "the rank"
    lines = [
        f"step {short(whole)} ms (median): {worker} computes {short(computing)} ms, "
        f"collectives run {short(sent)} ms, {short(exposed)} ms of them exposed"
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
    rows += [_row(number, bucket) for number, bucket in enumerate(own[:_LISTED], 1)]
    lines = table(rows)
    if len(own) > _LISTED:
        lines.append(f"… and {len(own) - _LISTED} more in each step")
    stretched = max(own, key=lambda bucket: bucket.slowest_s - bucket.fastest_s)
    if len(found) > 1 and stretched.slowest_s > 1.5 * stretched.fastest_s:
        lines.append(
            f"number {own.index(stretched) + 1} took {short(stretched.fastest_s * 1e3)} to "
            f"{short(stretched.slowest_s * 1e3)} ms for the same call: a collective lasts until the last rank has come"
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


def _late(late: list[Lateness], compared: int, steps_count: int) -> list[str]:
    if not compared:
        return ["the traces share no collective: are they of the same job and the same steps?"]
    worst = max(late, key=lambda one: one.awaited_s)
    lines = [
        f"{len(late)} ranks, {compared} collectives compared; in each, the rank whose part was shortest came last:"
    ]
    rows = [["rank", "came last", "waited ms", "waited for it ms"]]
    rows += [
        [str(one.rank), str(one.last), short(one.waited_s * 1e3), short(one.awaited_s * 1e3)]
        for one in sorted(late, key=lambda one: -one.awaited_s)[:_LISTED]
    ]
    lines += table(rows)
    per_step = worst.awaited_s / max(1, steps_count) * 1e3
    lines.append(f"rank {worst.rank} costs most: others of these wait up to {short(per_step)} ms a step for it")
    return lines


# -- as JSON ------------------------------------------------------------------------------------------


def _as_json(trace: Trace, found: list[Step]) -> dict[str, Any]:
    return {
        "file": str(trace.path),
        "rank": trace.rank,
        "world_size": trace.world_size,
        "device": trace.device,
        "nccl": trace.nccl,
        "streams": trace.streams,
        "steps": [
            {
                "ms": step.seconds * 1e3,
                "computing_ms": step.computing_s * 1e3,
                "communicating_ms": step.communicating_s * 1e3,
                "exposed_ms": step.exposed_s * 1e3,
                "collectives": len(step.collectives),
            }
            for step in found
        ],
        "buckets": [asdict(bucket) for bucket in buckets(found)],
    }
