"""What a line of a log says about itself before its message: which rank, when, how loud.

`handbook/_static/diagnose.js` does the same; a test compares the two.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

from ..errors import BadInput

CHUNK_BYTES = 1 << 20
PREFIX_CHARS = 400  # a line's prefixes are looked for this far

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WARNS = re.compile(r"(?:[A-Za-z]*Warning: |\bWARNING\b|\[WARN(?:ING)?\])")

# A message in the midst of a line, behind a progress bar that had not ended its own
_GLUED = re.compile(r"\[rank(\d{1,6})\]:|\.cpp:\d{1,6}\] \[(?:PG [^\]]{0,120})?Rank (\d{1,6})\]", re.ASCII)

# What may stand before a message, tried in this order and taken off until none fits.
_PREFIXES = [
    (kind, re.compile(source, re.ASCII))
    for kind, source in (
        ("rank", r"\[[Rr]ank[ :=]{0,2}(\d{1,6})\]:? ?"),  # torch says the rank
        ("rank", r"\[PG [^\]]{0,120}Rank (\d{1,6})\] ?"),
        (
            "glog",
            r"\[?([IWEF])(?:(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?"
            r"(?: +\d+)? +[\w./<>+-]{1,200}:\d+\] ?",
        ),
        (
            "iso",
            r"[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?[\])]?,?"
            r"(?: - | \| |: |\s)",
        ),
        ("syslog", r"(" + "|".join(_MONTHS) + r") {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) \S{1,80} \S{1,80}: "),
        ("skip", r"\[pod/[^\]]{1,200}\] "),
        ("skip", r"\[\d{1,8}\] (?=\[rank)"),
        ("skip", r"[A-Za-z0-9][\w.-]*-\d+ +\| ?"),  # docker compose
        ("label", r"[\w.-]{1,80}:\d{1,9}:\d{1,9} \[(\d{1,3})\] (?=.{0,80}NCCL )"),
        ("label", r"\[(?:default|trainer|worker|proc|process|local_rank)?_?(\d{1,5})\]: ?"),  # torchrun --tee
        ("label", r" {0,4}(\d{1,5}): "),  # srun --label
        ("label", r"\[\d{1,5},(\d{1,5})\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    )
]


@dataclass(frozen=True, slots=True)
class Time:
    """A moment; two are comparable if both know their zone or neither does."""

    zoned: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line, read. ``text`` has no colours; ``body`` has no prefixes either."""

    text: str
    body: str
    rank: int | None
    strong: bool  # torch said the rank, not the launcher
    time: Time | None
    warning: bool
    logged: bool  # it begins with a time or a level


def read_line(raw: str) -> Line:
    """Take a line apart."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if text[:1] == "\r":
        text = text[1:]
    front = text[:PREFIX_CHARS]
    at, rank, strong, time, level = 0, None, False, None, ""
    for _ in range(8):
        kind, found = next(((k, m) for k, p in _PREFIXES if (m := p.match(front, at))), ("", None))
        if found is None:
            break
        at = found.end()
        if kind == "rank":
            rank, strong = int(found[1]), True
        elif kind == "label":
            rank = int(found[1]) if rank is None else rank
        elif kind == "iso":
            time = time or _iso(found)
        elif kind == "syslog":
            time = time or _local(str(_MONTHS.index(found[1]) + 1), found[2], found[3], found[4], found[5], "")
        elif kind == "glog":
            level = found[1]
            time = time or (_local(found[2], found[3], found[4], found[5], found[6], found[7]) if found[2] else None)
    if rank is None and (glued := _GLUED.search(front, at)):
        rank, strong = int(glued[1] or glued[2]), True
    warning = level == "W" or (level == "" and bool(_WARNS.search(front)))
    return Line(text, text[at:], rank, strong, time, warning, time is not None or level != "")


def _seconds(hour: str, minute: str, second: str, fraction: str | None) -> float:
    return int(hour) * 3600 + int(minute) * 60 + int(second) + (float(f"0.{fraction}") if fraction else 0.0)


def _local(month: str, day: str, hour: str, minute: str, second: str, fraction: str | None) -> Time:
    """A moment without year and zone, as glog and syslog write it."""
    return Time(False, (int(month) * 31 + int(day)) * 86400 + _seconds(hour, minute, second, fraction))


def _iso(found: re.Match[str]) -> Time | None:
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if not zone:
        return _local(month, day, hour, minute, second, fraction)
    try:
        midnight = datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()
    except ValueError:
        return None
    offset = 0
    if zone != "Z":
        offset = (int(zone[1:3]) * 60 + int(zone[-2:])) * 60 * (1 if zone[0] == "+" else -1)
    return Time(True, midnight + _seconds(hour, minute, second, fraction) - offset)


def summary_time(text: str) -> Time | None:
    """The time of torchrun's summary, such as ``2026-11-21_20:25:10``."""
    found = next(pattern for kind, pattern in _PREFIXES if kind == "iso").match(text.strip() + " ")
    return _iso(found) if found else None


