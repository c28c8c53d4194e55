"""Flight-recorder dumps of all ranks, and the place where the ranks part.

Every rank of a torch program keeps a log of the collectives it issued. When a job hangs, the ranks' logs side by side
name the cause: the first collective that is not the same on all of them, or that one of them never issued.

:func:`write_dump` and :func:`dump_when_stuck` run in a rank, and need torch. Reading and comparing need the standard
library only, so that dumps can be read where no torch is installed. A dump is a pickle, and a pickle can run code:
here it is read by its alphabet of plain data, and everything else in it is refused.

The format is that of ``torch/csrc/distributed/c10d/FlightRecorder.hpp``, version 2 (2.10 in torch 2.13), which NCCL's
watchdog writes to ``$TORCH_FR_DUMP_TEMP_FILE<rank>`` (before: ``$TORCH_NCCL_DEBUG_INFO_TEMP_FILE<rank>``).
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import pickletools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

# -- in a rank --------------------------------------------------------------------------------------


def write_dump(folder: str | Path) -> Path:
    """Write the flight recorder of the calling rank to ``<folder>/rank<r>``, whole or not at all; return the path.

    The file has the form of NCCL's, and names the members of every group on gloo, too, so torch's own analyser,
    ``torchfrtrace <folder> --prefix rank``, can read it.

    Raises:
        RuntimeError: there is no default process group, or it is gloo's on a torch before 2.11, which records nothing.
        OSError: the folder cannot be written.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("write_dump: this process has no process group; call init_process_group first")
    return _write(Path(folder), dist.get_rank())


@contextlib.contextmanager
def dump_when_stuck(folder: str | Path, after_s: float = 60.0) -> Iterator[None]:
    """Write this rank's dump as soon as it has issued no collective for ``after_s`` seconds, and when the block ends.

    It is what NCCL's watchdog does at a timeout, for any backend, and it ends nothing. A thread looks at the number of
    collectives issued: a signal handler of Python's would not run while the main thread waits inside torch.
    The dump at the end, with or without an exception, is there because a rank that left early is part of the answer.
    A rank that is killed, or aborts, before ``after_s`` leaves no dump. A dump that cannot be written is reported on
    stderr and otherwise ignored.

    Raises:
        ValueError: ``after_s`` is not a positive number.
        RuntimeError: there is no default process group, or it is gloo's on a torch before 2.11, which records nothing.
    """
    import torch.distributed as dist

    from .runtime.torch_private import flight_progress

    if not after_s > 0:
        raise ValueError(f"dump_when_stuck: after_s must be a positive number of seconds; got {after_s!r}")
    if not dist.is_initialized():
        raise RuntimeError("dump_when_stuck: this process has no process group; call init_process_group first")
    rank, left, start = dist.get_rank(), threading.Event(), flight_progress()

    def write() -> None:
        try:
            _write(Path(folder), rank)
        except OSError as problem:
            print(f"rank {rank}: no flight-recorder dump: {problem}", file=sys.stderr, flush=True)

    def watch() -> None:
        seen, since_s, written = start, time.monotonic(), False
        while not left.wait(min(after_s / 10, 5.0)):
            now = flight_progress()
            if now != seen:
                seen, since_s, written = now, time.monotonic(), False
            elif not written and time.monotonic() - since_s >= after_s:
                write()
                written = True

    watcher = threading.Thread(target=watch, name="dump_when_stuck", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()
        write()


def _write(folder: Path, rank: int) -> Path:
    from .runtime.torch_private import flight_dump

    folder.mkdir(parents=True, exist_ok=True)
    path, unfinished = folder / f"rank{rank}", folder / f".rank{rank}.{os.getpid()}.part"
    try:
        unfinished.write_bytes(pickle.dumps(flight_dump(), protocol=2))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


# -- reading ----------------------------------------------------------------------------------------


class DumpError(ValueError):
    """A file or folder holds no flight-recorder dump that can be read; the text is one line that names it."""


@dataclass(frozen=True)
class Call:
    """One collective, as one rank issued it."""

    group: str  # name of the process group: "0" is the default group
    backend: str  # "gloo", "nccl", …: a group may have several, and each counts for itself
    number: int  # collective_seq_id: counts the collectives of the group, from 1
    record: int  # counts all that the rank issued, from 0
    operation: str  # "all_reduce", "broadcast", …
    inputs: tuple[tuple[int, ...], ...]  # the shape of each tensor that goes in
    outputs: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]  # "Float", "Long", …
    output_dtypes: tuple[str, ...]
    state: str  # "scheduled", "started" or "completed"; on gloo it stays "scheduled"
    created_ns: int  # on the clock of the rank's host
    place: str  # the line of the program, "train.py:31 in log_loss"; "" if the recorder kept no frames

    def __str__(self) -> str:
        """``all_reduce of 1000 Float at train.py:31 in log_loss``."""
        sizes, dtypes = (self.inputs, self.input_dtypes) if self.inputs else (self.outputs, self.output_dtypes)
        shown = ", ".join(_size(size) for size in sizes[:3]) + (f" and {len(sizes) - 3} more" if len(sizes) > 3 else "")
        what = f" of {shown} {'/'.join(dict.fromkeys(dtypes))}".rstrip() if sizes else ""
        return f"{self.operation}{what}" + (f" at {self.place}" if self.place else "")

    def signature(self) -> tuple[object, ...]:
        """All that must be equal on the ranks of the group: operation, numbers of elements, dtypes.

        Shapes may differ where their number of elements does not. What only the root has (the input of a scatter, the
        output of a gather), and the shares of an all-to-all, are left out.
        """
        lone = re.sub(r"^_|_base$", "", self.operation)
        shares = lone.startswith(("all_to_all", "alltoall"))
        into = () if shares or lone == "scatter" else (_elements(self.inputs), self.input_dtypes)
        out = () if shares or lone == "gather" else (_elements(self.outputs), self.output_dtypes)
        return (self.operation, into, out)


