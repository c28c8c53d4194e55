"""The state of one rank's lines, or of those that name no rank: open tracebacks, and torchrun's summary."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .findings import Group
from .hits import Exit, Hit
from .lines import Line, summary_time
from .tables import limits, patterns, words

HitOf = Callable[[int | None], Hit]  # from a rank to the line as one of its hits


@dataclass(slots=True)
class Traceback:
    """One that is being collected, or was just closed."""

    rank: int | None
    indent: int
    ignored: bool
    start: int  # number of its first line
    logged: bool  # that line had a time or a level; if so all of its lines may
    outermost: bool  # its first frame is where a program begins, as of an exception that nobody caught
    thread: bool  # it ended a thread and no process
    before: Group | None = None  # of the exception that this one followed
    lines_left: int = limits.traceback_lines
    in_frame: bool = False  # the line before was a frame or its source
    where: str = ""  # innermost frame of the user's
    where_hit: Hit | None = None
    anywhere: str = ""  # innermost frame
    most_open: int = 1  # so many tracebacks were open at once, whose frames look alike,
    times: int = 0  # unless each of them showed the innermost frame
    end: int = -1  # number of the exception's line
    strong: bool = False  # torch put the rank before it, which it does for exceptions that nobody caught
    name: str = ""  # of the exception
    message: str = ""
    group: Group | None = None


@dataclass(slots=True)
class Lane:
    """What is open in the lines of a rank."""

    open: list[Traceback] = field(default_factory=list)
    closed: Traceback | None = None
    chained: Group | None = None  # the next traceback continues from this exception
    spawned: int | None = None  # mp.spawn named the process that the next traceback is of
    summary: Exit | None = None  # torchrun's block is open
    summary_left: int = 0
    root: bool = False  # the block is its root cause
    last_error: int = 0  # within so many lines NCCL's last error comes

    @property
    def busy(self) -> int:
        """How much is open; while anything is, each line is read."""
        return len(self.open) + (self.summary is not None) + (self.last_error > 0)

    def open_traceback(self, line: Line, rank: int | None, number: int, above: str) -> bool:
        """Begin a traceback if the line does; ``above`` is the line above."""
        found = patterns.traceback.search(line.body)
        if not found:
            return False
        before = self.chained
        if before is None and found[2].startswith("Original ") and self.closed:
            before = self.closed.group
        if self.summary and self.summary.rank is not None:
            rank = self.summary.rank
        outermost = self.spawned is not None
        if self.spawned is not None:
            rank = self.spawned
        self.last_error = 0
        ignored, thread = bool(patterns.ignored.search(above)), bool(patterns.thread.search(above))
        if len(self.open) >= limits.open_tracebacks:
            self.open.pop(0)
        self.open.append(Traceback(rank, len(found[1]), ignored, number, line.logged, outermost, thread, before))
        self.chained, self.spawned = None, None
        return True

    def traceback_line(self, line: Line, rank: int | None, number: int, hit_of: HitOf) -> tuple[bool, Traceback | None]:
        """Whether the line is a frame or its source, and the traceback that it ends."""
        if not self.open:
            return False, None
        body, current = line.body, self.open[-1]
        if found := _frame(body):
            place = f"{found[2]}:{found[3]}" + (f" in {found[4].strip()}" if found[4] else "")
            for one in self.open:  # several only if lines that name no rank are interleaved: any may be theirs
                one.in_frame, one.lines_left = True, limits.traceback_lines
                if not one.anywhere and (found[4] or "").strip() in words.outermost:
                    one.outermost = True
                one.times = one.times + 1 if place == one.anywhere else 1
                one.most_open = max(one.most_open, len(self.open))
                one.anywhere = place
                if not patterns.library_file.search(found[2]):
                    one.where, one.where_hit = place, hit_of(one.rank)
            return True, None
        if current.in_frame and patterns.rich.search(body):
            return True, None
        indent = len(body) - len(body.lstrip(" "))
        if current.in_frame and indent > current.indent and body.strip():
            return True, None
        if indent == current.indent and line.logged <= current.logged and (ends := patterns.exception.search(body)):
            named = patterns.exception_name.search(ends[2])
            if ends[2] not in words.levels and (named or (current.in_frame and (rank is not None or "." in ends[2]))):
                self.closed = self.open.pop()
                current.end, current.strong = number, line.strong
                if current.times < current.most_open:
                    current.where, current.where_hit, current.anywhere = "", None, ""
                current.name, current.message = ends[2].rsplit(".", 1)[-1], ends[3] or ""
                return False, current
        current.lines_left -= 1
        if current.lines_left <= 0:
            self.open.pop()
        return False, None

    def last_error_line(self, line: Line) -> bool:
        """Whether the line is what NCCL gives as its last error."""
        self.last_error -= 1
        if not line.body.strip():
            return False
        self.last_error = 0
        return True

    def open_summary(self, root: bool, hit: Hit) -> None:
        """Torchrun's summary begins, or its root cause."""
        self.root = root
        self.summary = Exit(None, None, hit if root else None)
        self.summary_left = limits.summary_lines

    def summary_line(self, line: Line, hit_of: HitOf) -> Exit | None:
        """Read a line of the summary; the root cause if the line ends it."""
        block = self.summary
        assert block is not None
        self.summary_left -= 1
        if patterns.summary_end.search(line.body) or self.summary_left <= 0:
            if self.root and block.rank is None:
                return None  # the line right below the heading
            ended, self.summary, self.root = block if self.root else None, None, False
            return ended
        if found := patterns.summary_time.search(line.body):
            block.time = summary_time(found[1])
        elif found := patterns.summary_rank.search(line.body):
            block.rank = int(found[1])
        elif found := patterns.summary_exit_code.search(line.body):
            block.code = int(found[1])
            if block.hit:
                block.code_hit = hit_of(block.rank)
        return None


def _frame(body: str) -> re.Match[str] | None:
    """A frame as Python, rich or a notebook writes it: file, line and perhaps function in groups 2 to 4."""
    found: re.Match[str] | None = (
        patterns.frame.search(body) or patterns.rich_frame.search(body) or patterns.cell_frame.search(body)
    )
    return found
