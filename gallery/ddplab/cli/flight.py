"""What ``ddplab diagnose --dump DIR`` prints about flight-recorder dumps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..flight import Divergence, Dump, DumpError, compare, compare_lines, read_dumps, without_dump
from ..wording import ranks_text
from . import print_json

_LISTED = 8  # ranks, where each one's last collective is listed


def report_dumps(folder: str | Path, as_json: bool = False) -> int:
    """Print where the ranks diverge, by their dumps in ``folder``; return 0, whatever the verdict.

    Raises:
        BadInput: there is no dump to read, or one cannot be read.
    """
    try:
        dumps = read_dumps(folder)
    except DumpError as problem:
        raise BadInput(str(problem)) from None
    divergence, lines, absent = compare(dumps), compare_lines(dumps), without_dump(dumps)
    verdict = _verdict(dumps, divergence, lines, absent)
    if as_json:
        content: dict[str, Any] = {
            "folder": str(folder),
            "ranks": [dump.rank for dump in dumps],
            "without_dump": list(absent),
            "divergence": _as_json(divergence),
            "lines": _as_json(lines),
            "verdict": verdict,
        }
        print_json(content)
    else:
        print(verdict)
    return 0


def _verdict(
    dumps: list[Dump], divergence: Divergence | None, lines: Divergence | None, absent: tuple[int, ...]
) -> str:
    text = [f"{len(dumps)} dump{'s' * (len(dumps) > 1)} read."]
    if absent:
        text.append(f"No dump of {ranks_text(absent)}: the rank died, or its file was not collected.")
    text += [f"Rank {dump.rank} recorded no collective." for dump in dumps if not dump.calls]
    last = [f"  rank {dump.rank}: last {_last(dump)}" for dump in dumps[:_LISTED]]
    if not any(dump.calls for dump in dumps):
        text.append(
            "There is nothing to compare. The ranks issued none, or the recorder was off (TORCH_FR_BUFFER_SIZE=0), "
            "or this is gloo on a torch before 2.11, which records none."
        )
    elif divergence is not None:
        text.append(str(divergence))
    elif len(dumps) == 1:
        text.append("One rank alone cannot be compared; its last collective: " + _last(dumps[0]))
    elif absent:
        text.append(
            "The ranks that left a dump do not diverge. One without a dump may have: its log says how it ended."
        )
        text += last
    else:
        text.append("The ranks do not diverge: as far as the dumps tell, each issued the same collectives.")
        text += last + _unfinished(dumps)
    if lines and (divergence is None or (lines.group, lines.number) != (divergence.group, divergence.number)):
        text.append(("Before that: " if divergence else "But: ") + str(lines))
    return "\n".join(text)


def _last(dump: Dump) -> str:
    call = dump.calls[-1] if dump.calls else None
    return f"{call.number} of group {call.group}: {call}" if call else "none"


def _unfinished(dumps: list[Dump]) -> list[str]:
    """The first collective that did not complete, for each rank that knows: gloo's entries never leave "scheduled"."""
    text = []
    for dump in dumps:
        open_calls = [call for call in dump.calls if call.state != "completed"]
        if open_calls and len(open_calls) < len(dump.calls):
            call = open_calls[0]
            text.append(f"  rank {dump.rank}: the first that did not complete is {call.number}: {call} ({call.state})")
    return text


def _as_json(divergence: Divergence | None) -> dict[str, Any] | None:
    return None if divergence is None else {**dataclasses.asdict(divergence), "ranks": list(divergence.ranks)}
