"""What an all-reduce costs, and what a DDP step costs: closed forms and one recurrence, nothing measured.

Symbols in the formulas: n bytes, p ranks, α latency of one hop in s (``latency_s``), B rate of one rank's link in
bytes/s and per direction (``bytes_per_s``; 1 Gbit/s is 125e6). A message of m bytes keeps a link busy for m/B and
has arrived α + m/B after it left. Adding numbers up (the γ term of the papers) is not counted. No formula loops over
ranks: 16,384 of them are as cheap to predict as 2.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 2005);
MPICH ``allreduce_intra_reduce_scatter_allgather.c``; NVIDIA/nccl ``src/graph/tuning.cc`` and ``src/graph/trees.cc``;
pytorch/gloo ``gloo/allreduce.cc``; pytorch ``torch/csrc/distributed/c10d/reducer.cpp``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from .buckets import MIB, assign

ALGORITHMS = ("ring", "pipelined-ring", "gloo", "tree", "halving-doubling", "link")
GLOO_SEGMENT_BYTES = MIB  # gloo/allreduce.h, AllreduceOptionsImpl::kMaxSegmentSize

_MOST = sys.float_info.max  # 10**400 is a fine int and no float

Gradient = tuple[float, int]  # (ready, in s from the start of the backward; bytes)


# -- one all-reduce -----------------------------------------------------------------------------------


def allreduce_seconds(
    nbytes: float,
    ranks: int,
    latency_s: float,
    bytes_per_s: float,
    algorithm: str = "ring",
    *,
    segment_bytes: int = GLOO_SEGMENT_BYTES,
) -> float:
    """Return the seconds that one all-reduce of ``nbytes`` takes; 0 for a single rank.

    ``ring``
        2(p−1)·α + 2(p−1)/p · n/B. A reduce-scatter and an all-gather of p−1 rounds each; a round passes n/p bytes
        to the neighbour and starts when the round before has arrived. No algorithm that sends from rank to rank
        moves fewer bytes per rank (nccl-tests, doc/PERFORMANCE.md). NCCL's own model of a ring adds hops and bytes
        in this way, for each of its protocols (``ncclTopoGetAlgoTime``), and src/enqueue.cc takes the cheapest.
    ``pipelined-ring``
        The same ring, each chunk c = n/p cut into segments of at most ``segment_bytes`` = m. A segment goes on as
        soon as it has arrived and the link is free, so a round lasts as long as its bytes, or as one hop of one
        segment if that is longer: (2(p−1)−1) · max(c/B, α + min(c, m)/B) + α + c/B. If c ≥ αB + m, latency is paid
        once, not 2(p−1) times; if c ≤ m, this is the plain ring. So one large message hides the latency that many
        small ones pay. What a segment itself costs is not counted.
    ``gloo``
        The ring as gloo/allreduce.cc, ``ring``, runs it: each chunk in at least two segments of at most
        ``segment_bytes`` (``maxSegmentSize``, 1 MiB), two of them in flight, and each of the two phases runs dry
        before it ends. Two segments of m bytes take max(2m/B, α + m/B): latency hides behind one segment only. A
        phase of K = (p−1)·s segments, K−1 = 2a + b, takes a·max(2m/B, α + m/B) + b·m/B + α + m/B. A segment leaves
        once its receiver has said that it is ready (gloo/transport/tcp/pair.cc, ``Pair::handleRemotePendingRecv``):
        α is a hop, and its notice where that comes late.
    ``tree``
        2⌈log₂p⌉·α + 2·n/B: NCCL's double binary tree, one rank per node. Each tree carries half of the bytes; a
        rank is an inner node of one and a leaf of the other, so it sends and receives at most 2n. Assumes links
        that send and receive at once, and segments so small that filling the tree costs latency only. Source:
        ``ncclTopoTuneModel``, which counts ⌊log₂p⌋ hops (the trees of ``ncclGetDtree`` are ⌈log₂p⌉ deep) and 2n/B
        for 2 and 3 ranks, too (they move n and 1.5n). Left out: its corrections (.92, ``treeCorrectionFactor``).
    ``halving-doubling``
        2 log₂p·α + 2(p−1)/p · n/B for a power of two (Rabenseifner's algorithm, in Thakur et al.). Otherwise, as
        in MPICH, the p−q ranks beyond the largest power of two q first send all to a neighbour and get the result
        at the end: 2 log₂q·α + 2(q−1)/q · n/B + 2(α + n/B). So 3 ranks cost more than 4.
    ``link``
        α + n/B: one transfer over one link, as ``ddplab.runtime.slowlink`` emulates it; ``ranks`` matters only if 1.

    Args:
        nbytes: bytes of the tensor on each rank.
        ranks: world size.
        latency_s: seconds of one hop, α.
        bytes_per_s: rate of one rank's link, B.
        algorithm: one of :data:`ALGORITHMS`.
        segment_bytes: largest segment of ``pipelined-ring`` and ``gloo``; the others ignore it.

    Raises:
        ValueError: an argument is negative, not finite, or unknown.
    """
    return Link(latency_s, bytes_per_s, ranks, algorithm, segment_bytes).seconds(nbytes)


@dataclass(frozen=True)
class Link:
    """A network between ``ranks`` equal ranks; :meth:`seconds` is :func:`allreduce_seconds` with its values.

    Attributes:
        latency_s: seconds of one hop, α.
        bytes_per_s: rate of one rank's link per direction, B.
        ranks: world size.
        algorithm: one of :data:`ALGORITHMS`.
        segment_bytes: largest segment of ``pipelined-ring`` and ``gloo``.
        residual: of a link from :func:`fit_link`, the median of ``|predicted / measured − 1|``; else None.
    """

    latency_s: float
    bytes_per_s: float
    ranks: int = 2
    algorithm: str = "ring"
    segment_bytes: int = GLOO_SEGMENT_BYTES
    residual: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:  # noqa: D105
        _at_least_zero("latency_s", self.latency_s)
        _above_zero("bytes_per_s", self.bytes_per_s)
        _count("ranks", self.ranks)
        _count("segment_bytes", self.segment_bytes)
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {self.algorithm!r}")

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce of ``nbytes`` bytes."""
        _at_least_zero("nbytes", nbytes)
        p, alpha, rate = self.ranks, self.latency_s, self.bytes_per_s
        if p == 1:
            return 0.0
        if self.algorithm == "pipelined-ring":
            chunk_s, segment_s = nbytes / p / rate, min(nbytes / p, self.segment_bytes) / rate
            return (2 * (p - 1) - 1) * max(chunk_s, alpha + segment_s) + alpha + chunk_s
        if self.algorithm == "gloo":
            per_chunk = max(2, math.ceil(math.ceil(nbytes / self.segment_bytes) / p))
            segment_s = nbytes / (per_chunk * p) / rate
            pairs, single = divmod((p - 1) * per_chunk - 1, 2)  # what starts before the last segment of a phase
            before_s = pairs * max(2 * segment_s, alpha + segment_s) + single * segment_s
            return 2 * (before_s + alpha + segment_s)
        hops, volume = _terms(self.algorithm, p)
        return hops * alpha + volume * nbytes / rate


def _terms(algorithm: str, p: int) -> tuple[float, float]:
    """Hops and multiples of n that an algorithm pays, where its cost is hops·α + volume·n/B; p ≥ 2."""
    if algorithm == "ring":
        return 2 * (p - 1), 2 * (p - 1) / p
    if algorithm == "tree":
        return 2 * (p - 1).bit_length(), 2.0  # ⌈log₂p⌉, exact for any p
    if algorithm == "halving-doubling":
        log_q = p.bit_length() - 1
        q = 1 << log_q
        return 2 * log_q + 2 * (p != q), 2 * (q - 1) / q + 2 * (p != q)
    return 1, 1.0  # link


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """Return the bus bandwidth of an all-reduce in bytes/s, n/t · 2(p−1)/p: what to compare with the hardware's rate.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, section AllReduce; nccl-tests prints it in GB/s as ``busbw``.

    Raises:
        ValueError: ``nbytes`` is negative, ``ranks`` < 1 or ``seconds`` not positive.
    """
    _at_least_zero("nbytes", nbytes)
    _count("ranks", ranks)
    _above_zero("seconds", seconds)
    return nbytes / seconds * (2 * (ranks - 1) / ranks)


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
        _count("nodes", self.nodes)
        _count("ranks_per_node", self.ranks_per_node)
        for name in ("inside", "between"):
            _at_least_zero(f"{name}_latency_s", getattr(self, f"{name}_latency_s"))
            _above_zero(f"{name}_bytes_per_s", getattr(self, f"{name}_bytes_per_s"))
        if self.algorithm not in ("ring", "tree", "hierarchical"):
            raise ValueError(f"algorithm must be ring, tree or hierarchical; got {self.algorithm!r}")

    @property
    def ranks(self) -> int:
        """The world size, p."""
        return self.nodes * self.ranks_per_node

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce of ``nbytes`` bytes over all ranks."""
        _at_least_zero("nbytes", nbytes)
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


def fit_link(samples: Sequence[Sequence[float]], ranks: int = 2, algorithm: str = "ring") -> Link:
    """Return the link whose α and B fit measured all-reduces best, with its ``residual``.

    The cost h·α + v·n/B is linear in α and 1/B, so this is a linear least-squares fit of the *relative* errors:
    a millisecond counts more in a short sample than in a long one. Samples far off (by Huber's rule, over 1.345
    robust standard deviations) count less: a hiccup of the machine does not move the link. An α below 0 becomes 0.

    Args:
        samples: (bytes, measured s), or (bytes, measured s, ranks) where the world sizes differ.
        ranks: world size of samples of two numbers, and of the link that is returned.
        algorithm: ``ring``, ``tree``, ``halving-doubling`` or ``link``; the others are not linear in α and 1/B.

    Raises:
        ValueError: fewer than two samples that tell α from B, a value that is out of range, another algorithm, or
            times that do not grow with the bytes.
    """
    if algorithm not in ALGORITHMS or algorithm in ("pipelined-ring", "gloo"):
        raise ValueError(f"algorithm must be ring, tree, halving-doubling or link; got {algorithm!r}")
    rows = []  # (x, y) of α·x + y/B = 1, that is cost / measured = 1
    for position, (nbytes, seconds, *more) in enumerate(samples):
        world = int(more[0]) if more else ranks
        _at_least_zero(f"samples[{position}] bytes", nbytes)
        _above_zero(f"samples[{position}] seconds", seconds)
        if world < 2:
            raise ValueError(f"samples[{position}] ranks must be 2 or more; got {world!r}")
        hops, volume = _terms(algorithm, world)
        rows.append((hops / seconds, volume * nbytes / seconds))

    weights = [1.0] * len(rows)
    latency_s = s_per_byte = residual = 0.0
    for _ in range(30):
        weighed = list(zip(weights, rows, strict=True))
        xx, yy = sum(w * x * x for w, (x, _) in weighed), sum(w * y * y for w, (_, y) in weighed)
        xy = sum(w * x * y for w, (x, y) in weighed)
        x1, y1 = sum(w * x for w, (x, _) in weighed), sum(w * y for w, (_, y) in weighed)
        if xx * yy - xy * xy <= 1e-12 * xx * yy:  # also without samples
            raise ValueError(f"samples must hold at least two different sizes; got {len(rows)} samples")
        latency_s = (x1 * yy - y1 * xy) / (xx * yy - xy * xy)
        latency_s, s_per_byte = max(latency_s, 0.0), (y1 - max(latency_s, 0.0) * xy) / yy
        errors = [abs(latency_s * x + s_per_byte * y - 1) for x, y in rows]
        residual = median(errors)
        far = 1.345 * 1.4826 * residual
        weights = [1.0 if error <= far else far / error for error in errors]
        if residual < 1e-12:
            break
    if s_per_byte <= 0:
        raise ValueError("samples must take longer with more bytes; the fit gives no positive rate")
    return Link(latency_s, 1 / s_per_byte, ranks, algorithm, residual=residual)


# -- the step -----------------------------------------------------------------------------------------


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
            last backward and one transfer of all bytes, optimizer.
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
        link: what carries the transfers, a :class:`Link` or :class:`Cluster`; None: no communication.
        backward_s: seconds of one backward; by default the last gradient ends it.
        optimizer_s: seconds of the optimizer's step.
        overlap: False sends everything after the backward.
        accumulation: micro-batches per step, k.

    Raises:
        ValueError: a time or size is negative or not finite, ``buckets`` does not hold each gradient once,
            ``backward_s`` ends before the last gradient, or ``accumulation`` < 1.
    """
    for name, value in (("forward_s", forward_s), ("optimizer_s", optimizer_s)):
        _at_least_zero(name, value)
    _count("accumulation", accumulation)
    for position, (ready, nbytes) in enumerate(gradients):
        if not (0 <= ready <= _MOST and 0 <= nbytes <= _MOST):  # this loop is the hot one: no texts in it
            _at_least_zero(f"gradients[{position}] ready time", ready)
            _at_least_zero(f"gradients[{position}] bytes", nbytes)
    positions = [position for bucket in buckets for position in bucket]
    if sorted(positions) != list(range(len(gradients))):
        raise ValueError(
            f"buckets must hold each of the {len(gradients)} gradients exactly once; "
            f"got {len(positions)} positions, {len(set(positions) & set(range(len(gradients))))} of them right"
        )
    last_ready = max((ready for ready, _ in gradients), default=0.0)
    if backward_s is None:
        backward_s = last_ready
    _at_least_zero("backward_s", backward_s)
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
        whole = link.seconds(sum(nbytes for _, nbytes in gradients))
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
    _count("layers", layers)
    _at_least_zero("layer_bytes", layer_bytes)
    _at_least_zero("backward_s", backward_s)
    return [(backward_s * ((layer + 1) / layers), layer_bytes) for layer in range(layers)]  # the last at backward_s


# -- checks -------------------------------------------------------------------------------------------


def _at_least_zero(name: str, value: float) -> None:
    if not 0 <= value <= _MOST:
        raise ValueError(f"{name} must be a finite number, 0 or more; got {value!r}")


def _above_zero(name: str, value: float) -> None:
    if not 0 < value <= _MOST:
        raise ValueError(f"{name} must be a finite number above 0; got {value!r}")


def _count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**53:
        raise ValueError(f"{name} must be a whole number from 1 to 2⁵³; got {value!r}")
