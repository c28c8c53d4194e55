"""The tensors in a state: where they are, whether they are equal, and how many bytes they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested dicts and lists, in their order."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [t for v in values for t in tensors_in(v)] if isinstance(value, dict | list) else []


def flat_state(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts; the name of a leaf has all keys, each with a space after it."""
    if not isinstance(value, dict):
        return {name: value}
    return {n: v for key in value for n, v in flat_state(value[key], f"{name}{key} ").items()}


def same_state(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether two flat states have the same names and, bit for bit, the same values."""

    def same(a: Any, b: Any) -> bool:
        return torch.equal(a.cpu(), b.cpu()) if isinstance(b, Tensor) else bool(a == b)

    return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of the storages behind ``tensors``, each storage once; of a DTensor, those of this rank."""
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors if t is not None)
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())
