"""When each named line of a training loop began and ended, by torch's profiler, on one axis for all local ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ..runtime.clock import now

T = TypeVar("T")
Spans = dict[str, list[tuple[float, float]]]


@contextmanager
def line(name: str) -> Iterator[None]:
    """Put ``name`` into the profile for as long as the block runs, and for as long as a GPU works on it."""
    with record_function(name):
        yield
        now()


def profiled(
    train: Callable[[Callable[[], None]], T], names: Collection[str], *, wait: int, warmup: int, active: int
) -> tuple[T, Spans]:
    """Run ``train(after_step)`` under the profiler; return its result, and the spans of each name in the active steps.

    Args:
        train: calls ``after_step()`` at the end of each of its wait + warmup + active steps.
        names: of blocks and of torch's calls; those of collectives without their backend, such as ``all_reduce``.
        wait: steps that the profiler ignores.
        warmup: steps that it records and drops.
        active: steps that it keeps.

    Returns:
        ``train``'s result, and for each name its (start, end) in ms of the machine's clock, in order. The profiler
        counts from a different zero on each rank; a stamp of the clock in each step corrects that.

    Raises:
        KeyError: the profile has no entry of that name.
    """
    spans: Spans = {}
    clock: list[float] = []

    def after_step() -> None:
        with record_function("clock"):
            clock.append(time.perf_counter())
        profiler.step()

    def keep(recorded: profile) -> None:
        for event in recorded.events() or ():  # type: ignore[no-untyped-call]
            name = event.name.removeprefix("gloo:").removeprefix("nccl:")
            spans.setdefault(name, []).append((event.time_range.start, event.time_range.end))

    steps = schedule(wait=wait, warmup=warmup, active=active)
    host = [ProfilerActivity.CPU]  # a GPU would list each line once more
    with profile(activities=host, schedule=steps, on_trace_ready=keep) as profiler:
        result = train(after_step)
    zero = clock[-1] * 1e6 - max(spans["clock"])[0]
    return result, {name: [((zero + a) / 1e3, (zero + b) / 1e3) for a, b in sorted(spans[name])] for name in names}
