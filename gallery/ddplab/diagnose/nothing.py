"""When no entry fits: the last line that looks like an error, or what a log without one looks like."""

from __future__ import annotations

from dataclasses import dataclass

from ..wording import ranks_text
from .findings import Findings
from .lines import Line, read_line
from .tables import ends, errors, limits, nothing, patterns, says, words
from .window import Window


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing was found; ``kind`` is "empty", "no-error" or "hang". Texts are Markdown."""

    kind: str
    title: str
    text: str
    collect: list[str]  # what to do next


def last_error(window: Window) -> tuple[int, int] | None:
    """Where the last line that looks like an error begins and ends, in the text at hand at the end of a file."""
    text, best = window.text, (-1, -1)
    for mark in words.last_marks:
        at = len(text)
        for _ in range(limits.last_tries):
            at = text.rfind(mark, 0, at)
            if at < best[0] or at < 0:
                break
            begin, stop = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            stop = len(text) if stop < 0 else stop
            if begin > best[0] and looks_like_error(read_line(text[begin:stop]), _is_at_end(text, stop)):
                best = (begin, stop)
            at = begin
    return best if best[0] >= 0 else None


def _is_at_end(text: str, stop: int) -> bool:
    """Whether so few lines follow, and no exception, that a traceback may have been cut off."""
    few = text.count("\n", stop) <= limits.last_lines
    return few and not any(exception_of(read_line(one)) for one in text[stop:].split("\n"))


def looks_like_error(line: Line, at_end: bool) -> bool:
    """Whether a line by itself looks like an error; ``at_end``: of the log."""
    named = exception_of(line)
    if named:
        return named[0] not in words.wrappers
    return line.severe or any(pattern.search(line.body) for pattern, _, _, last in errors if at_end or not last)


def exception_of(line: Line) -> tuple[str, str] | None:
    """The type and message of an exception that ends a traceback, or stands alone."""
    found = patterns.exception.search(line.body)
    if not found or found[2].endswith("Warning") or not patterns.exception_name.search(found[2]):
        return None
    return found[2].rsplit(".", 1)[-1], found[3] or ""


def nothing_found(findings: Findings) -> Nothing:
    """What a log looks like in which nothing was found."""
    kind, end, more = ("no-error", "", "") if findings.written else ("empty", "", "")
    for tail in findings.tails:
        for raw in tail:
            if kind != "hang" and (one := next((e for e in ends if e[1].search(read_line(raw).text)), None)):
                kind, end, more = "hang", one[0], one[2]
    stuck = findings.facts.unfinished()
    if stuck:
        kind, end, more = "hang", *next((e[0], e[2]) for e in ends if "NCCL" in e[0])
    text = nothing[kind]["text"]
    if stuck:
        text += " " + says.stuck.format(who=ranks_text(stuck, limits.runs_shown))
    collect = [one for one in (more, *nothing[kind]["collect"]) if one]
    return Nothing(kind, nothing[kind]["title"].format(end=end), text, collect)
