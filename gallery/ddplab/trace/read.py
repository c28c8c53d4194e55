"""Read a trace that ``torch.profiler`` exported: the steps, what computed, and every collective.

The events are read one at a time (ijson), so that memory does not grow with the file; where ijson is missing, a file
of up to 64 MiB is read whole. Names and arguments are those of
kineto's Chrome traces, seen in files of torch 1.13 to 2.13: a kernel of NCCL is called ``nccl…Kernel…`` or
``ncclDevKernel_…`` and, from torch 2.3 on, says "Collective name", "In msg nelems", "dtype" and "Group size".
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

try:
    import ijson
except ModuleNotFoundError:  # a machine that cannot install it: small traces are read all the same
    ijson = None

from ..errors import BadInput
from .spans import Growing, Span

ELEMENT_BYTES = {  # torch's names of dtypes in traces (c10::ScalarType)
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)")
_GLOO = re.compile(r"gloo:(\w+)")
_NO_JSON = (ValueError, RecursionError, *([ijson.JSONError] if ijson else []))
_MOST_WITHOUT_IJSON = 64 << 20  # bytes of JSON; in memory it takes some ten times as much
_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class Collective:
    """One collective of one rank: on a GPU the time of its kernel, which waits for the other ranks too."""

    name: str  # "allreduce", "broadcast", "sendrecv", …
    start_s: float
    end_s: float
    launched_s: float  # when the host launched it; its start where the trace does not say
    elements: int | None  # of one rank's input
    dtype: str
    ranks: int  # in its group
    group: str
    stream: str

    @property
    def nbytes(self) -> int | None:
        """Bytes of one rank's input; None if the trace does not say."""
        size = ELEMENT_BYTES.get(self.dtype)
        return None if size is None or self.elements is None else size * self.elements

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.end_s - self.start_s


@dataclass
class Trace:
    """What one rank's trace holds; times in seconds from its first step, or its first event."""

    path: Path
    rank: int | None = None
    world_size: int | None = None
    device: str = ""  # of rank 0's list: the name of the GPU; empty on a CPU
    nccl: str = ""
    steps: list[Span] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)  # in the order of their starts
    compute: list[Span] = field(
        default_factory=list
    )  # kernels and copies that are not NCCL's; on a CPU, torch's operators
    streams: dict[str, int] = field(default_factory=dict)  # GPU stream: kernels that were not NCCL's
    on_gpu: bool = False


