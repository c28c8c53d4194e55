"""The tensors in a state, and how many bytes they hold, views counted once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested dicts and lists, in their order."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [t for v in values for t in tensors_in(v)] if isinstance(value, dict | list) else []


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of the storages behind ``tensors``, each storage once; of a DTensor, those of this rank."""
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors if t is not None)
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())
