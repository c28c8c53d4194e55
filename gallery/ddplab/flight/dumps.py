"""Read flight-recorder dumps: which collectives a rank issued, with what, and from which line.

The format is that of ``torch/csrc/distributed/c10d/FlightRecorder.hpp``, version 2 (2.10 in torch 2.13), which NCCL's
watchdog writes to ``$TORCH_FR_DUMP_TEMP_FILE<rank>`` (before: ``$TORCH_NCCL_DEBUG_INFO_TEMP_FILE<rank>``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plain_pickle import load_plain


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
        into = () if shares or lone == "scatter" else (elements(self.inputs), self.input_dtypes)
        out = () if shares or lone == "gather" else (elements(self.outputs), self.output_dtypes)
        return (self.operation, into, out)


@dataclass(frozen=True)
class Dump:
    """What the flight recorder of one rank held."""

    rank: int
    path: Path
    version: str
    members: dict[str, tuple[int, ...]]  # ranks of each group, as far as the dump names them
    names: dict[str, str]  # what each group is called: "default_pg", …; "undefined" where nobody gave it a name
    calls: tuple[Call, ...]  # oldest first; messages (send, recv) are left out
    overwritten: int  # entries that the ring buffer no longer has


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
        missing = f"there is no folder {folder}, and no file {folder}0" if prefix else f"{folder} holds no dump"
        raise DumpError(f"{missing}: a dump is a file whose name ends in its rank, such as rank0")
    return [_read(path, rank) for rank, path in sorted(found.items())]


def _read(path: Path, rank: int) -> Dump:
    try:
        content = load_plain(path)
        version = content.get("version") if isinstance(content, dict) else None
        if version is None:
            raise ValueError("it has no version")
        if not isinstance(version, str) or not version.startswith("2."):
            other = version[:20] if isinstance(version, str) else type(version).__name__
            raise ValueError(f"its format is version {other!r}, and this reads version 2")
        entries = content.get("entries")
        if not isinstance(entries, list):
            raise ValueError("it has no entries; was it written without collectives?")
        try:
            return _dump(path, rank, version, entries, content.get("pg_config", {}))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
            detail = f"{type(problem).__name__}: {str(problem)[:60]}"
            raise ValueError(f"an entry has an unknown form ({detail})") from None
    except ValueError as problem:
        raise DumpError(f"{path} is not a flight-recorder dump that can be read: {problem}") from None


def _dump(path: Path, rank: int, version: str, entries: list[Any], config: dict[str, Any]) -> Dump:
    calls = [_call(entry, order) for order, entry in enumerate(entries) if not entry["is_p2p"]]
    overwritten = int(min((entry["record_id"] for entry in entries), default=0))
    members, names = _groups(config)
    names = {_text(name): _text(text) for name, text in (entry["process_group"] for entry in entries)} | names
    return Dump(rank, path, version, members, names, tuple(calls), overwritten)


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


def _size(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size)) if size else "1"


def elements(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The number of elements of each shape."""
    return tuple(math.prod(shape) for shape in shapes)
