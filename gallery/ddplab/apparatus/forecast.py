"""What the forecast of large jobs adds to the cost model: the cheaper of ring and tree, and the slowest rank."""

from __future__ import annotations

from statistics import NormalDist

from ..costmodel import Cluster


class Fastest:
    """A network that takes a ring or a tree for each message, whichever is faster on it.

    Args:
        ranks: how many in all.
        ranks_per_node: how many share a node.
        hops: latency in s and rate in bytes/s of a hop inside a node, then of one between nodes.
    """

    def __init__(self, ranks: int, ranks_per_node: int, hops: tuple[float, float, float, float]) -> None:
        nodes, inside = max(1, ranks // ranks_per_node), min(ranks, ranks_per_node)
        self.both = [Cluster(nodes, inside, *hops, "ring"), Cluster(nodes, inside, *hops, "tree")]

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of an all-reduce."""
        return min(cluster.seconds(nbytes) for cluster in self.both)


def slowest_of(ranks: int, steps: int = 4000) -> float:
    """Return the expected maximum of ``ranks`` standard normal numbers, integrated in so many steps."""
    normal, width = NormalDist(), 20 / steps
    edges = [normal.cdf(-10 + width * at) ** ranks for at in range(steps + 1)]
    middles = (-10 + width * (at + 0.5) for at in range(steps))
    return sum(z * (b - a) for z, a, b in zip(middles, edges, edges[1:], strict=False))
