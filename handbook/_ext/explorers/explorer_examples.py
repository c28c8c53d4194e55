"""Where the step explorer can start: settings with the names and units of its sliders, and what they assume."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ddplab.buckets import MIB
from ddplab.costmodel import Link, Step, bucketed, equal_layers, simulate_step


@dataclass(frozen=True)
class Settings:
    """One setting of each slider; a layer has one gradient, and all layers are alike."""

    bucket_mib: float
    backward_ms: float
    forward_ms: float
    gradients_mib: float  # all layers together
    layers: int
    gbit_per_s: float  # of one rank, per direction
    latency_us: float  # of one hop
    ranks: int
    algorithm: str = "ring"
    accumulation: int = 1

    def step(self, *, overlap: bool = True, **changed: Any) -> Step:
        """The step that the cost model predicts, with some settings changed."""
        if changed:
            return replace(self, **changed).step(overlap=overlap)
        gradients = equal_layers(self.layers, int(self.gradients_mib * MIB / self.layers), self.backward_ms / 1e3)
        return simulate_step(
            self.forward_ms / 1e3,
            gradients,
            bucketed(gradients, int(self.bucket_mib * MIB)),
            Link(self.latency_us / 1e6, self.gbit_per_s * 125e6, self.ranks, self.algorithm),
            overlap=overlap,
            accumulation=self.accumulation,
        )


@dataclass(frozen=True)
class Example:
    """Settings with a name. Nothing in them was measured."""

    name: str
    title: str
    assumed: str
    settings: Settings


EXAMPLES = {
    example.name: example
    for example in (
        Example(
            "ethernet",
            "8 machines, 10 Gbit/s Ethernet",
            "Assumed, not measured: one rank per machine, 10 Gbit/s in each direction, 50 µs a hop, a plain ring.",
            Settings(25, 150, 80, 100, 64, gbit_per_s=10, latency_us=50, ranks=8),
        ),
        Example(
            "laptop",
            "4 processes on a laptop, gloo",
            "Assumed, not measured: 8 Gbit/s and 50 µs between two processes; adding numbers up costs nothing.",
            Settings(25, 150, 80, 40, 48, gbit_per_s=8, latency_us=50, ranks=4, algorithm="gloo"),
        ),
        Example(
            "nvlink",
            "8 GPUs in one machine, NVLink class",
            "Assumed, not measured: 300 GB/s per GPU and direction, 3 µs a hop, a ring that pays every hop.",
            Settings(25, 60, 30, 500, 96, gbit_per_s=2400, latency_us=3, ranks=8),
        ),
        Example(
            "thousands",
            "4096 GPUs, 200 Gbit/s each",
            "Assumed, not measured: 200 Gbit/s per rank, 5 µs a hop, one plain ring through all ranks.",
            Settings(25, 600, 300, 2000, 96, gbit_per_s=200, latency_us=5, ranks=4096),
        ),
    )
}


def page_data() -> list[dict[str, Any]]:
    """The examples as the element reads them."""
    return [asdict(example) for example in EXAMPLES.values()]
