"""Record what a rank communicates, and in which order: the calls of ``torch.distributed`` while a check runs.

Each call is also written to a file at once, so that the calls of a rank that hangs or dies can still be compared.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# fmt: off
OPERATIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "all_gather_object",
    "broadcast_object_list", "gather_object", "scatter_object_list", "send", "recv", "isend", "irecv",
)
# fmt: on


@dataclass
class Call:
    """One call, as the rank made it."""

    operation: str
    elements: int
    dtype: str
    asynchronous: bool
    waited: bool  # for its result, in some way, or never had to be

    def __str__(self) -> str:  # noqa: D105
        what = f"{self.operation} of {self.elements} {self.dtype} element{'s' * (self.elements != 1)}"
        return what if self.elements else self.operation


class Recorder:
    """Records the calls of this rank from ``with Recorder(…) as recorder`` to the end of the block.

    An all-reduce with ``async_op=True`` works on a copy, which ``wait()`` moves into the tensor: what the tensor
    holds before is undefined anyway, so a missing wait shows on every run, not only when the network is slow.

    ``events`` is one list in the order of time: ``("launch", i)`` and ``("wait", i)`` for call number i,
    ``("note", text)`` for what the check itself notes.
    """

    def __init__(self, log: Path) -> None:
        self.calls: list[Call] = []
        self.events: list[tuple[str, int | str]] = []
        self.folder = log.parent  # of this check, removed when it is over
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._real = {name: getattr(dist, name) for name in OPERATIONS}

    def __enter__(self) -> Recorder:  # noqa: D105
        for name, real in self._real.items():
            setattr(dist, name, self._all_reduce if name == "all_reduce" else self._seen(name, real))
        return self

    def __exit__(self, *exception: object) -> None:  # noqa: D105
        for name, real in self._real.items():
            setattr(dist, name, real)
        if exception[0] is None:
            os.write(self._log, b"null\n")  # this rank has made all its calls
        os.close(self._log)

    def note(self, text: str) -> None:
        """Add ``text`` to the events."""
        self.events.append(("note", text))

    def _called(self, operation: str, tensors: list[torch.Tensor], asynchronous: bool) -> int:
        elements = sum(tensor.numel() for tensor in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        call = Call(operation, elements, dtype, asynchronous, waited=not asynchronous)
        os.write(self._log, json.dumps(asdict(call)).encode() + b"\n")
        self.calls.append(call)
        self.events.append(("launch", len(self.calls) - 1))
        return len(self.calls) - 1

    def _seen(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            values = inspect.signature(real).bind(*args, **kwargs).arguments
            tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
            index = self._called(name, tensors[:1], False)
            result = real(*args, **kwargs)
            self.events.append(("wait", index))
            return result

        return wrapper

    def _all_reduce(self, tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        real = self._real["all_reduce"]
        if not isinstance(tensor, torch.Tensor):
            return real(tensor, op, group, async_op)  # it will say what is wrong
        index = self._called("all_reduce", [tensor], async_op)
        if async_op:
            copy = tensor.detach().clone()
            awaited = functools.partial(self.events.append, ("wait", index))
            return _Pending(real(copy, op, group, True), tensor, copy, self.calls[index], awaited)
        real(tensor, op, group)
        self.events.append(("wait", index))
        return None


class _Pending:
    """An all-reduce under way, as ``async_op=True`` returns it."""

    def __init__(
        self, work: Any, tensor: torch.Tensor, copy: torch.Tensor, call: Call, awaited: Callable[[], None]
    ) -> None:
        self._work, self._tensor, self._copy, self._call, self._awaited = work, tensor, copy, call, awaited

    def wait(self, *args: Any) -> Any:
        result = self._work.wait(*args)
        self._finish()
        self._awaited()
        return result

    def is_completed(self) -> bool:
        if self._work.is_completed():
            self._finish()
        return self._call.waited

    def get_future(self) -> Any:
        ready = _Awaited(self._awaited, [self._tensor.device] if self._tensor.is_cuda else None)

        def finish(future: Any) -> None:
            try:
                future.value()  # raises what the all-reduce raised
            except Exception as error:
                ready.set_exception(error)
            else:
                self._finish()
                ready.set_result([self._tensor])

        self._work.get_future().then(finish)
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def _finish(self) -> None:
        if not self._call.waited:
            self._call.waited = True
            self._tensor.data.copy_(self._copy)  # .data: a collective is no operation of autograd either


class _Awaited(torch.futures.Future[Any]):
    """The future of an all-reduce. It is complete when gloo's thread says so, and awaited when the rank asks for it."""

    def __init__(self, awaited: Callable[[], None], devices: list[int | str | torch.device] | None) -> None:
        super().__init__(devices=devices)
        self._awaited = awaited

    def wait(self) -> Any:
        result = super().wait()
        self._awaited()
        return result

    def value(self) -> Any:
        self._awaited()
        return super().value()


def read_log(log: Path) -> tuple[list[Call], bool]:
    """Return the calls that a rank had made, and whether it had made all of them."""
    lines = list(_whole_lines(log))
    return [Call(**line) for line in lines if line is not None], None in lines


def _whole_lines(log: Path) -> Iterator[Any]:
    if log.exists():
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def has_messages(calls: list[Call]) -> bool:
    """Return whether one of the calls is a message between two ranks, which the others do not make."""
    return any(call.operation in ("send", "recv", "isend", "irecv") for call in calls)


def first_difference(logs: list[list[Call]]) -> int | None:
    """Return the number, from 0, of the first call that two ranks made differently; None if there is none.

    Messages between two ranks (``send``, ``recv``) differ by their nature, and end the comparison.
    """
    for index in range(max(map(len, logs), default=0)):
        made = [calls[index] for calls in logs if index < len(calls)]
        if has_messages(made):
            return None
        if len({str(call) for call in made}) > 1:
            return index
    return None