def read_trace(path: str | Path) -> Trace:
    """Read one file, ``.json`` or ``.json.gz``.

    Raises:
        BadInput: it cannot be read, is no trace, or ends in the middle.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            return _Reader(path).read(cast("IO[bytes]", file))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except (*_NO_JSON, zlib.error, EOFError) as error:
        if isinstance(error, EOFError) or _is_cut_off(error):
            raise BadInput(f"{path} ends in the middle of the trace; was the job ended while it wrote?") from None
        raise BadInput(f"{path} is not a trace of torch.profiler: it holds no JSON") from None


def _is_cut_off(error: Exception) -> bool:
    """Whether the JSON ends too early: yajl, ijson's own parser and Python's each say it in their words."""
    if isinstance(error, json.JSONDecodeError):
        return error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
    return bool(re.search("premature|incomplete", str(error), re.IGNORECASE))


class _Reader:
    """One pass over the events; what is put together from several of them waits in here."""

    def __init__(self, path: Path) -> None:
        self.trace = Trace(path)
        self.kernels: list[dict[str, Any]] = []
        self.on_host: list[dict[str, Any]] = []  # gloo's spans
        self.calls: list[dict[str, Any]] = []  # what was asked of the process group, with sizes
        self.launches: dict[int, float] = {}
        self.gpu, self.cpu = Growing(), Growing()
        self.zero_us: float | None = None  # time stamps may count from 1970: seconds would lose what is below 0.2 µs

    def read(self, file: IO[bytes]) -> Trace:
        """Read the head up to the list of events, then the events."""
        for event in self._events(file) if ijson else self._events_at_once(file):
            if isinstance(event, dict) and event.get("ph") == "X" and _is_sound(event):
                self._take(event)
        return self._finished()

    def _events(self, file: IO[bytes]) -> Iterator[Any]:
        prefix = self._read_head(ijson.parse(file, use_float=True))
        file.seek(0)
        yield from ijson.items(file, f"{prefix}.item" if prefix else "item", use_float=True)

    def _events_at_once(self, file: IO[bytes]) -> Iterator[Any]:
        """The same without ijson: its pieces of the head are made from the whole."""
        text = file.read(_MOST_WITHOUT_IJSON + 1)
        if len(text) > _MOST_WITHOUT_IJSON:
            most = f"{_MOST_WITHOUT_IJSON >> 20} MiB"
            raise BadInput(f"{self.trace.path} holds more than {most} of JSON; install ijson to read it")
        whole = json.loads(text)
        if not isinstance(whole, dict):
            whole = {"traceEvents": whole}
        job, cards, events = (whole.get(name) for name in ("distributedInfo", "deviceProperties", "traceEvents"))
        head = [
            (f"distributedInfo.{name}", "", value) for name, value in (job if isinstance(job, dict) else {}).items()
        ]
        named = [one for one in (cards if isinstance(cards, list) else ()) if isinstance(one, dict) and "name" in one]
        head += [("deviceProperties.item.name", "", one["name"]) for one in named]
        if isinstance(events, list):
            head.append(("traceEvents", "", None))
        self._read_head(head)
        yield from events or ()

    def _read_head(self, pieces: Iterable[tuple[str, str, Any]]) -> str:
        for prefix, kind, value in pieces:
            if prefix == "traceEvents" or (prefix == "" and kind == "start_array"):
                return "traceEvents" if prefix else ""
            match prefix:
                case "distributedInfo.rank" if isinstance(value, int):
                    self.trace.rank = value
                case "distributedInfo.world_size" if isinstance(value, int):
                    self.trace.world_size = value
                case "distributedInfo.nccl_version":
                    self.trace.nccl = str(value)
                case "deviceProperties.item.name" if not self.trace.device:
                    self.trace.device = str(value)
        raise BadInput(f"{self.trace.path} is not a trace of torch.profiler: it has no list 'traceEvents'")

    def _take(self, event: dict[str, Any]) -> None:
        name, category, span = event["name"], event["cat"], self._span(event)
        event.setdefault("args", {})
        if category in _ON_GPU:
            if category == "kernel" and _NCCL.match(name):
                self.kernels.append(event)
            else:
                self.gpu.add(span)
                stream = str(event["args"].get("stream", "?"))
                self.trace.streams[stream] = self.trace.streams.get(stream, 0) + 1
        elif category in ("cuda_runtime", "cuda_driver"):  # NCCL launches its kernels by either
            number = _whole(event["args"].get("correlation"))
            if number and "Launch" in name:  # 0 is none
                self.launches[number] = span[0]
        elif category == "user_annotation" and name.startswith("ProfilerStep#"):
            self.trace.steps.append(span)
        elif category in ("cpu_op", "user_annotation") and _GLOO.match(name):
            self.on_host.append(event)
        elif category == "cpu_op":
            if name.startswith("c10d::"):
                self.calls.append(event)
            elif name.startswith("aten::"):
                self.cpu.add(span)

    def _span(self, event: dict[str, Any]) -> Span:
        if self.zero_us is None:
            self.zero_us = event["ts"]
        start_us = event["ts"] - self.zero_us
        return start_us / 1e6, (start_us + event["dur"]) / 1e6

    def _finished(self) -> Trace:
        trace = self.trace
        trace.on_gpu = bool(trace.streams or self.kernels)
        if not trace.on_gpu:
            trace.device = ""
        compute = (self.gpu if trace.on_gpu else self.cpu).union()
        spans = self.kernels if trace.on_gpu else self.on_host
        found = sorted((self._collective(event) for event in spans), key=lambda one: one.start_s)
        if not trace.on_gpu:
            found = self._with_sizes(found)
        zero = min([start for start, _ in trace.steps] or [one.start_s for one in found] or [0.0])
        trace.steps = [(start - zero, end - zero) for start, end in sorted(trace.steps)]
        trace.compute = [(start - zero, end - zero) for start, end in compute]
        trace.collectives = [
            replace(one, start_s=one.start_s - zero, end_s=one.end_s - zero, launched_s=one.launched_s - zero)
            for one in found
        ]
        return trace

    def _collective(self, event: dict[str, Any]) -> Collective:
        arguments, (start_s, end_s) = event["args"], self._span(event)
        named = _NCCL.match(event["name"]) or _GLOO.match(event["name"])
        return Collective(
            name=_kind(str(arguments.get("Collective name") or (named[1] if named else ""))),
            start_s=start_s,
            end_s=end_s,
            launched_s=self.launches.get(_whole(arguments.get("correlation")) or 0, start_s),
            elements=_whole(arguments.get("In msg nelems")),
            dtype=str(arguments.get("dtype", "")),
            ranks=_whole(arguments.get("Group size")) or self.trace.world_size or 1,
            group=str(arguments.get("Process Group Name", "")),
            stream=str(arguments.get("stream", "")),
        )

    def _with_sizes(self, collectives: list[Collective]) -> list[Collective]:
        """Sizes of gloo's collectives stand in the calls (if shapes were recorded), one for each, in the same order."""
        calls = sorted((event for event in self.calls if _elements(event) is not None), key=lambda event: event["ts"])
        if len(calls) != len(collectives):
            return collectives
        return [replace(one, elements=_elements(event)) for one, event in zip(collectives, calls, strict=True)]


def _kind(name: str) -> str:
    """One word for what torch and NCCL write in several ways, such as "_allgather_base" and "AllGather"."""
    return name.lower().replace("_", "").removesuffix("base")


def _is_sound(event: dict[str, Any]) -> bool:
    """Whether what is read of every event is there: all else in a trace may be missing or of another kind."""
    texts, times = (event.get("name"), event.get("cat")), (event.get("ts"), event.get("dur"))
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(time, int | float) and abs(time) < 1e19 for time in times)
        and event["dur"] >= 0
        and isinstance(event.get("args", {}), dict)
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _elements(event: dict[str, Any]) -> int | None:
    """Elements of the tensors that a call of ``c10d::`` was given, by "Input Dims"."""
    match event["args"].get("Input Dims"):
        case [[[int(), *_], *_] as tensors, *_]:
            return int(sum(math.prod(dims) for dims in tensors))
    return None