@dataclass(frozen=True)
class Dump:
    """What the flight recorder of one rank held."""

    rank: int
    path: Path
    version: str
    members: dict[str, tuple[int, ...]]  # ranks of each group, as far as the dump tells
    names: dict[str, str]  # what each group is called: "default_pg", …; "undefined" where nobody gave it a name
    calls: tuple[Call, ...]  # oldest first; messages (send, recv) are left out
    lost: int  # entries that the ring buffer has overwritten


def read_dumps(folder: str | Path) -> list[Dump]:
    """Read the dumps of all ranks, in rank order.

    Args:
        folder: a folder of files whose names end in the rank (``rank0``, ``nccl_trace_rank_12``, ``rank3.pickle``);
            or the prefix that NCCL was given, ``/tmp/run7_rank_``. Other files are passed over.

    Raises:
        DumpError: the folder has no such files, or two for one rank, or one of them is no dump, is cut off, is of
            another version, or holds anything but plain data.
    """
    folder = Path(folder)
    if folder.is_dir():
        prefix, where = "", folder
    elif folder.parent.is_dir() and folder.name and not folder.exists():
        prefix, where = folder.name, folder.parent
    else:
        problem = "is a file: name the folder that holds the dumps" if folder.exists() else "does not exist"
        raise DumpError(f"{folder} {problem}")
    found: dict[int, Path] = {}
    try:
        for path in sorted(where.iterdir()):
            name = re.fullmatch(r"(?!\.)(.*?)(\d{1,7})(\.pickle|\.pkl)?", path.name, re.ASCII | re.DOTALL)
            if name and name[1].startswith(prefix) and path.is_file():
                if other := found.get(int(name[2])):
                    raise DumpError(f"{where} has two dumps of rank {int(name[2])}, {other.name} and {path.name}")
                found[int(name[2])] = path
    except OSError as problem:
        raise DumpError(f"{where} cannot be read: {problem.strerror}") from None
    if not found:
        raise DumpError(f"{folder} holds no dump: a dump is a file whose name ends in its rank, such as rank0")
    return [_read(path, rank) for rank, path in sorted(found.items())]


# The pickle opcodes that plain data is made of. None of them can name a class, call a function or reach outside.
_PLAIN = set(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
        BINUNICODE SHORT_BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8
        EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
        BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE
        """,
    )
)


class _PlainUnpickler(pickle.Unpickler):
    """A second lock: the opcodes that would come here have been refused already."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it names a persistent object")