# -- files --------------------------------------------------------------------------------------------


def ranks_of(paths: Sequence[str]) -> list[int | None]:
    """The rank that each file is of, by its name: ``…/attempt_0/3/stderr.log``, ``rank3.log``, ``out_3.txt``."""
    ranks: list[int | None] = []
    for path in paths:
        found = re.search(r"attempt_\d+/(\d{1,6})/[^/]+$", path, re.ASCII) or re.search(
            r"rank[_.-]?(\d{1,6})(?!.*rank[_.-]?\d)", path, re.ASCII | re.IGNORECASE
        )
        ranks.append(int(found[1]) if found else None)
    if len(paths) > 1 and all(rank is None for rank in ranks):
        forms = [re.fullmatch(r"(.*?)(\d{1,6})(\D*)", path, re.ASCII) for path in paths]
        if all(forms) and len({(form[1], form[3]) for form in forms if form}) == 1:
            numbers = [int(form[2]) for form in forms if form]
            if len(set(numbers)) == len(numbers) and max(numbers) < 2 * len(numbers):
                return list(numbers)
    return ranks


def log_files(given: Sequence[Path]) -> list[Path]:
    """The files to read: a folder stands for the files in it.

    Raises:
        BadInput: a path is missing, or a folder has no file.
    """
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
            found = [p for p in found if p.suffix not in (".json", ".pickle", ".pt", ".pth", ".npy", ".py")]
            if not found:
                raise BadInput(f"{path} holds no log file; give the folder that torchrun --log-dir made")
            files += sorted(found, key=lambda p: [int(s) if s.isdecimal() else s for s in _parts(str(p))])
        elif path.exists():
            files.append(path)
        else:
            raise BadInput(f"{path} does not exist; give a log file, a folder of logs, or - for standard input")
    return files


def _parts(text: str) -> list[str]:
    return re.split(r"(\d+)", text)


def read_text(stream: BufferedReader, name: str) -> Iterator[str]:
    """The text of a log in pieces: utf-8 (what is not is replaced), UTF-16 with its mark, gzip of either.

    Raises:
        BadInput: it is not text.
    """
    packed = stream.peek(2)[:2] == b"\x1f\x8b"
    decoder: codecs.IncrementalDecoder | None = None
    for chunk in _chunks(gzip.GzipFile(fileobj=stream) if packed else stream):
        if decoder is None:
            wide = chunk[:2] in (b"\xff\xfe", b"\xfe\xff")
            if not wide and is_binary(chunk):
                hint = "; for the dumps of the flight recorder: ddplab diagnose --dump DIR"
                raise BadInput(f"{name} is not a text log, it holds binary data{hint}")
            decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace")
        yield decoder.decode(chunk)
    if decoder is not None:
        yield decoder.decode(b"", True)
    elif packed:
        raise BadInput(f"{name} is an empty or damaged gzip file; unpack it by hand and give the text")


def _chunks(source: BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """Pieces of a useful size; of a packed log that was cut off while it was copied, all that can be had."""
    parts, size = [], 0
    try:
        while part := source.read1(CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    except (EOFError, gzip.BadGzipFile, zlib.error):
        pass
    if parts:
        yield b"".join(parts)


def is_binary(chunk: bytes) -> bool:
    """Whether more than a twentieth of the first bytes are control characters; logs may hold a few.

    Long runs of zeros do not count: a log that was emptied while a process wrote on has them.
    """
    head = re.sub(rb"\0{16,}", b"", chunk[:65536])
    odd = len(head) - len(head.translate(None, bytes(b for b in range(32) if b not in b"\t\n\r\b\f\x1b")))
    return odd * 20 > len(head) and odd >= 2
