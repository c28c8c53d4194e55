"""``ddplab trace``: what profiler traces say of buckets, exposed communication, bandwidth and late ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..trace import Step, Trace, buckets, lateness, read_trace, steps
from ..trace.picture import aligned, svg
from ..trace.spans import clipped
from . import print_json
from .trace_report import as_text, title

EXAMPLE = """\
examples:
  ddplab trace rank0.json                  buckets, exposed communication, bandwidth
  ddplab trace trace/*.json.gz             several ranks of one job: which of them comes last
  ddplab trace rank*.json --svg step.svg   one step as a picture, a row for each rank

A trace is what torch.profiler exports: export_chrome_trace, or tensorboard_trace_handler. Record it with a schedule and
profiler.step(), so that it knows its steps. Of NCCL's collectives, sizes are in it from torch 2.3 on; of gloo's, with
record_shapes=True.

exit code: 0 read, 2 the input cannot be used
"""
_TRACES = ("*.json", "*.json.gz")
_DRAWN = 16  # ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("traces", metavar="FILE", nargs="+", type=Path, help="a trace, or a folder of them")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a step of median length as a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    show(arguments.traces, arguments.svg, as_json=arguments.json)
    return 0


def show(paths: Sequence[Path], picture_file: Path | None = None, *, as_json: bool = False) -> None:
    """Print what these traces, or those in these folders, say; draw a step of median length into ``picture_file``.

    Raises:
        BadInput: a file is no trace, or cannot be read or written.
    """
    traces, found, shown = _read(_files(paths))
    late, compared = lateness(traces) if len(traces) > 1 else ([], 0)
    picture = aligned(shown[:_DRAWN] if compared else shown[:1])
    if picture_file:
        _write(picture_file, svg(picture, title(traces, len(picture.rows))))
    if as_json:
        reports = [_as_json(trace, own) for trace, own in zip(traces, found, strict=True)]
        print_json({"traces": reports, "compared": compared, "lateness": [asdict(one) for one in late]})
    else:
        print(as_text(traces, found, shown, picture, late, compared))


def _read(files: Sequence[Path]) -> tuple[list[Trace], list[list[Step]], list[tuple[Trace, Step]]]:
    """Read the traces one after the other; of each, the steps, and the one that is drawn: the first trace's median."""
    traces: list[Trace] = []
    found: list[list[Step]] = []
    shown: list[tuple[Trace, Step]] = []
    for path in files:
        trace = read_trace(path)
        if not trace.collectives:
            raise BadInput(f"{trace.path} holds no collective: one process, or a trace without the steps of a job")
        traces.append(trace)
        found.append(steps(trace))
        by_length = sorted(range(len(found[0])), key=lambda number: found[0][number].seconds)
        step = found[-1][min(by_length[len(by_length) // 2], len(found[-1]) - 1)]
        until = max([step.end_s, *(one.end_s for one in step.collectives)])
        trace.compute = clipped(trace.compute, step.start_s, until)  # memory must not grow with ranks
        shown.append((trace, step))
    return traces, found, shown


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
