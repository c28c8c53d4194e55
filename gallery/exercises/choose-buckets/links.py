"""The links and models for which a cap is chosen, and what the cost model says of a cap."""

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ddplab.buckets import MIB
from ddplab.costmodel import Gradient, Link, Step, bucketed, equal_layers, simulate_step
from ddplab.grading.checks import milliseconds as ms

MARGIN = 1.05


@dataclass(frozen=True)
class Case:
    """The arguments of `choose_cap_mib`."""

    gradients: tuple[Gradient, ...]
    latency_s: float
    bytes_per_s: float

    def __str__(self) -> str:  # noqa: D105
        nbytes = sum(n for _, n in self.gradients)
        return (
            f"{len(self.gradients)} gradients of {nbytes / MIB:.3g} MiB in all, ready from {ms(self.gradients[0][0])} "
            f"to {ms(self.gradients[-1][0])}, latency {ms(self.latency_s)}, {self.bytes_per_s:g} bytes/s"
        )

    def step(self, buckets: Sequence[Sequence[int]]) -> Step:
        """What the cost model says of these buckets; there is no forward in it."""
        link = Link(self.latency_s, self.bytes_per_s, algorithm="link")
        return simulate_step(0.0, self.gradients, buckets, link)

    def with_cap(self, cap_bytes: int) -> Step:
        """What the cost model says of this cap."""
        return self.step(bucketed(self.gradients, cap_bytes))

    @functools.cached_property
    def best_cap(self) -> int:
        """The best cap in bytes. Buckets change only where the cap passes a sum of neighbours."""
        ends = [0, *itertools.accumulate(n for _, n in self.gradients)]
        sums = {end - start for start, end in itertools.combinations(ends, 2)} - {0}
        return min(sorted(sums), key=lambda cap: self.with_cap(cap).step_s)

    def good(self, cap_mib: float) -> bool:
        """Whether the step is at most 5 % longer than the best one."""
        cap_bytes = in_bytes(cap_mib)
        return self.with_cap(cap_bytes).step_s <= MARGIN * self.with_cap(self.best_cap).step_s


def in_bytes(cap_mib: float) -> int:
    """A cap as DDP's constructor converts it; at least a byte, which is as good as nothing."""
    return max(1, int(cap_mib * MIB))


def even(layers: int, layer_bytes: int, backward_s: float, *link: float) -> Case:
    """Equal layers, and a link: latency and rate."""
    return Case(tuple(equal_layers(layers, layer_bytes, backward_s)), *link)


def uneven(sizes: Sequence[int], backward_s: float, *link: float) -> Case:
    """Gradients of these sizes; the backward of each takes as long as it has bytes."""
    ready = [backward_s * done / sum(sizes) for done in itertools.accumulate(sizes)]
    return Case(tuple(zip(ready, sizes, strict=True)), *link)


ORDINARY = [
    even(24, 131_072, 48e-3, 2e-3, 40e6),
    even(12, 524_288, 96e-3, 4e-4, 100e6),
    even(32, 131_072, 48e-3, 8e-3, 100e6),
    even(48, 262_144, 12e-3, 5e-4, 1e9),
]
LATENCY = [
    even(24, 131_072, 20e-3, 30e-3, 1e12),
    even(16, 2**20, 50e-3, 80e-3, 1e12),
    even(40, 4_096, 5e-3, 20e-3, 1e9),
]
BYTES = [
    even(24, 131_072, 48e-3, 0.0, 100e6),
    even(32, 2**20, 100e-3, 0.0, 300e6),
    even(40, 65_536, 20e-3, 1e-6, 150e6),
]
EMBEDDING = 8 * 2**20
BLOCK = [2**20, 4096, 2**20, 4096, 2**18, 1024, 2**18, 1024, 1024, 1024]  # of a transformer
UNEVEN = [
    uneven([*BLOCK * 4, EMBEDDING], 80e-3, 2e-3, 200e6),
    uneven([EMBEDDING, *BLOCK * 4], 80e-3, 2e-3, 200e6),
    uneven([*BLOCK * 4, EMBEDDING], 30e-3, 4e-3, 1e9),
    uneven([2**k for k in range(10, 23)], 40e-3, 1e-3, 150e6),
    uneven([2**k for k in range(22, 9, -1)], 40e-3, 3e-3, 300e6),
]


def anything() -> list[Case]:
    """40 cases of all kinds, the same each time."""
    draw = random.Random(7)
    cases = []
    for number in range(40):
        sizes = [2 ** draw.randint(8, 20) for _ in range(draw.randint(1, 32))]
        if number % 2:
            sizes = [sizes[0]] * len(sizes)
        backward_s = 10 ** draw.uniform(-2.5, -0.5)
        ready = [*sorted(backward_s * draw.random() for _ in sizes[1:]), backward_s]
        latency_s = backward_s * 10 ** draw.uniform(-4, 0.5)
        rate = sum(sizes) / backward_s * 10 ** draw.uniform(-1, 1)  # slower or faster than it
        cases.append(Case(tuple(zip(ready, sizes, strict=True)), latency_s, rate))
    return cases


ANYTHING = anything()
