"""What a DDP step costs: one recurrence over its buckets, nothing measured.

Source: torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .arguments import MOST, at_least_zero, count
from .assignment import assign
from .link import Link

Gradient = tuple[float, int]  # (ready, in s from the start of the backward; bytes)


class Network(Protocol):
    """Anything that can say how long an all-reduce takes on it."""

    def seconds(self, nbytes: float, /) -> float:
        """Return the seconds of one all-reduce of ``nbytes`` bytes."""
        ...


@dataclass(frozen=True)
class Transfer:
    """One bucket's all-reduce; times in s from the start of the step.

    Attributes:
        bucket: position of the bucket in the list of buckets.
        nbytes: bytes of the bucket.
        ready_s: when its last gradient is ready.
        start_s: when the link begins with it.
        end_s: when it is done.
    """

    bucket: int
    nbytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """A predicted step; all times in s.

    Attributes:
        step_s: the whole step.
        forward_s: all forwards of the step.
        backward_s: all backwards of the step, without waiting.
        optimizer_s: the optimizer.
        communication_s: the sum of all transfers.
        exposed_s: communication that the step waits for, after the backward.
        overlapped_s: communication that the backward hides; exposed + overlapped = communication.
        lower_bound_s: no buckets can do better: forwards, the backwards without communication, the larger of the
            last backward and one transfer of all bytes (``least_seconds`` of a ``Link``), optimizer.
        timeline: the transfers, in the order in which the link serves them.
    """

    step_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    communication_s: float
    exposed_s: float
    overlapped_s: float
    lower_bound_s: float
    timeline: tuple[Transfer, ...]

    @property
    def compute_s(self) -> float:
        """The step without communication: forwards, backwards and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def serial_s(self) -> float:
        """The step if nothing overlapped, with the same buckets."""
        return self.compute_s + self.communication_s


def simulate_step(
    forward_s: float,
    gradients: Sequence[Gradient],
    buckets: Sequence[Sequence[int]],
    link: Network | None,
    *,
    backward_s: float | None = None,
    optimizer_s: float = 0.0,
    overlap: bool = True,
    accumulation: int = 1,
) -> Step:
    """Predict one DDP step: gradients fill buckets, one link serves the buckets in order, the optimizer waits.

    With T₀ the start of the last backward, r the ready times, and b = 0, 1, … the buckets in order::

        ready[b] = T₀ + max(r of the gradients in b)
        start[b] = max(ready[b], end[b-1])                       overlap
                 = max(T₀ + backward, end[b-1])                  no overlap
        end[b]   = start[b] + link.seconds(bytes of b)
        step     = max(T₀ + backward, end[last]) + optimizer     T₀ = k·forward + (k-1)·backward

    A bucket that is ready waits until those before it are launched (reducer.cpp, ``Reducer::mark_bucket_ready``);
    the second line contains that, for end[b−1] ≥ ready[b−1]. Of k = ``accumulation`` backwards the first k−1 run under
    ``no_sync`` and send nothing. Compute and transfers do not slow each other.

    Args:
        forward_s: seconds of one forward.
        gradients: (ready, in s from the start of the backward; bytes) of each gradient, in ready order.
        buckets: positions in ``gradients``, in launch order, each exactly once; see :func:`bucketed`.
        link: what carries the transfers, a ``Link`` or ``Cluster``; None: no communication.
        backward_s: seconds of one backward; by default the last gradient ends it.
        optimizer_s: seconds of the optimizer's step.
        overlap: False sends everything after the backward.
        accumulation: micro-batches per step, k.

    Raises:
        ValueError: a time or size is negative or not finite, ``buckets`` does not hold each gradient once,
            ``backward_s`` ends before the last gradient, or ``accumulation`` < 1.
    """
    for name, value in (("forward_s", forward_s), ("optimizer_s", optimizer_s)):
        at_least_zero(name, value)
    count("accumulation", accumulation)
    for position, (ready, nbytes) in enumerate(gradients):
        if not (0 <= ready <= MOST and 0 <= nbytes <= MOST):  # this loop is the hot one: no texts in it
            at_least_zero(f"gradients[{position}] ready time", ready)
            at_least_zero(f"gradients[{position}] bytes", nbytes)
    positions = [position for bucket in buckets for position in bucket]
    if sorted(positions) != list(range(len(gradients))):
        raise ValueError(
            f"buckets must hold each of the {len(gradients)} gradients exactly once; "
            f"got {len(positions)} positions, {len(set(positions) & set(range(len(gradients))))} of them valid"
        )
    last_ready = max((ready for ready, _ in gradients), default=0.0)
    if backward_s is None:
        backward_s = last_ready
    at_least_zero("backward_s", backward_s)
    if backward_s < last_ready:
        raise ValueError(f"backward_s must not be below the last ready time {last_ready!r}; got {backward_s!r}")

    begin = accumulation * forward_s + (accumulation - 1) * backward_s
    backward_end = begin + backward_s
    timeline: list[Transfer] = []
    communication = whole = free = 0.0
    if link is not None and gradients:
        for number, bucket in enumerate(buckets):
            nbytes = sum(gradients[position][1] for position in bucket)
            ready = begin + max((gradients[position][0] for position in bucket), default=0.0)
            start = max(ready if overlap else backward_end, free)
            duration = link.seconds(nbytes)
            free = start + duration
            communication += duration
            timeline.append(Transfer(number, nbytes, ready, start, free))
        least = link.least_seconds if isinstance(link, Link) else link.seconds
        whole = least(sum(nbytes for _, nbytes in gradients))
    exposed = min(max(0.0, free - backward_end), communication)
    return Step(
        step_s=max(backward_end, free) + optimizer_s,
        forward_s=accumulation * forward_s,
        backward_s=accumulation * backward_s,
        optimizer_s=optimizer_s,
        communication_s=communication,
        exposed_s=exposed,
        overlapped_s=communication - exposed,
        lower_bound_s=begin + max(backward_s, whole) + optimizer_s,
        timeline=tuple(timeline),
    )


def bucketed(gradients: Sequence[Gradient], cap_bytes: int, first_cap_bytes: int | None = None) -> list[list[int]]:
    """Return the buckets that DDP makes of ``gradients`` when it rebuilds them: torch's rule, in ready order.

    Args:
        gradients: (ready time in s, bytes) of each gradient, in ready order, all of one dtype and device.
        cap_bytes: ``bucket_cap_mb`` × 2²⁰.
        first_cap_bytes: cap of the first bucket; by default ``cap_bytes``, as torch has it when ``bucket_cap_mb``
            is given. DDP without ``bucket_cap_mb``: ``buckets.DEFAULT_CAP_BYTES, buckets.DEFAULT_FIRST_CAP_BYTES``.

    Raises:
        ValueError: a cap is not positive or a size is negative.
    """
    return assign(
        [nbytes for _, nbytes in gradients], cap_bytes, cap_bytes if first_cap_bytes is None else first_cap_bytes
    )


def equal_layers(layers: int, layer_bytes: int, backward_s: float) -> list[Gradient]:
    """Return the gradients of a model of equal layers: layer i of L is ready at (i + 1)/L of the backward.

    Args:
        layers: how many, L.
        layer_bytes: bytes of the gradients of one layer.
        backward_s: seconds of one backward.

    Raises:
        ValueError: ``layers`` < 1, or a size or time is negative or not finite.
    """
    count("layers", layers)
    at_least_zero("layer_bytes", layer_bytes)
    at_least_zero("backward_s", backward_s)
    return [(backward_s * ((layer + 1) / layers), layer_bytes) for layer in range(layers)]  # the last at backward_s
