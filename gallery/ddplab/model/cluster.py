"""What an all-reduce costs on nodes of several ranks each; symbols as in link.py."""

from __future__ import annotations

from dataclasses import dataclass

from .arguments import above_zero, at_least_zero, count


@dataclass(frozen=True)
class Cluster:
    """Nodes of several ranks each; :meth:`seconds` is the cost of one all-reduce over all ranks.

    With N nodes of g ranks, p = N·g, index i for inside a node and o for between nodes:

    ``ring``
        2(p−N)·αᵢ + 2(N−1)·αₒ + 2(p−1)/p · n/min(Bᵢ, Bₒ): one flat ring, or several side by side, that leaves each
        node once; the narrowest hop sets the pace. Latencies as in NCCL, ``ncclTopoTuneModel`` (``nInterSteps``).
    ``tree``
        2((g−1)·αᵢ + ⌈log₂N⌉·αₒ) + max(2·n/Bᵢ, v·n/Bₒ): a chain in each node, the double binary tree between nodes,
        as there; v = 2 from three nodes on. Of two nodes each is the root of one tree and the only leaf of the
        other, so n/2 goes up and n/2 down: v = 1.
    ``hierarchical``
        2(g−1)·αᵢ + 2(g−1)/g · n/Bᵢ + 2(N−1)·αₒ + 2(N−1)/N · n/Bₒ: reduce-scatter in each node, g rings between
        nodes that share Bₒ, all-gather in each node, one after the other; as ``NCCLHierarchicalAllreduce`` in
        horovod/common/ops/nccl_operations.cc, with rings.

    Attributes:
        nodes: number of nodes, N.
        ranks_per_node: ranks of one node, g.
        inside_latency_s: seconds of one hop inside a node, αᵢ.
        inside_bytes_per_s: rate of one rank inside its node, per direction, Bᵢ.
        between_latency_s: seconds of one hop between nodes, αₒ.
        between_bytes_per_s: rate of one *node*, all its network cards together, per direction, Bₒ.
        algorithm: ``ring``, ``tree`` or ``hierarchical``.
    """

    nodes: int
    ranks_per_node: int
    inside_latency_s: float
    inside_bytes_per_s: float
    between_latency_s: float
    between_bytes_per_s: float
    algorithm: str = "ring"

    def __post_init__(self) -> None:  # noqa: D105
        count("nodes", self.nodes)
        count("ranks_per_node", self.ranks_per_node)
        for name in ("inside", "between"):
            at_least_zero(f"{name}_latency_s", getattr(self, f"{name}_latency_s"))
            above_zero(f"{name}_bytes_per_s", getattr(self, f"{name}_bytes_per_s"))
        if self.algorithm not in ("ring", "tree", "hierarchical"):
            raise ValueError(f"algorithm must be ring, tree or hierarchical; got {self.algorithm!r}")

    @property
    def ranks(self) -> int:
        """The world size, p."""
        return self.nodes * self.ranks_per_node

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce of ``nbytes`` bytes over all ranks."""
        at_least_zero("nbytes", nbytes)
        n_nodes, g, p = self.nodes, self.ranks_per_node, self.ranks
        inside_s = nbytes / self.inside_bytes_per_s if g > 1 else 0.0
        between_s = nbytes / self.between_bytes_per_s if n_nodes > 1 else 0.0
        between_hops = 2 * (n_nodes - 1)
        if self.algorithm == "tree":
            hops_s = 2 * ((g - 1) * self.inside_latency_s + (n_nodes - 1).bit_length() * self.between_latency_s)
            return hops_s + max(2 * inside_s, (1 if n_nodes == 2 else 2) * between_s)
        if self.algorithm == "ring":
            hops_s = 2 * (p - n_nodes) * self.inside_latency_s + between_hops * self.between_latency_s
            return hops_s + 2 * (p - 1) / p * max(inside_s, between_s)
        hops_s = 2 * (g - 1) * self.inside_latency_s + between_hops * self.between_latency_s
        return hops_s + 2 * (g - 1) / g * inside_s + between_hops / n_nodes * between_s
