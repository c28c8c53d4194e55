"""Read a trace of ``torch.profiler`` by its names: the steps, the regions of the program, and the calls of the host.

``ddplab.trace`` reads what ran on the device, of files of any size.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from typing import Any

_LAUNCHES, _TRANSFERS = r"c10d::allreduce_$", r"gloo:all_reduce|nccl\w*Kernel_AllReduce"
Span = tuple[float, float, dict[str, Any]]  # start and end in ms, and the event


def steps_in(trace: Iterable[dict[str, Any]]) -> list[int]:
    """Return the numbers of the steps that a trace holds, which it marks as ``ProfilerStep#n``."""
    return sorted(int(e["name"].removeprefix("ProfilerStep#")) for _, _, e in spans(trace, "ProfilerStep#"))


def spans(trace: Iterable[dict[str, Any]], pattern: str) -> list[Span]:
    """Return the spans whose names match ``pattern``, in order; regions are those of the host."""
    here = (e for e in trace if e.get("ph") == "X" and e["cat"] != "gpu_user_annotation")
    found = ((e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e) for e in here if re.match(pattern, e["name"]))
    return sorted(found, key=lambda span: span[:2])


def transfers(trace: Iterable[dict[str, Any]]) -> list[Span]:
    """Return the spans in which an all-reduce ran."""
    return spans(trace, _TRANSFERS)


def communication(trace: list[dict[str, Any]]) -> list[float]:
    """Return medians over the steps of a trace: all-reduces, their float32 bytes, the step and the waiting in ms.

    A rank waits from the launch of the last all-reduce of a step until the result is there: the last all-reduce has
    ended, and so has the backward, which an emulated link holds back. The bytes come from the recorded shapes.
    """
    rows = []
    for start, end, _ in spans(trace, "ProfilerStep#"):
        calls = [(at, e) for at, _, e in spans(trace, _LAUNCHES) if start <= at < end]
        done = [at for _, at, _ in [*transfers(trace), *spans(trace, "backward$")] if start <= at <= end]
        sent = sum(4 * e["args"]["Input Dims"][0][0][0] for _, e in calls)
        rows.append((len(calls), sent, end - start, max(done) - calls[-1][0]))
    return [statistics.median(column) for column in zip(*rows, strict=True)]
