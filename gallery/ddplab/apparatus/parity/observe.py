"""Run a piece of code with two classes that wrap a model, and compare the calls that raise and the bits that are left.

A :class:`Behaviour` is a function that takes ``wrap``, which puts a model into the class under test, and returns
what that class left behind. :func:`observe` runs it in a rank; :func:`same` and :func:`cell` compare what was seen.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

Wrap = Callable[..., Any]
CAP_MB = 0.0002  # about 210 bytes: even small models have several buckets


@dataclass(frozen=True)
class Behaviour:
    """What is done, which of PyTorch's tests do it too, and what is expected of the class from scratch.

    ``refused`` is a word of the error with which it refuses what torch's class can do; ``differs`` holds the
    cells of torch's class and of its own, where the difference is meant. With neither, both must do the same.
    ``alone`` asks for a launch of its own, because ranks may be left waiting for each other.
    """

    topic: str
    run: Callable[[Wrap], Any]
    tests: tuple[str, ...]
    refused: str
    differs: tuple[str, str] | None
    alone: bool


@dataclass
class Local:
    """Values that may differ between ranks by rights: a rank's own gradients, its BatchNorm's statistics."""

    values: Any


class Seen(NamedTuple):
    """What one rank saw: the values left behind, or the call that raised, and its message."""

    values: tuple[Any, ...]
    where: str = ""
    error: str = ""


# -- running and comparing ----------------------------------------------------------------------------


def observe(behaviour: Behaviour, cls: type[nn.Module]) -> Seen:
    """Run ``behaviour`` with ``cls`` in this rank; all ranks must do so."""
    forwards = 0

    def count(module: nn.Module, _: Any) -> None:
        nonlocal forwards
        forwards += isinstance(module, cls)

    def wrap(module: nn.Module, **options: Any) -> nn.Module:
        return cls(module, **{"bucket_cap_mb": CAP_MB, **options})

    counting = nn.modules.module.register_module_forward_pre_hook(count)
    try:
        return Seen(tuple(_flat(behaviour.run(wrap))))
    except Exception as error:
        return Seen((), _place(error, cls, forwards), f"{type(error).__name__}: {error}")
    finally:
        counting.remove()
        if behaviour.alone:
            dist.destroy_process_group()  # so that no rank waits for another that has raised


def same(a: Sequence[Seen], b: Sequence[Seen]) -> bool:
    """Return whether on each rank both left equal values, bit for bit, or raised in the same call."""
    return all(x.where == y.where and _equal(x.values, y.values) for x, y in zip(a, b, strict=True))


def cell(seen: Sequence[Seen]) -> str:
    """Return in a few words what the ranks saw: "! forward 2" if that raised, else whether their values are equal."""
    places = [s.where for s in seen]
    if any(places):
        return "! " + ", ".join([places[0]] if len(set(places)) == 1 else [place or "no" for place in places])
    shared = [[value for value in s.values if not isinstance(value, Local)] for s in seen]
    if not any(shared):
        return "each its own"
    return "ranks agree" if all(_equal(shared[0], other) for other in shared) else "ranks differ"


def _equal(a: Any, b: Any) -> bool:
    """Tensors count as equal if their bits, dtypes and strides are."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, Local) and isinstance(b, Local):
        return _equal(a.values, b.values)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield value.detach().cpu().clone()
    elif isinstance(value, Local):
        yield Local(tuple(_flat(value.values)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _place(error: BaseException, cls: type[nn.Module], forwards: int) -> str:
    """Name the call that raised: the constructor, a forward or backward with its number, or a method."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file == __file__ and name == "wrap":
            return "constructor"
        if file.endswith("_tensor.py") and name == "backward":
            return f"backward {forwards}"
        if isinstance(frame.f_locals.get("self"), cls):
            return f"forward {forwards}" if "call_impl" in name else name
    return "elsewhere"
