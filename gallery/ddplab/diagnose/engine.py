"""From a log of any size to its diagnoses: what failed first, what only followed, what to do.

The log comes in pieces and is looked at in blocks: a search for every needle finds the few lines that matter, and only
those, and the lines of open tracebacks, are read one by one. What is kept does not grow with the log.
`handbook/_static/diagnose.js` is a port of this file and of ranking.py; a test compares the answers of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .entry import Entry, Match, entries
from .ranking import SCHEDULER, Diagnosis, Exit, Findings, Found, Group, Hit, Source, rank_findings
from .reading import Line, read_line, summary_time
from .search import Search

BLOCK_CHARS = 1 << 21
SAMPLE_CHARS = 1 << 17
AROUND = 400  # lines of all ranks that are at hand before and after a line
NEAR = 20  # lines of its own rank within which `nearby` must stand
NEAR_TRIES = 2000  # per match; then it is taken not to be there
RANKS_KEPT = 4096
GROUPS_KEPT = 64
TEXT_KEPT = 600  # characters of an evidence line
REGEX_BEFORE, REGEX_AFTER = 1000, 4000  # characters around the needle that a regex sees
MESSAGE_LINES = 12  # of one rank: so many lines after an exception still belong to its message
TRACEBACK_LINES = 400  # an open traceback is given up after so many lines of its rank that are not its own
TRACEBACK_SPAN = 20_000  # and after so many of all ranks
SUMMARY_LINES = 30_000

_HEADER = re.compile(r"( *)(.{0,120}?)Traceback \(most recent call last\)(?::\s*$| ─)")
_FRAME = re.compile(r'( +)File "([^"]{1,500})", line (\d{1,7})(?:, in (.{1,200}))?')
_RICH = re.compile(r"\s*[│╭╰|]")  # the box that the package rich draws
_RICH_FRAME = re.compile(r"(\s*)│ (\S[^│]{0,300}?):(\d{1,7}) in (\S{1,200})")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")
_EXCEPTION = re.compile(r"( *)((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: ?(.*)|\s*)$", re.ASCII)
_SUFFIX = re.compile(r"(?:Error|Exception|Interrupt|Exit|Warning|Failure|Fault|Timeout|Iteration|Raised|Empty)$")
_FOREIGN = re.compile(
    r"[/\\](?:site-packages|dist-packages|torch|lib[/\\]python3\.\d+)[/\\]|^<(?!stdin|string|ipython)"
)
_FIELD = re.compile(r"\s*(time|rank|exitcode)\s*: (.{1,200})")
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,5})")
_SPAWNED = re.compile(r"-- Process (\d{1,5}) terminated with the following error")
_WRAPPERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "_RemoteTraceback")

_TRACEBACK, _CHAIN, _CAUSED, _ROOT, _FAILURES = (
    "Traceback (most recent call last)",
    "During handling of the above exception",
    "The above exception was the direct cause",
    "Root Cause (first observed failure)",
    "Failures:",
)
_EXITCODE, _PROCESS, _IGNORED = "failed (exitcode: ", "-- Process ", "Exception ignored in"
_THREAD = "Exception in thread "
_OUTERMOST = ("<module>", "_run_module_as_main", "_bootstrap")  # the last is that of multiprocessing
_OWN = (_TRACEBACK, _CHAIN, _CAUSED, _ROOT, _FAILURES, _EXITCODE, _PROCESS)


@dataclass
class Traceback:
    """One that is being collected, or was just closed."""

    rank: int | None
    indent: int
    ignored: bool
    start: int  # number of its first line
    logged: bool  # that line had a time or a level; if so all of its lines may
    lines_left: int = TRACEBACK_LINES
    in_frame: bool = False  # the line before was a frame or its source
    where: str = ""  # innermost frame of the user's
    where_hit: Hit | None = None
    anywhere: str = ""  # innermost frame
    before: Group | None = None  # of the exception that this one followed
    end: int = -1  # number of the exception's line
    strong: bool = False  # torch put the rank before it, which it does for exceptions that nobody caught
    outermost: bool = False  # its first frame is where a program begins, as of an exception that nobody caught
    thread: bool = False  # it ended a thread and no process
    group: Group | None = None


@dataclass
class Lane:
    """The state of one rank's lines, or of those that name no rank."""

    open: list[Traceback] = field(default_factory=list)
    closed: Traceback | None = None
    chained: Group | None = None  # the next traceback continues from this exception
    spawned: int | None = None  # mp.spawn said which process the next traceback is of
    summary: Exit | None = None  # torchrun's block is open
    summary_left: int = 0
    root: bool = False  # the block is its root cause


