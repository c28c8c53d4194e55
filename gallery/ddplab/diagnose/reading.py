"""Log files: which ones, which rank each is of, and their text in pieces."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path

from ..errors import BadInput
from .encoding import encoding_of
from .tables import limits, patterns

CHUNK_BYTES = 1 << 20


def ranks_of(paths: Sequence[str]) -> list[int | None]:
    """The rank that each file is of, by its name: ``…/attempt_0/3/stderr.log``, ``rank3.log``, ``out_3.txt``."""
    ranks: list[int | None] = []
    for path in paths:
        found = patterns.folder_rank.search(path) or patterns.file_rank.search(path)
        ranks.append(int(found[1]) if found else None)
    if len(paths) > 1 and all(rank is None for rank in ranks):
        forms = [patterns.file_number.search(path) for path in paths]
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
            found = [p for p in found if p.suffix not in (".pickle", ".pt", ".pth", ".npy", ".py")]
            found = [p for p in found if p.suffix != ".json"] or found  # the error files of torchrun say it again
            if not found:
                raise BadInput(f"{path} holds no log file; give the folder that torchrun --log-dir made")
            files += sorted(found, key=_with_numbers)
        elif path.exists():
            files.append(path)
        else:
            raise BadInput(f"{path} does not exist; give a log file, a folder of logs, or - for standard input")
    return files


def _with_numbers(path: Path) -> list[str | int]:
    """A sort key that puts rank 2 before rank 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def read_text(stream: BufferedReader, name: str) -> Iterator[str]:
    """The text of a log in pieces: utf-8 (what is not is replaced), UTF-16, gzip of either.

    Raises:
        BadInput: it is not text; the message says what it is.
    """
    is_gzip = stream.peek(2)[:2] == b"\x1f\x8b"
    decoder: codecs.IncrementalDecoder | None = None
    zeros = 0
    for chunk in _chunks(gzip.GzipFile(fileobj=stream) if is_gzip else stream):
        if decoder is None:
            if not is_gzip and not chunk.strip(b"\0"):  # a log that was emptied begins so, as long as it was
                zeros += len(chunk)
                if zeros > limits.zeros and _may_be_endless(stream):
                    raise BadInput(f"{name} is no log: it begins with {zeros >> 20} MiB of zeros; give a file of text")
                continue
            decoder = codecs.getincrementaldecoder(encoding_of(chunk, name))("replace")
        yield decoder.decode(chunk)
    if decoder is not None:
        yield decoder.decode(b"", True)
    elif is_gzip:
        raise BadInput(f"{name} is an empty or damaged gzip file; unpack it yourself and give the text")


def _may_be_endless(stream: BufferedReader) -> bool:
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False  # not a file of the system


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
    except KeyboardInterrupt:
        if parts:
            yield b"".join(parts)
        raise
    if parts:
        yield b"".join(parts)
