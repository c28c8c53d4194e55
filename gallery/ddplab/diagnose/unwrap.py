"""Text as the ranks printed it, out of what carried it: lines of JSON, and lines that a terminal has cut.

What stands before a message on its line is left to ``lines.py``. The numbers of lines stay those of the file: of the
lines that a line of JSON holds, those after the first begin with a carriage return and are not counted; a line that was
joined ends with a zero for each break that was taken out.
`handbook/_static/diagnose_engine.js` does the same; a test compares the two.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .tables import any_prefix, limits, patterns, words


class Unwrapper:
    """Takes a log in pieces of any size, and gives it back in pieces that depend on the log alone."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Take a piece; return what is ready of all pieces so far."""
        held, most, ready, at = self._held + text, limits.unwrap_chars, [], 0
        while len(held) - at > most:
            end = held.rfind("\n", at, at + most) + 1 or at + most
            ready.append(unwrap(held[at:end]))
            at = end
        self._held = held[at:]
        return "".join(ready)

    def finish(self) -> str:
        """Return the rest."""
        held, self._held = self._held, ""
        return unwrap(held)


def unwrap(text: str) -> str:
    """Unwrap some lines."""
    has_json = '{"' in text
    lines = text.split("\n")
    width = max(map(len, lines))
    if has_json:
        lines = [_unpacked(line, limits.json_depth) if '{"' in line else line for line in lines]
    elif limits.wrap_least <= width <= limits.wrap_most and _is_cut(lines, width):
        lines = _joined(lines, width)
    else:
        return text
    return "\n".join(lines)


# -- JSON ---------------------------------------------------------------------------------------------


def _unpacked(line: str, depth: int) -> str:
    """The message in a line of JSON, with its time, level and rank before each of its lines."""
    found = patterns.json.search(line)
    if not found or depth == 0:
        return line
    try:
        content = json.loads(found[2])
    except (ValueError, RecursionError):
        return line
    text, trace = _value(content, words.json_text), _value(content, words.json_trace)
    if not text and not trace:
        return line
    front = found[1]
    time, level, rank = (_first(content, names) for names in (words.json_time, words.json_level, words.json_rank))
    if isinstance(time, str) and patterns.json_time.search(time):
        front += time + " "
    if isinstance(level, str) and level.upper() in words.levels:
        front += level.upper() + " "
    if isinstance(rank, int | str) and patterns.json_rank.search(str(rank)):
        front += f"[{rank}]: "
    both = f"{text}\n{trace}" if text and trace else text or trace
    plain = both.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip("\n")
    return "\n\r".join(_unpacked(front + one, depth - 1) for one in plain.split("\n")[: limits.json_lines])


def _first(content: dict[str, Any], names: list[str]) -> Any:
    return next((content[name] for name in names if content.get(name) is not None), None)


def _value(content: Any, names: list[str], depth: int = limits.json_depth) -> str:
    """The first text under one of the names, or in an object there."""
    for name in names:
        value = content.get(name)
        if isinstance(value, dict) and depth:
            value = _value(value, names, depth - 1)
        if isinstance(value, str) and value.strip():
            return value
    return ""


# -- lines that were cut ------------------------------------------------------------------------------


def _begins(line: str, above: str) -> bool:
    """Whether a line below a full one begins by itself."""
    if not line or any_prefix.match(line) or patterns.begins.search(line):
        return True
    return line[:1] == "\r" or _stem(line) == _stem(above)


def _stem(line: str) -> str:
    return re.sub("[0-9]", "0", line[:3])


def _is_cut(lines: list[str], width: int) -> bool:
    """Whether lines of the greatest width go on in the lines below them, as where a terminal has cut them."""
    below = [(line, lines[at + 1]) for at, line in enumerate(lines[:-1]) if len(line) == width]
    if len({line for line, _ in below}) < 2:
        return False
    rest = [after for line, after in below if not _begins(after, line)]
    odd = sum(patterns.continues.search(after) is not None for after in rest)
    return len(rest) >= 2 and 4 * len(rest) >= 3 * len(below) and 2 * odd >= len(rest)


def _joined(lines: list[str], width: int) -> list[str]:
    joined, at = [], 0
    while at < len(lines):
        end = at + 1
        while (
            end < len(lines)
            and end - at < limits.wrap_pieces
            and len(lines[end - 1]) == width
            and not _begins(lines[end], lines[end - 1])
        ):
            end += 1
        joined.append("".join(lines[at:end]) + "\0" * (end - at - 1))
        at = end
    return joined