def _read(path: Path, rank: int) -> Dump:
    def bad(why: str) -> DumpError:
        return DumpError(f"{path} is not a flight-recorder dump that can be read: {why}")

    try:
        with path.open("rb") as file:
            start = file.read(2)
            if len(start) < 2 or start[0] != 0x80 or start[1] > 5:
                raise bad("it is empty" if not start else "it is no pickle")
            data = start + file.read()
    except OSError as problem:
        raise bad(problem.strerror or "it cannot be opened") from None
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name not in _PLAIN:
                raise bad(f"it holds more than plain data ({opcode.name}), and could run code")
            if opcode.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
                raise bad("it is damaged")  # a memo that large would take all memory
        content = _PlainUnpickler(io.BytesIO(data)).load()
    except DumpError:
        raise
    except Exception:  # genops and load raise nearly anything on junk
        raise bad("it is damaged or cut off") from None
    if not isinstance(content, dict) or "version" not in content:
        raise bad("it has no version")
    version = content["version"]
    if not isinstance(version, str) or not version.startswith("2."):
        other = version[:20] if isinstance(version, str) else type(version).__name__
        raise bad(f"its format is version {other!r}, and this reads version 2")
    if not isinstance(content.get("entries"), list):
        raise bad("it has no entries; was it written without collectives?")
    try:
        calls = [_call(entry, order) for order, entry in enumerate(content["entries"]) if not entry["is_p2p"]]
        records = [entry["record_id"] for entry in content["entries"]]
        members, names = _groups(content.get("pg_config", {}))
        names = {_text(name): _text(text) for name, text in (e["process_group"] for e in content["entries"])} | names
        lost = int(min(records, default=0))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise bad(f"an entry has an unknown form ({type(problem).__name__}: {str(problem)[:60]})") from None
    return Dump(rank, path, version, members, names, tuple(calls), lost)


def _call(entry: dict[str, Any], order: int) -> Call:
    backend, _, operation = _text(entry["profiling_name"]).rpartition(":")
    return Call(
        group=_text(entry["process_group"][0]),
        backend=backend,
        number=int(entry["collective_seq_id"]),
        record=order,
        operation=operation,
        inputs=_shapes(entry["input_sizes"]),
        outputs=_shapes(entry["output_sizes"]),
        input_dtypes=tuple(_text(dtype) for dtype in entry["input_dtypes"]),
        output_dtypes=tuple(_text(dtype) for dtype in entry["output_dtypes"]),
        state=_text(entry["state"]),
        created_ns=int(entry["time_created_ns"]),
        place=_place(entry.get("frames", [])),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a text")
    return "".join(sign if sign.isprintable() else "?" for sign in value[:500])


def _shapes(sizes: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in size) for size in sizes)


_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<")
_TORCH = re.compile(r"[/\\]torch[/\\]")


def _place(frames: list[dict[str, Any]]) -> str:
    """The innermost line of the program; if all lines are those of libraries, the innermost outside torch."""
    for library in (_LIBRARY, _TORCH):
        for frame in frames:  # innermost first
            file = _text(frame["filename"])
            if file and not library.search(file):
                name = file.replace("\\", "/").rpartition("/")[2]
                return f"{name}:{int(frame['line'])} in {_text(frame['name'])}"
    return ""


