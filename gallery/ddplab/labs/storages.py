"""How many bytes tensors hold, views counted once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of the storages behind ``tensors``, each storage once; of a DTensor, those of this rank."""
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors if t is not None)
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())
