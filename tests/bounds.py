"""Bounds that a test wants reached: they come after an event, however late that is."""

import math
from collections.abc import Callable, Container
from pathlib import Path

import pytest

from ddplab.runtime import ranks
from tools import wait_until


class _After:
    """What ``ranks._wait`` needs of a deadline: it is far away until a condition holds, and then it has come."""

    def __init__(self, holds: Callable[[], object]) -> None:
        self._holds = holds

    def __sub__(self, now_s: float) -> float:
        return 0.0 if self._holds() else 0.02

    def __gt__(self, other_s: float) -> bool:
        return other_s < math.inf


def time_is_up_when(
    monkeypatch: pytest.MonkeyPatch, holds: Callable[[list[ranks.Rank]], object], silent: Container[int] = ()
) -> None:
    """In this test the time of a launch is up once its ranks are where they are to hang, and not before.

    Each has then the time that it needs to write where it is, but for those that are ``silent``.
    """
    wait, dump_stacks = ranks._wait, ranks.Rank.dump_stacks

    def wait_for_it(there: list[ranks.Rank], _: float, grace_s: float) -> list[ranks.Failure] | None:
        apart = there[0].job.at_end != "meet"  # a rank that fails ends no other, nor the time
        return wait(there, _After(lambda: holds(there)), math.inf if apart else grace_s)

    def dump(rank: ranks.Rank) -> None:
        dump_stacks(rank)
        if rank.job.rank not in silent:
            wait_until(lambda: "in run_rank\n" in Path(rank.job.stacks).read_text(errors="replace"))

    monkeypatch.setattr(ranks, "_wait", wait_for_it)
    monkeypatch.setattr(ranks.Rank, "dump_stacks", dump)
