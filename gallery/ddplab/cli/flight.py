"""What ``ddplab diagnose --dump DIR`` says about flight-recorder dumps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .. import flight
from ..errors import BadInput
from . import print_json


def report_dumps(folder: str | Path, as_json: bool = False) -> int:
    """Print where the ranks part, by their dumps in ``folder``; return 0, whatever the verdict.

    Raises:
        BadInput: there is no dump to read, or one cannot be read.
    """
    try:
        dumps = flight.read_dumps(folder)
    except flight.DumpError as problem:
        raise BadInput(str(problem)) from None
    parting, lines, absent = flight.compare(dumps), flight.compare_lines(dumps), flight.without_dump(dumps)
    verdict = _verdict(dumps, parting, lines, absent)
    if as_json:
        content: dict[str, Any] = {
            "folder": str(folder),
            "ranks": [dump.rank for dump in dumps],
            "without_dump": list(absent),
            "parting": _plain(parting),
            "lines": _plain(lines),
            "verdict": verdict,
        }
        print_json(content)
    else:
        print(verdict)
    return 0


def _verdict(
    dumps: list[flight.Dump], parting: flight.Parting | None, lines: flight.Parting | None, absent: tuple[int, ...]
) -> str:
    said = [f"{len(dumps)} dump{'s' * (len(dumps) > 1)} read."]
    if absent:
        said.append(f"No dump of {flight.ranks_text(absent)}: dead, or the file was not collected.")
    said += [f"Rank {dump.rank} recorded no collective." for dump in dumps if not dump.calls]
    if not any(dump.calls for dump in dumps):
        said.append(
            "There is nothing to compare. The ranks issued none, or the recorder was off (TORCH_FR_BUFFER_SIZE=0), "
            "or this is gloo on a torch before 2.11, which records none."
        )
    elif parting is not None:
        said.append(str(parting))
    elif len(dumps) == 1:
        said.append("One rank alone cannot be compared; its last collective: " + _last(dumps[0]))
    elif absent:
        said.append(
            "The ranks that left a dump do not part. One without a dump may have parted: its log says how it ended."
        )
        said += [f"  rank {dump.rank}: last {_last(dump)}" for dump in dumps[:8]]
    else:
        said.append("The ranks do not part: each issued the same collectives, as far as the dumps tell.")
        said += [f"  rank {dump.rank}: last {_last(dump)}" for dump in dumps[:8]]
        said += _unfinished(dumps)
    if lines is not None and (parting is None or (lines.group, lines.number) != (parting.group, parting.number)):
        said.append(("Before that: " if parting else "But: ") + str(lines))
    return "\n".join(said)


def _last(dump: flight.Dump) -> str:
    call = dump.calls[-1] if dump.calls else None
    return f"{call.number} of group {call.group}: {call}" if call else "none"


def _unfinished(dumps: list[flight.Dump]) -> list[str]:
    """The first collective that did not complete, for each rank that knows: gloo's entries never leave "scheduled"."""
    said = []
    for dump in dumps:
        if any(call.state == "completed" for call in dump.calls):
            call = next((call for call in dump.calls if call.state != "completed"), None)
            if call is not None:
                said.append(
                    f"  rank {dump.rank}: the first that did not complete is {call.number}: {call} ({call.state})"
                )
    return said


def _plain(parting: flight.Parting | None) -> dict[str, Any] | None:
    return None if parting is None else {**dataclasses.asdict(parting), "ranks": list(parting.ranks)}
