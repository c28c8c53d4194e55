"""What stands in a line of a log before its message: which rank, when, how severe.

`handbook/_static/diagnose_engine.js` does the same; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from .tables import any_prefix, limits, patterns, prefixes, words

_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Time:
    """A moment; two are comparable if both know their zone or neither does."""

    zoned: bool
    seconds: float

    def __lt__(self, other: Time) -> bool:
        """Whether it is known to be earlier."""
        return self.zoned == other.zoned and self.seconds < other.seconds


@dataclass(frozen=True, slots=True)
class Line:
    """A line, read. ``text`` has no colors; ``body`` has no prefixes either."""

    text: str
    body: str
    rank: int | None
    strong: bool  # torch named the rank, not the launcher
    time: Time | None
    warning: bool
    logged: bool  # it begins with a time or a level
    severe: bool  # that level is at least an error


def read_line(raw: str) -> Line:
    """Take a line apart."""
    text = patterns.ansi.sub("", raw) if "\x1b" in raw else raw
    text = text.strip("\r\0")  # marks for the numbers of lines
    front = text[: limits.prefix_chars]
    at, rank, strong, time, level = 0, None, False, None, ""
    for _ in range(limits.prefixes):
        if not any_prefix.match(front, at):
            break
        known = time is not None or level != ""
        of_line = ((k, m) for k, p in prefixes if (known or k != "logger") and (m := p.match(front, at)))
        kind, found = next(of_line, ("", None))
        if found is None or found.end() == at:
            break
        at = found.end()
        if kind == "rank":
            rank, strong = int(found[1]), True
        elif kind == "label":
            rank = int(found[1]) if rank is None else rank
        elif kind == "iso":
            time = time or _iso_time(found)
        elif kind == "syslog":
            time = time or _local_time(words.months.index(found[1]) + 1, found[2], found[3], found[4], found[5], "")
        elif kind == "us":
            time = time or _local_time(found[1], found[2], found[3], found[4], found[5], None)
        elif kind == "level":
            level = level or found[1][0]
        elif kind == "glog":
            level = found[1]
            time = time or (_local_time(*found.group(2, 3, 4, 5, 6, 7)) if found[2] else None)
    if rank is None and (glued := patterns.glued.search(front, at)):
        rank, strong = int(glued[1] or glued[2]), True
    warning = level == "W" or (level == "" and bool(patterns.warning.search(front)))
    return Line(text, text[at:], rank, strong, time, warning, time is not None or level != "", level in ("E", "C", "F"))


def summary_time(text: str) -> Time | None:
    """The time of torchrun's summary, such as ``2026-11-21_20:25:10``."""
    found = next(pattern for kind, pattern in prefixes if kind == "iso").match(text.strip() + " ")
    return _iso_time(found) if found else None


def _clock(hour: str, minute: str, second: str, fraction: str | None) -> float:
    return int(hour) * 3600 + int(minute) * 60 + int(second) + (float(f"0.{fraction}") if fraction else 0.0)


def _local_time(month: str | int, day: str, hour: str, minute: str, second: str, fraction: str | None) -> Time:
    """A moment without year and zone, as glog and syslog write it."""
    return Time(False, (int(month) * 31 + int(day)) * 86400 + _clock(hour, minute, second, fraction))


def _iso_time(found: re.Match[str]) -> Time | None:
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if not zone:
        return _local_time(month, day, hour, minute, second, fraction)
    try:
        midnight = (date(int(year), int(month), int(day)).toordinal() - _EPOCH) * 86400
    except ValueError:
        return None
    offset = 0
    if zone != "Z":
        offset = (int(zone[1:3]) * 60 + int(zone[-2:])) * 60 * (1 if zone[0] == "+" else -1)
    return Time(True, midnight + _clock(hour, minute, second, fraction) - offset)
