"""From a log of any size to its diagnoses: what failed first, what only followed, what to do.

The log comes in pieces and is looked at in blocks: a search for every needle finds the few lines that matter, and only
those, and the lines of open tracebacks, are read one by one. What is kept does not grow with the log.
`handbook/_static/diagnose_engine.js` is a port of this package's control flow; a test compares the answers of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from .answers import Diagnosis
from .entry import Entry, Match, entries
from .findings import Findings, Found, Last, add_first
from .hits import Exit, Hit, Source
from .lines import Line, read_line
from .nothing import exception_of, last_error
from .rank_state import Lane, Traceback
from .ranking import Answer, answer_to
from .search import Search
from .tables import facts, limits, marks, patterns, words
from .unwrap import Unwrapper
from .window import Window

_MARKS = tuple(vars(marks).values())
_RUNS = {mark for name, mark in vars(marks).items() if name.startswith("run_")}


class Engine:
    """Feed it logs, one after the other, and ask for the diagnoses."""

    def __init__(self, known: Mapping[str, Entry]) -> None:
        self._known = known
        self._matches: list[tuple[Entry, Match]] = [(entry, m) for entry in known.values() for m in entry.matches]
        self._search = Search(
            [*(match.needle for _, match in self._matches), *_MARKS, *(needle for _, needle, _ in facts)]
        )
        self._near_tries = [0] * len(self._matches)
        self._findings = Findings()
        self._earlier: list[Findings] = []  # of runs that ended above in the same file
        self._source = Source("", None)
        self._start_file()

    def _start_file(self) -> None:
        self._window = Window()
        self._unwrapper = Unwrapper()
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
        self._read(self._unwrapper.feed(text))

    def _read(self, text: str) -> None:
        for end in self._window.blocks(text):
            self._scan(end)

    def finish(self) -> list[Diagnosis]:
        """The log is at its end: what was found, best first."""
        return self.answer().diagnoses

    def answer(self) -> Answer:
        """The log is at its end: all that is to be said."""
        self._end_file()
        return answer_to([*self._earlier, self._findings], self._known)

    def _end_file(self) -> None:
        self._read(self._unwrapper.finish())
        self._scan(len(self._window.text))
        self._note_end()
        for lane in self._lanes.values():
            if lane.summary and lane.root and lane.summary.rank is not None:
                self._findings.exits.append(lane.summary)
        self._start_file()

    # -- lines ----------------------------------------------------------------------------------------

    def _scan(self, end: int) -> None:
        """Look at the text up to ``end``, where a line begins (or a line too long for a block is cut)."""
        window, start = self._window, self._window.scanned
        if end <= start:
            return
        self._note_beginning(start, end)
        lines = self._search.lines(window.text, start, end)
        starts = sorted(lines)
        at, next_hit = start, 0
        while True:
            while next_hit < len(starts) and starts[next_hit] < at:
                next_hit += 1
            following = starts[next_hit] if next_hit < len(starts) else end
            begin = at if self._busy else following
            if begin >= end:
                break
            window.count(at, begin)
            stop = window.text.find("\n", begin, end)
            stop = end if stop < 0 else stop
            needles = lines.get(begin, [])
            self._line(begin, stop, needles)
            at = min(stop + 1, end)
            if needles and needles[0] >= len(self._matches):
                at = window.run_of_equal(begin, at, end, limits.open_tracebacks)
            window.count(begin, at)
        window.count(at, end)
        window.scanned = end

    def _line(self, begin: int, stop: int, needles: list[int]) -> None:
        number = self._window.number
        marked = {index - len(self._matches) for index in needles if index >= len(self._matches)}
        found = {_MARKS[index] for index in marked if index < len(_MARKS)}
        if found & _RUNS:
            self._start_run()
        if self._busy and number >= self._tidy_at:
            self._give_up_old()
        line = read_line(self._window.text[begin:stop])
        rank = self._rank(line)
        lane = self._lanes.get(rank)
        if lane is None:
            if len(self._lanes) >= limits.ranks_kept:
                return
            lane = self._lanes[rank] = Lane()
        busy, hit_of = lane.busy, partial(self._hit, line, begin)
        if lane.summary:
            before = lane.summary.code
            if ended := lane.summary_line(line, hit_of):
                self._findings.exits.append(ended)
                del self._findings.exits[limits.ranks_kept :]
            elif lane.summary and lane.summary.code != before and len(self._findings.facts.ended) < limits.ranks_kept:
                one = lane.summary
                self._findings.facts.ended.append(Exit(one.rank, one.code, hit_of(one.rank), one.time))
        if lane.last_error and lane.last_error_line(line):
            self._findings.facts.last_errors.setdefault(rank, hit_of(rank))
        frame, closed = False, None
        if marks.traceback in found:
            frame = lane.open_traceback(line, rank, number, self._window.line_above(begin))
        if not frame:
            frame, closed = lane.traceback_line(line, rank, number, hit_of)
        if closed:
            self._count_exception(closed, hit_of(closed.rank))
        if not frame:
            hit = hit_of(closed.rank if closed else rank)
            self._message(lane, line, closed, hit, stop, needles)
            self._launcher(lane, line, found, hit)
            for index in marked:
                if index >= len(_MARKS) and (new := self._findings.facts.note(index - len(_MARKS), line, hit_of, rank)):
                    self._find_time(new)
        self._busy += lane.busy - busy

    def _rank(self, line: Line) -> int | None:
        """The line's rank: by torch's prefix, else by the file's name, else by the launcher's prefix."""
        return line.rank if line.strong or self._source.rank is None else self._source.rank

    def _hit(self, line: Line, begin: int, rank: int | None) -> Hit:
        text, body = line.text[: limits.text_kept], line.body[: limits.text_kept]
        return Hit(self._source, self._window.number, rank, text, body, line.time, line.warning, begin)

    def _give_up_old(self) -> None:
        """Close tracebacks that never ended, so that the rest of the log is not read line by line."""
        for lane in self._lanes.values():
            busy = lane.busy
            lane.open = [one for one in lane.open if self._window.number - one.start < limits.traceback_span]
            self._busy += lane.busy - busy
        self._tidy_at = self._window.number + limits.traceback_span // 4

    def _start_run(self) -> None:
        """Another run begins, if the one above has failed; only its findings count, unless it has none."""
        old = self._findings
        if len(old.sources) == 1 and old.over:
            self._earlier.append(old)
            del self._earlier[: -limits.runs_kept]
            self._findings = Findings(old.sources, started=old.started, first_line=self._window.number)
            self._lanes, self._busy = {}, 0

    def _note_beginning(self, start: int, end: int) -> None:
        """Look for the log's first time stamp, and whether there is anything but blanks."""
        findings = self._findings
        findings.written = findings.written or not self._window.text[start:end].isspace()
        if self._window.number == 1:
            at = start
            for _ in range(limits.first_lines):
                stop = self._window.text.find("\n", at, end)
                time = read_line(self._window.text[at : stop if stop >= 0 else end]).time
                if time and (not findings.started or time < findings.started):
                    findings.started = time
                if time or stop < 0:
                    break
                at = stop + 1

    def _note_end(self) -> None:
        """Keep the last line that looks like an error, and the last lines."""
        window = self._window
        if place := last_error(window):
            line = read_line(window.text[place[0] : place[1]])
            hit = self._hit(line, place[0], self._rank(line))
            hit.number = window.number_at(place[0])
            name, message = exception_of(line) or ("", line.body)
            if hit.number >= self._findings.first_line:
                self._findings.last.append(Last(hit, name, message))
        tail = [line for line in window.text[window.lines_back(len(window.text)) :].split("\n") if line.strip()]
        self._findings.tails.append(tail[: -limits.tail_lines - 1 : -1])

    # -- what a line means ----------------------------------------------------------------------------

    def _message(
        self, lane: Lane, line: Line, closed: Traceback | None, hit: Hit, stop: int, needles: list[int]
    ) -> None:
        """Note the entries that fit the line."""
        rank = self._rank(line)
        for index in needles:
            if index < len(self._matches) and self._fits(index, line, rank, hit.begin, stop):
                entry, match = self._matches[index]
                found = self._findings.found.setdefault(entry.id, Found())
                hit.show(line.text, match.needle)
                if not found.is_repeated(hit, match.weight) and add_first(found.ranks, hit):
                    self._find_time(hit)
                self._explain(lane, entry, line, closed)

    def _launcher(self, lane: Lane, line: Line, found: set[str], hit: Hit) -> None:
        """Note what the launcher prints about processes that ended, and that exceptions are chained."""
        if marks.chain in found or marks.caused in found:
            lane.chained = lane.closed.group if lane.closed else None
        if marks.last_error in found:
            rest = line.text.partition(marks.last_error)[2].strip()
            lane.last_error = 0 if rest else limits.last_error_lines
            if rest:
                self._findings.facts.last_errors.setdefault(hit.rank, hit)
        if marks.process in found and (spawned := patterns.spawned.search(line.body)):
            lane.spawned = int(spawned[1])
        if marks.exit_code in found and (failed := patterns.agent_exit.search(line.body)):
            self._findings.agent_exits.append(Exit(int(failed[2]), int(failed[1]), hit, hit.time))
            del self._findings.agent_exits[limits.ranks_kept :]
        if marks.root in found or (marks.failures in found and line.body.strip() == marks.failures):
            lane.open_summary(marks.root in found, hit)

    def _fits(self, index: int, line: Line, rank: int | None, begin: int, stop: int) -> bool:
        """Whether the match, whose needle is on the line, fits as a whole."""
        entry, match = self._matches[index]
        if match.regex:
            near = max(line.text.find(match.needle), 0)
            if not match.regex.search(line.text[max(near - limits.regex_before, 0) : near + limits.regex_after]):
                return False
        if not match.nearby or match.nearby in line.text:
            return True
        found = self._findings.found.get(entry.id)
        if found and rank in found.ranks:
            return True  # it was there the first time
        window = self._window
        if (
            self._near_tries[index] >= limits.near_tries
            or window.text.find(match.nearby, window.lines_back(begin), window.lines_forward(stop)) < 0
        ):
            return False
        self._near_tries[index] += 1
        close = self._near(window.above(begin), rank) + self._near(window.below(stop), rank)
        return any(match.nearby in raw for raw in close)

    def _near(self, lines: list[str], rank: int | None) -> list[str]:
        """The first of the lines that are the rank's, or nobody's."""
        near: list[str] = []
        for raw in lines:
            if len(near) == limits.near:
                break
            if rank is None or self._rank(read_line(raw)) in (None, rank):
                near.append(raw)
        return near

    def _find_time(self, hit: Hit) -> None:
        """Give a hit without a time that of the nearest line above that has one, of the same rank if that is known."""
        left = limits.near if hit.time is None else 0
        for raw in self._window.above(hit.begin) if left else []:
            line = read_line(raw)
            rank = self._rank(line)
            if rank is None or hit.rank is None or rank == hit.rank:
                hit.time = line.time
                left -= 1
                if hit.time or left == 0:
                    return

    def _count_exception(self, traceback: Traceback, hit: Hit) -> None:
        """Count the exception of a closed traceback in its group."""
        if traceback.ignored or traceback.name in words.wrappers:
            if len(self._findings.dismissed) < limits.ranks_kept:
                self._findings.dismissed.add((hit.source.name, hit.number))
            return
        group = self._findings.group_of(traceback.name, traceback.message, traceback.where or traceback.anywhere)
        if group is None:
            return
        group.thread = group.thread and traceback.thread
        group.count += 1
        group.uncaught = group.uncaught or traceback.strong or traceback.outermost
        traceback.group = group
        if traceback.before and traceback.before is not group:
            group.before = group.before or traceback.before
            traceback.before.after = traceback.before.after or group
        if add_first(group.ranks, hit):
            self._find_time(hit)
            group.where_hit = group.where_hit or traceback.where_hit

    def _explain(self, lane: Lane, entry: Entry, line: Line, closed: Traceback | None) -> None:
        """An entry fits this line: does it describe the exception that ends here, or ended just above?"""
        traceback = closed
        apart = entry.role == "consequence" or line.text.startswith(tuple(words.scheduler))
        if traceback is None and lane.closed and line.logged <= lane.closed.logged and not apart:
            near = limits.message_lines * max(1, min(len(self._lanes), 64))
            if self._window.number - lane.closed.end <= near:
                traceback = lane.closed
        if traceback and traceback.group:
            traceback.group.explained.add(entry.id)


def diagnose(lines: Iterable[str], known: Mapping[str, Entry] | None = None) -> list[Diagnosis]:
    """Return the diagnoses of one log, best first; an empty list if nothing known is in it.

    Args:
        lines: the lines of the log, with or without their newlines.
        known: the entries to look for, by id; by default all of the error index.

    Raises:
        EntryError: an entry of the error index cannot be used; the message names its file.
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