def _groups(config: dict[str, dict[str, str]]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    members, names = {}, {}
    for name, group in config.items():
        names[_text(name)] = _text(group["desc"])
        ranks = group["ranks"]  # a text, "[0, 1, 2]"
        if not isinstance(ranks, str):
            raise TypeError(f"{type(ranks).__name__} in place of the ranks of a group")
        if found := re.findall(r"\d{1,9}", ranks):  # where gloo left them out, they are not known
            members[_text(name)] = tuple(map(int, found))
    return members, names


# -- comparing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Camp:
    """Ranks that did the same at the place where the ranks part."""

    ranks: tuple[int, ...]
    call: Call | None  # what they issued there, the lowest rank's; None: nothing, or no longer recorded
    issued: bool  # False: they never issued a collective of that number
    last: Call | None  # what the lowest of these ranks issued last, in any group


@dataclass(frozen=True)
class Parting:
    """The first collective of a group that is not the same on all ranks.

    ``kind``: "mismatch" (they issued different ones), "missing" (some ranks never issued one) or "lines" (the same
    one, from different lines of the program).
    """

    kind: str
    group: str
    name: str  # the group's description, "default_pg", or ""
    number: int
    differs: tuple[str, ...]  # of a mismatch: "operation", "sizes", "dtypes"
    camps: tuple[Camp, ...]  # the most ranks first
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that part from the others: the fewer ones, or all where no side is larger.

        Whether they are the ones at fault only the program can tell.
        """
        sides = [camp.ranks for camp in self.camps]
        if self.kind == "missing":
            absent = self._absent()
            sides = [absent, tuple(rank for ranks in sides for rank in ranks if rank not in absent)]
        sides.sort(key=len)
        apart = sides[:-1] if len(sides[-1]) > len(sides[-2]) else sides
        return tuple(sorted(rank for ranks in apart for rank in ranks))

    def __str__(self) -> str:
        """A headline, a line for each camp, and notes."""
        group = f"group {self.group}" + (f" ({self.name})" if self.name else "")
        place = f"collective {self.number} of {group}"
        if self.kind == "missing":
            head = f"The ranks part at {place}: {ranks_text(self._absent())} never issued it."
        elif self.kind == "mismatch":
            head = f"The ranks part at {place}: they differ in {' and '.join(self.differs)}."
        else:
            head = f"The ranks issue {place} from different lines."
        lines = [head] + [f"  {ranks_text(camp.ranks)}: {_did(camp, self)}" for camp in self.camps]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _absent(self) -> tuple[int, ...]:
        return tuple(sorted(rank for camp in self.camps if not camp.issued for rank in camp.ranks))


def compare(dumps: Sequence[Dump]) -> Parting | None:
    """Return the first place where the ranks part, or None if all issued the same collectives as far as dumps tell.

    The collectives of each group are aligned by their number. Where several groups part, the one whose collective was
    issued first, by the ranks' clocks, is returned: the others may follow from it.
    """
    partings = [parting for lane in _lanes(dumps) if (parting := lane.part())]
    return min(partings, key=lambda parting: (_issued_ns(parting), parting.kind), default=None)


def compare_lines(dumps: Sequence[Dump]) -> Parting | None:
    """Return the first collective that is the same on all ranks, but not issued from the same line of the program.

    Two collectives of one size, in swapped order, raise nothing and wait for nobody: their lines alone tell. But a
    program may have good reason for two lines, such as the two sides of ``if rank == 0``.
    """
    partings = [parting for lane in _lanes(dumps) if (parting := lane.part_in_lines())]
    return min(partings, key=_issued_ns, default=None)


def without_dump(dumps: Sequence[Dump]) -> tuple[int, ...]:
    """Return the ranks that belong to a group and have no dump; they died, or nobody collected their file."""
    known = {rank for dump in dumps for ranks in dump.members.values() for rank in ranks}
    highest = max((dump.rank for dump in dumps), default=-1)
    return tuple(sorted((known | set(range(highest + 1))) - {dump.rank for dump in dumps}))


@dataclass
class _Lane:
    """The collectives of one group and backend on all its ranks, side by side."""

    group: str
    name: str
    dumps: dict[int, Dump]  # of the members
    table: dict[int, dict[int, tuple[Call, ...]]] = field(default_factory=dict)  # rank → number → calls

    def last(self, rank: int) -> int:
        return max(self.table[rank], default=0)

    def common(self) -> range:
        """The numbers that no rank lacks, neither overwritten nor not issued yet."""
        first = max(min(numbers, default=1) for numbers in self.table.values())
        return range(first, min(map(self.last, self.table)) + 1)

    def part(self) -> Parting | None:
        for number in self.common():
            if len(camps := self._camps(number, _signature)) > 1:
                return self._parting("mismatch", number, camps, _signature)
        least, most = min(map(self.last, self.table)), max(map(self.last, self.table))
        if least == most:
            return None
        behind = [rank for rank in self.table if self.last(rank) == least]
        there = [rank for rank in self.table if self.last(rank) > least]
        held = [rank for rank in there if least + 1 in self.table[rank]]
        camps = self._camps(least + 1, _signature, held)
        gone = [rank for rank in there if rank not in held]
        return self._parting("missing", least + 1, [*camps, *([gone] if gone else []), behind], _signature)

    def part_in_lines(self) -> Parting | None:
        for number in self.common():
            if len(self._camps(number, _signature)) > 1:
                return None  # from here on the numbers mean different things
            places = {rank: _lines(self.table[rank][number]) for rank in self.table}
            if all(places.values()) and len(camps := self._camps(number, _lines)) > 1:
                return self._parting("lines", number, camps, _lines)
        return None

    def _camps(
        self, number: int, key: Callable[[tuple[Call, ...]], object], ranks: Sequence[int] | None = None
    ) -> list[list[int]]:
        camps: dict[object, list[int]] = {}
        for rank in self.table if ranks is None else ranks:
            camps.setdefault(key(self.table[rank][number]), []).append(rank)
        return list(camps.values())

    def _parting(
        self, kind: str, number: int, camps: list[list[int]], key: Callable[[tuple[Call, ...]], object]
    ) -> Parting:
        sides = []
        for ranks in camps:
            lowest = min(ranks)
            calls = self.table[lowest].get(number)
            last = self.dumps[lowest].calls[-1] if self.dumps[lowest].calls else None
            issued = self.last(lowest) >= number
            sides.append(Camp(tuple(sorted(ranks)), calls[0] if calls else None, issued, last))
        sides.sort(key=lambda camp: (-len(camp.ranks), camp.ranks))
        differs = _differs([camp.call for camp in sides if camp.call]) if kind == "mismatch" else ()
        notes = self._order(number, sides, key) if kind != "missing" else []
        return Parting(kind, self.group, self.name, number, differs, tuple(sides), tuple(notes))

    def _order(self, number: int, camps: list[Camp], key: Callable[[tuple[Call, ...]], object]) -> list[str]:
        """Does what one camp issues here appear later in the other? Then it is the order that differs."""
        most = self.table[camps[0].ranks[0]]
        notes = []
        for camp in camps[1:]:
            own, who, others = self.table[camp.ranks[0]], ranks_text(camp.ranks), ranks_text(camps[0].ranks)
            here, there = key(own[number]), key(most[number])
            theirs = next((n for n in range(number + 1, number + 9) if n in most and key(most[n]) == here), None)
            later = next((n for n in range(number + 1, number + 9) if n in own and key(own[n]) == there), None)
            if theirs and later:
                notes.append(
                    f"the order is swapped: {who} issued as {later} what {others} issued as {number}, "
                    f"and as {number} what {others} issued as {theirs}"
                )
            elif theirs:
                notes.append(f"{who} issued as {number} what {others} issued as {theirs}: something is left out before")
            elif later:
                notes.append(f"{others} issued as {number} what {who} issued as {later}: something was added before")
        return notes


def _lanes(dumps: Sequence[Dump]) -> list[_Lane]:
    by_rank = {dump.rank: dump for dump in dumps}
    members: dict[str, set[int]] = {}
    for dump in dumps:
        for group, told in dump.members.items():
            members.setdefault(group, set()).update(told)
    lanes = []
    for group, backend in sorted({(call.group, call.backend) for dump in dumps for call in dump.calls}):
        names = {dump.names[group] for dump in dumps if group in dump.names} - {"", "undefined"}
        name = min(names, default="")
        calls: dict[int, list[Call]] = {
            rank: [call for call in dump.calls if (call.group, call.backend) == (group, backend)]
            for rank, dump in by_rank.items()
        }
        # A dump of gloo's that torch wrote does not tell the members: then they are the ranks that were seen.
        belong = members.get(group) or (set(by_rank) if name == "default_pg" else {r for r in calls if calls[r]})
        # A rank whose buffer is overwritten and holds nothing of this group may have issued any number.
        ranks = [rank for rank in sorted(belong & set(by_rank)) if calls[rank] or not by_rank[rank].lost]
        lane = _Lane(group, name, {rank: by_rank[rank] for rank in ranks})
        for rank in ranks:
            numbers: dict[int, tuple[Call, ...]] = {}
            for call in calls[rank]:
                numbers[call.number] = (*numbers.get(call.number, ()), call)  # several, if coalesced
            lane.table[rank] = numbers
        if len(ranks) > 1:
            lanes.append(lane)
    return lanes


def _signature(calls: tuple[Call, ...]) -> object:
    return tuple(call.signature() for call in calls)


def _lines(calls: tuple[Call, ...]) -> object:
    return tuple(call.place for call in calls if call.place)


def _differs(calls: list[Call]) -> tuple[str, ...]:
    if len({call.operation for call in calls}) > 1:
        return ("operation",)
    sizes = {(_elements(call.inputs), _elements(call.outputs)) for call in calls}
    dtypes = {(call.input_dtypes, call.output_dtypes) for call in calls}
    return (("sizes",) if len(sizes) > 1 else ()) + (("dtypes",) if len(dtypes) > 1 else ()) or ("what they coalesce",)


def _issued_ns(parting: Parting) -> int:
    return min((camp.call.created_ns for camp in parting.camps if camp.call), default=0)


def _did(camp: Camp, parting: Parting) -> str:
    last = camp.last
    if camp.call is not None:
        went_on = last is not None and last.record > camp.call.record
        return str(camp.call) + (f"; the last was {_numbered(last, parting)}" if went_on and last else "")
    if camp.issued:
        return "issued it, but the recorder has overwritten what it was"
    return f"never issued it; the last was {_numbered(last, parting)}" if last else "never issued a collective"


def _numbered(call: Call, parting: Parting) -> str:
    group = "" if call.group == parting.group else f" of group {call.group}"
    return f"{call.number}{group}: {call}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0–6, 9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}{'–' if len(run) > 2 else ', '}{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}"


def _size(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size)) if size else "1"


def _elements(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in shapes)
