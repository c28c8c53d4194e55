"""Run a worker that is meant to fail, and tell how each rank ended: the base of the fault lab."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.rank import AtEnd
from ..runtime.ranks import run_ranks

_WIDTH = 95
_LOST_PEER = re.compile(r"Connection (closed|reset) by peer|Broken pipe")
# Where the C++ part of a message begins to list its own frames, which name no line of the reader's.
_CPP_FRAMES = re.compile(r"\n?(?:Exception raised from |frame #\d+: |C\+\+ CapturedTraceback).*", re.DOTALL)


@dataclass
class Ending:
    """How one rank ended.

    Attributes:
        rank: its rank.
        how: ``"returned"``, ``"raised"``, ``"died"`` (by a signal, or by an exit of its own) or ``"hung"``.
        after_s: seconds since all ranks were started.
        value: what the worker returned.
        error: of a rank that raised, type and text; of one that died, how.
        where: of a rank that raised or hung, the innermost line of the worker.
        printed: all that it wrote to stdout and stderr.
    """

    rank: int
    how: str
    after_s: float
    value: Any = None
    error: str = ""
    where: str = ""  # such as "all_reduce, called by worker at line 31"
    printed: str = ""

    @property
    def lost_peer(self) -> bool:
        """Whether it raised, and all that it knows is that a peer has left."""
        return self.how == "raised" and bool(_LOST_PEER.search(self.error))

    def told(self, timed: bool = True) -> str:
        """How it ended, in words; without ``timed`` no seconds stand in them."""
        if self.how == "returned":
            return f"returned {self.value!r}" if self.value is not None else "returned"
        if self.how == "hung":
            return f"hung, in {self.where or 'an unknown place'}"
        return f"{self.how} after {self.after_s:.1f} s: {self.error}" if timed else f"{self.how}: {self.error}"

    __str__ = told


def postmortem(
    worker: Callable[..., Any],
    nproc: int,
    *args: Any,
    timeout_s: float = 120.0,
    group_timeout_s: float | None = None,
    init: bool = True,
    leave: bool = False,
    env: Mapping[str, str] | None = None,
) -> list[Ending]:
    """Run ``worker(*args)`` on ``nproc`` ranks to the end of each, and return how each ended, in rank order.

    Unlike :func:`ddplab.launch` it never raises for a failing rank, and one rank's failure does not end the others;
    there is no barrier after the worker. Nothing is printed: see :func:`report`.

    Args:
        worker: as for ``launch``; what a rank returns must be picklable.
        nproc: number of ranks.
        timeout_s: seconds after which a rank that still runs has hung; it is then killed.
        group_timeout_s: timeout of the process group, by default ``timeout_s``; give less to see torch's own error.
        init: initialize the process group before the worker.
        leave: a rank whose worker returned ends at once, as a program does, and its peers see the connection closed;
            by default it stays until all ranks have ended.
        env: more environment variables for the ranks.

    Raises:
        ValueError: as ``launch``.
    """
    at_end: AtEnd = "leave" if leave else "stay"
    run = run_ranks(
        worker, args, nproc, timeout_s=timeout_s, init=init, env=env, group_timeout_s=group_timeout_s, at_end=at_end
    )
    endings = []
    for r, printed in zip(run.ranks, run.outputs, strict=True):
        ending = Ending(r.job.rank, "returned", min(r.ended_s - run.began_s, run.timeout_s), r.result, printed=printed)
        if r.job.rank in run.stacks:
            ending.how, ending.where = "hung", _where(run.stacks[r.job.rank], first=True)
        elif r.failure is not None and r.failure.error:
            ending.how, ending.error = "raised", _CPP_FRAMES.sub("", r.failure.error).strip()
            ending.where = _where(r.failure.text, first=False)
        elif r.failure is not None:
            ending.how, ending.error = "died", _how_it_died(r.failure.text)
        endings.append(ending)
    return endings


def report(endings: list[Ending], said: int = 0, timed: bool = True) -> str:
    """Return one paragraph a rank, each line behind its rank: how it ended, and why.

    Args:
        endings: of all ranks.
        said: how many of the last lines that a rank printed are added for a rank that did not return.
        timed: say after how many seconds; leave it out where ranks take turns on a GPU.
    """
    lines = []
    for ending in endings:
        text = [ending.told(timed)]
        if said and ending.how != "returned":
            text += [f"  {line}" for line in ending.printed.splitlines()[-said:]]
        wrapped = [part for line in "\n".join(text).splitlines() for part in _wrap(line)]
        lines += [f"rank {ending.rank} │ {line}" for line in wrapped]
    return "\n".join(lines)


def _wrap(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH - 10, subsequent_indent="    ", break_on_hyphens=False) or [""]


def _how_it_died(text: str) -> str:
    found = re.search(r"(was killed by \w+|exited with code \d+)", text)
    return found[1] if found else text.splitlines()[0]


def _where(stack: str, first: bool) -> str:
    """The line of the worker in a stack that names torch's functions, too; ``first``: the innermost frame is first."""
    frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', stack)
    if not first:
        frames.reverse()
    own = next((f for f in frames if "/torch/" not in f[0] and "/python3" not in f[0]), None)
    if own is None:
        return frames[0][2] if frames else ""
    called = [name for file, _, name in frames[: frames.index(own)] if name != "wrapper"]
    place = f"{own[2]} at line {own[1]}"
    return f"{called[-1]}, called by {place}" if called else place
