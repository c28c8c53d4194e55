"""What an all-reduce costs between equal ranks: closed forms, nothing measured.

Symbols in the formulas: n bytes, p ranks, α latency of one hop in s (``latency_s``), B rate of one rank's link in
bytes/s and per direction (``bytes_per_s``; 1 Gbit/s is 125e6). A message of m bytes keeps a link busy for m/B and
has arrived α + m/B after it left. Adding numbers up (the γ term of the papers) is not counted. No formula loops over
ranks: 16,384 of them are as cheap to predict as 2.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 2005);
MPICH ``allreduce_intra_reduce_scatter_allgather.c``; NVIDIA/nccl ``src/graph/tuning.cc`` and ``src/graph/trees.cc``;
pytorch/gloo ``gloo/allreduce.cc``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .arguments import above_zero, at_least_zero, count
from .assignment import MIB
from .nccl import nccl_choice, nccl_seconds

ALGORITHMS = ("ring", "pipelined-ring", "gloo", "tree", "halving-doubling", "link", "nccl", "nccl-gpudirect")
GLOO_SEGMENT_BYTES = MIB  # gloo/allreduce.h, AllreduceOptionsImpl::kMaxSegmentSize


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
        once its receiver is ready (gloo/transport/tcp/pair.cc, ``Pair::handleRemotePendingRecv``):
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
    ``nccl``
        What NCCL 2.30 takes by its own table (:func:`ddplab.costmodel.nccl_choice`: ring or tree, LL or Simple), on
        *this* network: src/device/all_reduce.h, one rank per node. A ring goes round in loops of p·4 MiB, its steps
        in two slices, so that a large message pays α about once per loop, not 2(p−1) times; a tree passes chunks of
        512 KiB. LL doubles the bytes. NCCL does not know α, so it may take what is slower here; and where it changes
        its mind, more bytes or a higher B can take longer, or less.
    ``nccl-gpudirect``
        The same where NCCL may take LL128, too: InfiniBand or RoCE with GPUDirect RDMA.
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
        residual: of a link from :func:`ddplab.model.fit.fit_link`, the median of
            ``|predicted / measured − 1|``; else None.
    """

    latency_s: float
    bytes_per_s: float
    ranks: int = 2
    algorithm: str = "ring"
    segment_bytes: int = GLOO_SEGMENT_BYTES
    residual: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:  # noqa: D105
        at_least_zero("latency_s", self.latency_s)
        above_zero("bytes_per_s", self.bytes_per_s)
        count("ranks", self.ranks)
        count("segment_bytes", self.segment_bytes)
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {self.algorithm!r}")

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce of ``nbytes`` bytes."""
        at_least_zero("nbytes", nbytes)
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
        if self.algorithm in ("nccl", "nccl-gpudirect"):
            choice = nccl_choice(nbytes, p, rate, gpudirect=self.algorithm == "nccl-gpudirect")
            return nccl_seconds(nbytes, p, alpha, rate, choice.algorithm, choice.protocol)
        hops, volume = hops_and_volume(self.algorithm, p)
        return hops * alpha + volume * nbytes / rate

    def least_seconds(self, nbytes: float) -> float:
        """Return a time below which no messages of ``nbytes`` together get, however they are cut."""
        if self.algorithm not in ("nccl", "nccl-gpudirect"):
            return self.seconds(nbytes)  # one message: two never cost less
        at_least_zero("nbytes", nbytes)
        p = self.ranks
        return 0.0 if p == 1 else self.latency_s + 2 * (p - 1) / p * nbytes / self.bytes_per_s


def hops_and_volume(algorithm: str, p: int) -> tuple[float, float]:
    """Return h and v of an algorithm whose cost is h·α + v·n/B, for p ≥ 2 ranks."""
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
    at_least_zero("nbytes", nbytes)
    count("ranks", ranks)
    above_zero("seconds", seconds)
    return nbytes / seconds * (2 * (ranks - 1) / ranks)
