"""What NCCL takes for an all-reduce, a ring or a double tree and in which protocol, and how long that then runs.

For one rank per node and one network card below 25 GB/s. Read in NVIDIA/nccl, tag v2.30.7-1, not run; symbols as in
link.py. Choice and time are two things: NCCL chooses by a table of its own, whatever the network then does.

Sources: ``src/graph/tuning.cc`` (``ncclTunerConstantsDefaults``, ``ncclTopoTuneModel``, ``ncclTopoGetAlgoTime``),
``src/enqueue.cc`` (``topoGetAlgoInfo``, ``calcCollChunking``), ``src/device/all_reduce.h`` (``runRing``,
``runTreeSplit``), ``src/device/prims_simple.h`` (``genericOp``), ``src/include/collectives.h``
(``ALLREDUCE_CHUNKSTEPS``, ``ALLREDUCE_SLICESTEPS``), ``src/init.cc`` (``DEFAULT_BUFFSIZE`` and its like),
``src/graph/connect.cc`` (``ncclTopoPostset``), ``src/graph/trees.cc`` (``ncclGetDtree``).
"""

from __future__ import annotations

from typing import NamedTuple

from .arguments import above_zero, at_least_zero, count
from .assignment import MIB

CHANNELS = 2  # ncclTopoPostset doubles the one channel of the ring, so that both trees have one
# In µs: a start, and a hop over whatever network (hwLatencies, NCCL_HW_NET; with one rank per node a ring takes the
# tree's). A net plugin may add its latency; sockets and InfiniBand report 0 (props->latency, net_socket.cc, net_ib).
_BASE_US = {"tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4}, "ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}}
_HOP_US = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}
# The share of the rate that it expects; a tree with one GPU per node: .92 · .85 (NCCL_TOPO_PATTERN_TREE).
_SHARE = {
    "tree": {"LL": 0.92 / 3.8 * 0.85, "LL128": 0.92 * 120 / 128 * 0.85, "Simple": 0.92 * 0.85},
    "ring": {"LL": 0.5, "LL128": 0.92, "Simple": 1.0},
}
# treeCorrectionFactor in tenths, A for 1.0, one digit per doubling from 64 B on; the last is never read.
_TREE_TENTHS = {
    "LL": "AAAA987777654456789AAAAA",
    "LL128": "AAAAA9888766666689999AAA",
    "Simple": "999999987665555678778999",
}
# A chunk is what a channel passes on in one step, in bytes of the tensor: an eighth of a buffer (NCCL_STEPS), of which
# LL needs half for its flags and LL128 a sixteenth; in Simple a ring takes four eighths of its 4 MiB, in two slices.
_CHUNK = {"LL": 32 * 1024, "LL128": 640 * 120 * 8 * 15 // 16, "Simple": MIB // 2}
_WIRE = {"LL": 2.0, "LL128": 16 / 15, "Simple": 1.0}  # bytes on the wire per byte of the tensor


class NcclChoice(NamedTuple):
    """What NCCL takes for one all-reduce.

    Attributes:
        algorithm: ``ring`` or ``tree``.
        protocol: ``LL``, ``LL128`` or ``Simple``.
        expected_s: the seconds that NCCL's own table expects of it.
    """

    algorithm: str
    protocol: str
    expected_s: float


def nccl_choice(nbytes: float, ranks: int, bytes_per_s: float, *, gpudirect: bool = False) -> NcclChoice:
    """Return the algorithm and the protocol that NCCL's tuner takes: those of the least expected time.

    The tuner knows ranks, bytes and the rate that a network card reports, no latency of *your* network: a hop counts
    5, 8.5 or 14 µs by protocol. Left out: the steps to which it rounds rates, and its caps on a channel's rate.

    Args:
        nbytes: bytes of the tensor on each rank.
        ranks: world size, one rank per node, 2 or more.
        bytes_per_s: rate that the network card reports. A shaper's is not reported.
        gpudirect: the card reads and writes GPU memory through one PCIe switch, so that LL128 may be taken.

    Raises:
        ValueError: a value is out of range.
    """
    at_least_zero("nbytes", nbytes)
    above_zero("bytes_per_s", bytes_per_s)
    count("ranks", ranks)
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more; got {ranks!r}")
    choices = []
    for protocol in ("LL", "LL128", "Simple") if gpudirect else ("LL", "Simple"):
        hop_us, doublings = _HOP_US[protocol], (int(nbytes) >> 6).bit_length() - 1
        tree_us = _BASE_US["tree"][protocol] + 2 * (ranks.bit_length() - 1) * hop_us  # ⌊log₂p⌋
        known = 0 <= doublings < 23
        tree_rate = bytes_per_s * _SHARE["tree"][protocol] / 2
        tree_rate *= int(_TREE_TENTHS[protocol][doublings], 16) / 10 if known else 1.0
        ring_us = _BASE_US["ring"][protocol] + 2 * (ranks - 1) * hop_us
        if protocol == "Simple" and nbytes // (CHANNELS * ranks) >= 64:
            ring_us *= 1.4  # "plateau effect of ring", from compute capability 8.0 on
        ring_rate = bytes_per_s * _SHARE["ring"][protocol] * ranks / (2 * (ranks - 1))
        choices.append(NcclChoice("tree", protocol, tree_us * 1e-6 + nbytes / tree_rate))
        choices.append(NcclChoice("ring", protocol, ring_us * 1e-6 + nbytes / ring_rate))
    return min(choices, key=lambda choice: choice.expected_s)


def nccl_seconds(nbytes: float, p: int, alpha: float, rate: float, algorithm: str, protocol: str) -> float:
    """Return what an algorithm of NCCL takes on a network of latency α and rate B, for p ≥ 2 ranks.

    ``ring``: ``runRing`` goes round in loops of p chunks per channel, M bytes a step in all channels together. A step
    passes slices on as they arrive, so it lasts M/B, or a hop and a slice if that is longer; the next loop starts
    when the last chunk has arrived: (2(p−1)−1) · max(M/B, α + M/(sB)) + α + M/B for each loop, of s slices.
    ``tree``: chunks of c bytes follow each other, x = c/B. One alone takes D = ⌈log₂p⌉ hops up and D down, where a
    rank sends to two children, and the others follow in v·x each: 2Dα + (3D−1)x + (K−1)v·x. Or the busiest rank's
    link sets the pace: v·n/B, after the first chunk has come and before the last has gone. The longer one holds; a run
    by events, with links shared by turns, is within a seventh of it (a fifth for 3 ranks), and 4 % for 128 MiB.
    """
    wire_rate = rate / _WIRE[protocol]
    chunk = _CHUNK[protocol]
    if algorithm == "ring":
        slices = 2 if protocol == "Simple" else 1
        loop_bytes = p * CHANNELS * chunk * (4 if protocol == "Simple" else 1)
        loops = int(nbytes // loop_bytes)
        rest = nbytes - loops * loop_bytes
        total = loops * _ring_loop_s(loop_bytes / p / wire_rate, p, alpha, slices)
        return total + (_ring_loop_s(rest / p / wire_rate, p, alpha, slices) if rest or not loops else 0.0)
    depth = (p - 1).bit_length()
    if protocol == "LL128":
        for size, least in ((64, 131072), (16, 32768)):
            while nbytes // (CHANNELS * chunk) < p.bit_length() * size and chunk > least:
                chunk //= 2
    x, half_s = min(chunk, nbytes / 2) / wire_rate, nbytes / 2 / wire_rate
    volume = {2: 1.0, 3: 1.5}.get(p, 2.0)
    alone_s = 2 * depth * alpha + (3 * depth - 1 if p > 3 else 2 * depth) * x
    busy_s = max(1, depth - 1) * alpha + 2 * max(0, depth - 2) * x + 2 * volume * half_s
    return max(alone_s + volume * (half_s - x), busy_s)


def _ring_loop_s(step_s: float, p: int, alpha: float, slices: int) -> float:
    return (2 * (p - 1) - 1) * max(step_s, alpha + step_s / slices) + alpha + step_s
