"""How DDP packs gradients into buckets, in pure Python, so that buckets can be predicted and planned.

The rule is greedy: tensors are taken in filling order, and a bucket closes as soon as it holds at least
its cap. A bucket may therefore exceed its cap by almost one tensor, and the last one may stay below it.

Source: torch/csrc/distributed/c10d/reducer.cpp, ``compute_bucket_assignment_by_size``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

MIB = 1024 * 1024
DEFAULT_CAP_BYTES = 25 * MIB  # torch/nn/parallel/distributed.py: 25 MiB when bucket_cap_mb is not given
DEFAULT_FIRST_CAP_BYTES = 1 * MIB  # reducer.hpp, kDefaultFirstBucketBytes; an explicit bucket_cap_mb replaces it


@dataclass
class _Bucket:
    """An open bucket of one kind: positions of its tensors, and their bytes."""

    positions: list[int] = field(default_factory=list)
    nbytes: int = 0


def assign(
    sizes: Sequence[int],
    cap_bytes: int,
    first_cap_bytes: int,
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Return the buckets as torch assigns them, each a list of positions in ``sizes``.

    DDP uses the rule twice. The constructor packs in order of registration and reverses the list of buckets
    afterwards; the rebuild at the second forward packs in the order in which gradients became ready.

    Args:
        sizes: bytes of each tensor (``numel() * element_size()``), in filling order.
        cap_bytes: cap of every bucket but the first, in bytes; ``bucket_cap_mb`` × 2²⁰.
        first_cap_bytes: cap of the first bucket, in bytes: 2²⁰ by default, ``cap_bytes`` once
            ``bucket_cap_mb`` is given.
        kinds: (dtype, device) of each tensor, where they differ. A bucket holds one kind only: each kind fills
            buckets of its own, and its first has the first cap. None: all tensors are alike.

    Returns:
        Buckets sorted by their first tensor, as at construction. With several kinds a rebuild orders them
        otherwise: in the order in which they closed, then the open ones in the order of a hash table.

    Raises:
        ValueError: a size is negative, a cap is not positive, or ``kinds`` has another length than ``sizes``.
    """
    for name, cap in (("cap_bytes", cap_bytes), ("first_cap_bytes", first_cap_bytes)):
        if cap <= 0:
            raise ValueError(f"assign: {name} must be a positive number of bytes; got {cap!r}")
    if kinds is not None and len(kinds) != len(sizes):
        raise ValueError(f"assign: kinds must have one entry per size; got {len(kinds)} for {len(sizes)} sizes")

    closed: list[list[int]] = []
    caps: dict[Hashable, int] = {}
    filling: dict[Hashable, _Bucket] = {}
    for position, nbytes in enumerate(sizes):
        if nbytes < 0:
            raise ValueError(f"assign: sizes[{position}] must not be negative; got {nbytes!r}")
        kind = None if kinds is None else kinds[position]
        bucket = filling.setdefault(kind, _Bucket())
        bucket.positions.append(position)
        bucket.nbytes += nbytes
        if bucket.nbytes >= caps.get(kind, first_cap_bytes):
            closed.append(filling.pop(kind).positions)
            caps[kind] = cap_bytes
    return sorted(closed + [bucket.positions for bucket in filling.values()])