class Engine:
    """Feed it logs, one after the other, and ask for the diagnoses."""

    def __init__(self, known: Mapping[str, Entry]) -> None:
        self._known = known
        self._matches: list[tuple[Entry, Match]] = [(entry, m) for entry in known.values() for m in entry.matches]
        self._needles = [match.needle for _, match in self._matches] + list(_OWN)
        self._search: Search | None = None
        self._near_tries = [0] * len(self._matches)
        self._findings = Findings()
        self._source = Source("", None)
        self._buffer = ""
        self._scanned = 0  # position in the buffer
        self._number = 1  # of the line there
        self._held = ""  # a carriage return at the end of a piece
        self._lanes: dict[int | None, Lane] = {}
        self._busy = 0  # open tracebacks and summaries
        self._tidy_at = 0

    def start(self, name: str, rank: int | None = None) -> None:
        """A file begins; ``rank`` is the rank that it is of."""
        self._end_file()
        self._source = Source(name, rank)
        self._findings.sources.append(self._source)

    def feed(self, text: str) -> None:
        """Take the next piece of the log."""
        if not self._findings.sources:
            self._findings.sources.append(self._source)
        text = self._held + text.replace("\0", "")  # a log that was emptied while it was written begins with those
        self._held = ""
        if text.endswith("\r"):
            text, self._held = text[:-1], "\r"
        if "\r" in text:  # a progress bar's parts become lines that begin with a carriage return and are not counted
            text = text.replace("\r\n", "\n").replace("\r", "\n\r")
        at = 0
        while at < len(text):
            take = BLOCK_CHARS - (len(self._buffer) - self._scanned)
            self._buffer += text[at : at + take]
            at += take
            if len(self._buffer) - self._scanned >= BLOCK_CHARS:
                self._scan(self._lines_back(len(self._buffer), self._scanned + BLOCK_CHARS // 2))
                keep = self._lines_back(self._scanned, max(0, self._scanned - BLOCK_CHARS // 2))
                self._buffer = self._buffer[keep:]
                self._scanned -= keep

    def finish(self) -> list[Diagnosis]:
        """The log is at its end: what was found, best first."""
        self._end_file()
        return rank_findings(self._findings, self._known)

    def _end_file(self) -> None:
        self._scan(len(self._buffer))
        for lane in self._lanes.values():
            if lane.summary and lane.root and lane.summary.rank is not None:
                self._findings.exits.append(lane.summary)
        self._buffer, self._scanned, self._number, self._held, self._busy = "", 0, 1, "", 0
        self._lanes, self._tidy_at = {}, 0

    def _lines_back(self, position: int, least: int) -> int:
        """Where the line AROUND lines above ``position`` begins, not below ``least``; ``position`` if none does."""
        found = position
        for _ in range(AROUND):
            at = self._buffer.rfind("\n", least, found - 1) if found > least else -1
            if at < 0:
                return found if least else 0
            found = at + 1
        return found

    # -- scanning -------------------------------------------------------------------------------------

    def _scan(self, end: int) -> None:
        """Look at the buffer up to ``end``, where a line begins (or a line too long for a block is cut)."""
        buffer, start = self._buffer, self._scanned
        if end <= start:
            return
        if self._search is None:
            self._search = Search(self._needles, buffer[start : min(end, start + SAMPLE_CHARS)])
        lines = self._search.lines(buffer, start, end)
        starts = sorted(lines)
        at, next_hit = start, 0
        while True:
            while next_hit < len(starts) and starts[next_hit] < at:
                next_hit += 1
            following = starts[next_hit] if next_hit < len(starts) else end
            begin = at if self._busy else following
            if begin >= end:
                break
            self._count(at, begin)
            stop = buffer.find("\n", begin, end)
            stop = end if stop < 0 else stop
            self._line(begin, stop, lines.get(begin, []))
            at = min(stop + 1, end)
            if at > stop:
                self._count(stop, at)
        self._count(at, end)
        self._scanned = end

    def _count(self, start: int, stop: int) -> None:
        """Move the line number on. A line that begins with a carriage return is a part of the one before."""
        self._number += self._buffer.count("\n", start, stop) - self._buffer.count("\n\r", start, stop + 1)

    def _line(self, begin: int, stop: int, needles: list[int]) -> None:
        if self._busy and self._number >= self._tidy_at:
            self._give_up_old()
        line = read_line(self._buffer[begin:stop])
        rank = self._rank(line)
        lane = self._lanes.get(rank)
        if lane is None:
            if len(self._lanes) >= RANKS_KEPT:
                return
            lane = self._lanes[rank] = Lane()
        if lane.summary:
            self._summary_line(lane, line)
        hit = None
        own = [self._needles[index] for index in needles if index >= len(self._matches)]
        frame, closed = self._traceback_line(lane, line, rank, begin, _TRACEBACK in own)
        if frame:
            return
        for index in needles:
            if index < len(self._matches) and self._fits(index, line, rank, begin, stop):
                hit = hit or self._hit(line, closed.rank if closed else rank, begin)
                self._note(index, hit)
                self._explain(lane, self._matches[index][0], line, closed)
        if _CHAIN in own or _CAUSED in own:
            lane.chained = lane.closed.group if lane.closed else None
        if _PROCESS in own and (found := _SPAWNED.search(line.body)):
            lane.spawned = int(found[1])
        if _EXITCODE in own and (found := _FAILED.search(line.body)):
            hit = hit or self._hit(line, rank, begin)
            self._findings.agent_exits.append(Exit(int(found[2]), int(found[1]), hit, hit.time))
            del self._findings.agent_exits[RANKS_KEPT:]
        if _ROOT in own or (_FAILURES in own and line.body.strip() == _FAILURES):
            self._busy += lane.summary is None
            lane.root = _ROOT in own
            lane.summary = Exit(None, None, self._hit(line, rank, begin), None) if lane.root else Exit(None, None)
            lane.summary_left = SUMMARY_LINES

    def _give_up_old(self) -> None:
        """Close tracebacks that never ended, so that the rest of the log is not read line by line."""
        for lane in self._lanes.values():
            kept = [one for one in lane.open if self._number - one.start < TRACEBACK_SPAN]
            self._busy -= len(lane.open) - len(kept)
            lane.open = kept
        self._tidy_at = self._number + TRACEBACK_SPAN // 4

    def _rank(self, line: Line) -> int | None:
        """The line's rank: what torch says, else what the file's name says, else what the launcher says."""
        if line.strong or self._source.rank is None:
            return line.rank
        return self._source.rank

    def _hit(self, line: Line, rank: int | None, begin: int) -> Hit:
        return Hit(self._source, self._number, rank, line.text[:TEXT_KEPT], line.time, line.warning, begin)

    # -- entries --------------------------------------------------------------------------------------

    def _fits(self, index: int, line: Line, rank: int | None, begin: int, stop: int) -> bool:
        entry, match = self._matches[index]
        at = line.text.find(match.needle)
        if match.regex:
            near = max(at, 0)
            if not match.regex.search(line.text[max(near - REGEX_BEFORE, 0) : near + REGEX_AFTER]):
                return False
        if not match.nearby or match.nearby in line.text:
            return True
        found = self._findings.found.get(entry.id)
        if found and rank in found.ranks:
            return True  # it was there the first time
        if self._near_tries[index] >= NEAR_TRIES:
            return False
        above = self._lines_back(begin, 0)
        below = stop
        for _ in range(AROUND):
            at = self._buffer.find("\n", below + 1)
            if at < 0:
                below = len(self._buffer)
                break
            below = at
        if self._buffer.find(match.nearby, above, below) < 0:
            return False
        self._near_tries[index] += 1
        return self._near(self._buffer[above:begin].split("\n")[:-1][::-1], match.nearby, rank) or self._near(
            self._buffer[stop + 1 : below].split("\n"), match.nearby, rank
        )

    def _near(self, lines: list[str], text: str, rank: int | None) -> bool:
        """Whether ``text`` is in the first NEAR lines that are the rank's, or nobody's."""
        left = NEAR
        for raw in lines:
            other = self._rank(read_line(raw)) if rank is not None else None
            if other is None or other == rank:
                if text in raw:
                    return True
                left -= 1
                if left == 0:
                    return False
        return False

    def _note(self, index: int, hit: Hit) -> None:
        entry, match = self._matches[index]
        found = self._findings.found.setdefault(entry.id, Found())
        if found.last == (self._source, self._number, hit.begin):
            found.weight = max(found.weight, match.weight)
            return  # a second needle of the same entry on the same line
        found.last = (self._source, self._number, hit.begin)
        found.count += 1
        found.weight = max(found.weight, match.weight)
        found.only_warnings = found.only_warnings and hit.warning
        if hit.rank not in found.ranks and len(found.ranks) < RANKS_KEPT:
            found.ranks[hit.rank] = self._timed(hit)

    def _timed(self, hit: Hit) -> Hit:
        """With the time of the last line above that has one, of the same rank if that is known."""
        if hit.time is None:
            lines = self._buffer[self._lines_back(hit.begin, 0) : hit.begin].split("\n")[:-1][::-1]
            left = NEAR
            for raw in lines:
                line = read_line(raw)
                rank = self._rank(line)
                if rank is None or hit.rank is None or rank == hit.rank:
                    if line.time:
                        hit.time = line.time
                        break
                    left -= 1
                    if left == 0:
                        break
        return hit

    # -- tracebacks -----------------------------------------------------------------------------------

    def _traceback_line(
        self, lane: Lane, line: Line, rank: int | None, begin: int, header: bool
    ) -> tuple[bool, Traceback | None]:
        """Whether the line is a frame or its source, and the traceback that it ends."""
        body = line.body
        if header and (found := _HEADER.match(body)):
            before = lane.chained
            if before is None and found[2].startswith("Original ") and lane.closed:
                before = lane.closed.group
            if lane.summary and lane.summary.rank is not None:
                rank = lane.summary.rank
            if lane.spawned is not None:
                rank = lane.spawned
            above = self._line_above(begin)
            if len(lane.open) >= 64:
                lane.open.pop(0)
                self._busy -= 1
            opened = Traceback(rank, len(found[1]), _IGNORED in above, self._number, line.logged, before=before)
            opened.thread, opened.outermost = _THREAD in above, lane.spawned is not None
            lane.open.append(opened)
            lane.chained, lane.spawned = None, None
            self._busy += 1
            return True, None
        if not lane.open:
            return False, None
        current = lane.open[-1]
        if found := _FRAME.match(body) or _RICH_FRAME.match(body):
            place = f"{found[2]}:{found[3]}" + (f" in {found[4].strip()}" if found[4] else "")
            for (
                one
            ) in lane.open:  # several only if lines that name no rank are interleaved: whose this is, none can say
                one.in_frame = True
                one.lines_left = TRACEBACK_LINES
                if not one.anywhere and (found[4] or "").strip() in _OUTERMOST:
                    one.outermost = True
                one.anywhere = place
                if not _FOREIGN.search(found[2]):
                    one.where = place
                    one.where_hit = self._hit(line, one.rank, begin)
            return True, None
        if current.in_frame and _RICH.match(body):
            return True, None
        indent = len(body) - len(body.lstrip(" "))
        if current.in_frame and indent > current.indent and body.strip():
            return True, None
        ends = _EXCEPTION.match(body)
        if (
            ends
            and indent == current.indent
            and ends[2] not in _LEVELS
            and line.logged <= current.logged
            and (
                _SUFFIX.search(ends[2])
                or (current.in_frame and rank is not None)
                or (current.in_frame and "." in ends[2])
            )
        ):
            lane.open.pop()
            self._busy -= 1
            lane.closed = current
            current.end, current.strong = self._number, line.strong
            self._close(current, ends[2], ends[3] or "", self._hit(line, current.rank, begin))
            return False, current
        current.lines_left -= 1
        if current.lines_left <= 0:
            lane.open.pop()
            self._busy -= 1
        return False, None

    def _line_above(self, begin: int) -> str:
        above = self._buffer.rfind("\n", 0, max(begin - 1, 0)) + 1
        return self._buffer[above:begin]

    def _close(self, traceback: Traceback, kind: str, message: str, hit: Hit) -> None:
        """Count the exception in its group."""
        name = kind.rsplit(".", 1)[-1]
        if traceback.ignored or name in _WRAPPERS:
            return
        key = (name, re.sub("[0-9]+", "#", message[:120]), traceback.where or traceback.anywhere)
        group = self._findings.groups.get(key)
        if group is None:
            if len(self._findings.groups) >= GROUPS_KEPT:
                return
            group = self._findings.groups[key] = Group(name, message[:TEXT_KEPT], key[2], bool(traceback.where))
            group.thread = traceback.thread
        group.count += 1
        group.uncaught = group.uncaught or traceback.strong or traceback.outermost
        group.thread = group.thread and traceback.thread
        traceback.group = group
        if traceback.before and traceback.before is not group:
            group.before = group.before or traceback.before
            traceback.before.after = traceback.before.after or group
        if hit.rank not in group.ranks and len(group.ranks) < RANKS_KEPT:
            group.ranks[hit.rank] = self._timed(hit)
            if traceback.where_hit and group.where_hit is None:
                group.where_hit = traceback.where_hit

    def _explain(self, lane: Lane, entry: Entry, line: Line, closed: Traceback | None) -> None:
        """An entry fits this line: does it tell what the exception is that ends here, or ended just above?"""
        traceback = closed
        apart = entry.role == "consequence" or line.text.startswith(SCHEDULER)
        if traceback is None and lane.closed and line.logged <= lane.closed.logged and not apart:
            near = MESSAGE_LINES * max(1, min(len(self._lanes), 64))
            if self._number - lane.closed.end <= near:
                traceback = lane.closed
        if traceback and traceback.group:
            traceback.group.explained.add(entry.id)

    # -- torchrun's summary ---------------------------------------------------------------------------

    def _summary_line(self, lane: Lane, line: Line) -> None:
        block = lane.summary
        assert block is not None
        body = line.body
        lane.summary_left -= 1
        if body.startswith(("=====", "-----")) or lane.summary_left <= 0:
            if lane.root:
                if block.rank is None:
                    return  # the line right below the heading
                self._findings.exits.append(block)
                del self._findings.exits[RANKS_KEPT:]
            lane.summary, lane.root = None, False
            self._busy -= 1
        elif found := _FIELD.match(body):
            if found[1] == "time":
                block.time = summary_time(found[2])
            elif found[1] == "rank" and (number := re.match(r"\d{1,6}", found[2], re.ASCII)):
                block.rank = int(number[0])
            elif found[1] == "exitcode" and (number := re.match(r"-?\d{1,4}", found[2], re.ASCII)):
                block.code = int(number[0])
                if block.hit:
                    block.code_hit = self._hit(line, block.rank, 0)


def diagnose(lines: Iterable[str], known: Mapping[str, Entry] | None = None) -> list[Diagnosis]:
    """The diagnoses of one log, best first; an empty list if nothing known is in it.

    ``lines`` may end in newlines or not.
    """
    engine = Engine(entries() if known is None else known)
    engine.start("")
    batch: list[str] = []
    for line in lines:
        batch.append(line if line.endswith("\n") else line + "\n")
        if len(batch) >= 4096:
            engine.feed("".join(batch))
            batch.clear()
    engine.feed("".join(batch))
    return engine.finish()
