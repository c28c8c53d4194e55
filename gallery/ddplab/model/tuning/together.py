"""What the ranks do in agreement while they tune: fail together, and keep one clock."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class TuningError(Exception):
    """Nothing can be tuned; the text is one line that names the reason and says what to do.

    ``everywhere``: all ranks raise it together, so they can leave the group in good order.
    """

    def __init__(self, text: str, everywhere: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.everywhere = everywhere


def on_all_ranks(work: Callable[[], T]) -> T:
    """Do ``work`` on every rank; a problem on one of them is raised on all, with the same text."""
    value, problem = None, None
    try:
        value = work()
    except TuningError as found:
        problem = str(found)
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    ranks = [rank for rank, text in enumerate(problems) if text is not None]
    if ranks:
        some = "" if len(ranks) == len(problems) else f"on rank {', '.join(map(str, ranks))} only: "
        raise TuningError(f"{some}{problems[ranks[0]]}", everywhere=True)
    return value  # type: ignore[return-value]


def slowest(times_s: Sequence[float]) -> list[float]:
    """The largest of each over all ranks."""
    largest = torch.tensor(times_s, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return [float(value) for value in largest.tolist()]


class Clock:
    """The time that is spent, the same on all ranks, and the bar that shows it on rank 0."""

    def __init__(self, seconds: float, terminal: str | None) -> None:
        self.seconds = seconds
        self.terminal = terminal if dist.get_rank() == 0 else None
        self.began_s = time.perf_counter()
        self.done = 0.0  # of all that is to do, 0 to 1

    def spent_s(self) -> float:
        """Seconds since the start, on the slowest rank."""
        return slowest([time.perf_counter() - self.began_s])[0]

    def rounds(self, what: str, until: float, least: int, most: int) -> Iterator[int]:
        """Count rounds: ``least`` of them, and up to ``most`` before this share of the seconds is spent."""
        first, begin_s, end_s = self.done, self.spent_s(), until * self.seconds
        for number in range(most):
            spent_s = self.spent_s()
            if number >= least and spent_s >= end_s:
                break
            part = max(number / most, (spent_s - begin_s) / max(end_s - begin_s, 1e-9))
            self.show(f"{what}, round {number + 1}", first + (until - first) * min(max(part, 0), 1))
            yield number
        self.done = until

    def show(self, what: str, done: float | None = None) -> None:
        """Redraw the bar."""
        self.done = self.done if done is None else done
        if self.terminal is None:
            return
        bar = ("#" * round(20 * self.done)).ljust(20, ".")
        try:
            with open(os.open(self.terminal, os.O_WRONLY | os.O_NOCTTY), "w") as stream:
                stream.write(f"\r{bar} {100 * self.done:3.0f} %  {what:48.48}")
        except OSError:  # the terminal is gone: nobody is looking
            self.terminal = None

    def require(self, needed_s: float, what: str) -> None:
        """Raise TuningError on all ranks if this many more seconds do not fit; ``what`` takes them."""
        (needed_s,) = slowest([needed_s])
        if self.spent_s() + needed_s > self.seconds:
            ask = max(math.ceil(1.5 * (self.spent_s() + needed_s)), math.ceil(self.seconds) + 1)
            raise TuningError(
                f"--seconds {self.seconds:g} is too short: {what} take about {needed_s:.1f} s; use --seconds {ask}",
                everywhere=True,
            )
