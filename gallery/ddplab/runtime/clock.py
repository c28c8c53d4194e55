"""Clocks that are right where a GPU computes: the host runs ahead of it, so its own clock says when work was queued."""

from __future__ import annotations

import time

import torch

Stamp = float | torch.cuda.Event


def now() -> float:
    """Seconds on the clock of ``time.perf_counter``, once the current GPU, if any, has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def stamp() -> Stamp:
    """Note the moment without waiting: a clock reading on a CPU, an event in the current stream on a GPU."""
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds(start: Stamp, end: Stamp) -> float:
    """Return the seconds between two stamps; those of a GPU must be over, so call :func:`now` before."""
    if isinstance(start, float) or isinstance(end, float):
        return float(end - start)  # type: ignore[operator]
    return float(start.elapsed_time(end) / 1e3)
