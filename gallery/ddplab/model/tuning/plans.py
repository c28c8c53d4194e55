"""The caps that are worth a measurement: what the cost model predicts for each. No ranks, nothing measured."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median

from ..assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign
from ..fit import fit_link
from ..link import Link
from ..step import Gradient, Step, simulate_step

GRID_MIB = [factor * 2.0**power for power in range(-6, 13) for factor in (1, 1.5)]  # caps that are predicted
MOST_CAPS = 6  # that are measured, the default among them
NO_RATE = 1e18  # bytes/s of a link on which more bytes take no longer


@dataclass(frozen=True)
class Plan:
    """A cap, the buckets that it gives, and the step that is predicted for them."""

    cap_mb: float | None  # None: bucket_cap_mb is not given, so 1 MiB and then 25
    step: Step

    @property
    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in launch order."""
        return [transfer.nbytes for transfer in self.step.timeline]


def make_plans(
    gradients: Sequence[Gradient],
    kinds: Sequence[Hashable] | None,
    link: Link,
    forward_s: float,
    backward_s: float,
    caps_mb: Sequence[float] = (),
) -> list[Plan]:
    """Return DDP's default, then ``caps_mb``, then each cap of a grid that gives buckets which no cap before it gave.

    Args:
        gradients: (ready in s from the start of the backward, bytes), in ready order.
        kinds: as for :func:`ddplab.model.assignment.assign`.
        link: what carries the buckets.
        forward_s: seconds of one forward.
        backward_s: seconds of one backward without communication.
        caps_mb: caps to include in any case, in MiB.
    """
    plans: list[Plan] = []
    seen = []
    wanted = dict.fromkeys([None, *caps_mb, *GRID_MIB])
    for position, cap_mb in enumerate(wanted):
        cap, first = (DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES) if cap_mb is None else 2 * (_cap_bytes(cap_mb),)
        buckets = assign([nbytes for _, nbytes in gradients], cap, first, kinds)
        if position <= len(set(caps_mb)) or buckets not in seen:
            step = simulate_step(forward_s, gradients, buckets, link, backward_s=backward_s)
            plans.append(Plan(cap_mb, step))
            seen.append(buckets)
    return plans


def _cap_bytes(cap_mb: float) -> int:
    return max(1, int(cap_mb * MIB))


def choose(plans: Sequence[Plan], caps_mb: Sequence[float] = (), most: int = MOST_CAPS) -> list[Plan]:
    """Return the plans to measure: the default, and ``caps_mb``; or, without these, the best and those around it.

    Neighbours on the grid differ little, so every second one is taken first, alternately above and below the best.
    At least the default and the best are returned.
    """
    default, others = plans[0], sorted(plans[1:], key=lambda plan: plan.cap_mb or 0)
    if caps_mb:
        return [default, *(plan for plan in others if plan.cap_mb in caps_mb)]
    if not others:
        return [default]
    best = min(range(len(others)), key=lambda i: others[i].step.step_s)
    distances = [*range(2, len(others), 2), *range(1, len(others), 2)]
    around = [best + sign * distance for distance in distances for sign in (1, -1)]
    chosen = [best, *(i for i in around if 0 <= i < len(others))][: max(1, most - 1)]
    return [default, *(others[i] for i in sorted(chosen))]


def link_of(samples: Sequence[tuple[int, float]], ranks: int, algorithm: str) -> Link:
    """Fit a link (:func:`ddplab.model.fit.fit_link`); where more bytes take no longer, one of pure latency."""
    try:
        return fit_link(samples, ranks, algorithm)
    except ValueError:
        middle_s = median(took_s for _, took_s in samples)
        latency_s = middle_s / Link(1.0, NO_RATE, ranks, algorithm).seconds(0)
        residual = median(abs(middle_s / took_s - 1) for _, took_s in samples)
        return Link(latency_s, NO_RATE, ranks, algorithm, residual=residual)
