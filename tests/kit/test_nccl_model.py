"""``algorithm="nccl"``: the choice against NCCL's constants by hand, the time against ring and tree by events."""

import heapq
import math
import random
from collections import deque
from dataclasses import replace

import pytest
from nccl_trees import nccl_trees

from ddplab.buckets import MIB
from ddplab.costmodel import Link, allreduce_seconds, nccl_choice
from ddplab.model.nccl import nccl_seconds

RANKS = [2, 3, 4, 5, 8, 13, 16, 33]


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-15)


# -- what is chosen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "ranks", "gpudirect", "algorithm", "protocol", "expected_us"),
    [  # at 10 GB/s, 10,000 bytes per µs; the constants of tuning.cc, v2.30.7-1
        (64, 8, False, "tree", "LL", 6.8 + 6 * 5.0 + 64 / (1e4 * 0.92 / 3.8 * 0.85 / 2)),
        (100_000, 4, False, "ring", "LL", 6.6 + 6 * 5.0 + 100_000 / (1e4 * 0.5 * 4 / 6)),
        (2**20, 32, False, "tree", "Simple", 8.4 + 10 * 14.0 + 2**20 / (1e4 * 0.92 * 0.85 / 2 * 0.5)),
        (2**28, 4, False, "ring", "Simple", 8.4 + 1.4 * 6 * 14.0 + 0.4 * 8.4 + 2**28 / (1e4 * 4 / 6)),
        (2**20, 32, True, "tree", "LL128", 14.0 + 10 * 8.5 + 2**20 / (1e4 * 0.92 * 0.9375 * 0.85 / 2 * 0.6)),
        (2**24, 16, True, "ring", "LL128", 14.0 + 30 * 8.5 + 2**24 / (1e4 * 0.92 * 16 / 30)),
    ],
)
def test_the_choice_by_hand(nbytes, ranks, gpudirect, algorithm, protocol, expected_us):
    choice = nccl_choice(nbytes, ranks, 1e10, gpudirect=gpudirect)
    assert choice == (algorithm, protocol, near(expected_us * 1e-6))


@pytest.mark.parametrize("gpudirect", [False, True])
def test_small_messages_take_the_tree_and_large_ones_the_ring(gpudirect):
    borders = []
    for ranks in (4, 8, 32, 128, 512):
        took = [nccl_choice(2**k, ranks, 12.5e9, gpudirect=gpudirect) for k in range(6, 36)]
        assert (took[0].algorithm, took[0].protocol) == ("tree", "LL")
        assert (took[-1].algorithm, took[-1].protocol) == ("ring", "Simple")
        algorithms = [choice.algorithm for choice in took]
        border = algorithms.index("ring")
        assert algorithms == ["tree"] * border + ["ring"] * (len(took) - border)
        borders.append(border)
    assert borders == sorted(set(borders))  # the more ranks, the larger


def test_the_latency_of_the_network_does_not_change_the_choice():
    """So it may take what is slower: the tree would be 2.7 times as fast over a link of 10 ms."""
    assert nccl_choice(MIB, 32, 125e6).algorithm == "ring"
    slow = Link(10e-3, 125e6, 32, "nccl").seconds(MIB)
    assert slow == near(nccl_seconds(MIB, 32, 10e-3, 125e6, "ring", "Simple"))
    assert slow > 2.5 * nccl_seconds(MIB, 32, 10e-3, 125e6, "tree", "Simple")


# -- how long it takes --------------------------------------------------------------------------------


def test_large_messages_reach_the_rate_of_a_ring():
    for ranks in (2, 4, 8, 32):
        bytes_s = 2 * (ranks - 1) / ranks * 1e12 / 1e9
        assert allreduce_seconds(10**12, ranks, 1e-4, 1e9, "nccl") == pytest.approx(bytes_s, rel=0.02)
        assert allreduce_seconds(10**12, ranks, 0.0, 1e9, "nccl") == near(bytes_s)


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_nothing_but_latency(ranks):
    assert allreduce_seconds(10**9, 1, 1.0, 1.0, "nccl") == 0
    for algorithm, hops in (("ring", 2 * (ranks - 1)), ("tree", 2 * (ranks - 1).bit_length())):
        for protocol in ("LL", "LL128", "Simple"):
            assert nccl_seconds(0, ranks, 1.0, 1.0, algorithm, protocol) == hops
    assert allreduce_seconds(0, ranks, 1.0, 1e9, "nccl") == (2 if ranks == 2 else 2 * (ranks - 1).bit_length())


def test_never_faster_with_more_to_do_as_long_as_the_choice_is_the_same():
    draw = random.Random(1)
    for _ in range(2000):
        algorithm, protocol = draw.choice(["ring", "tree"]), draw.choice(["LL", "Simple"])
        ranks, more = draw.randint(2, 40), draw.choice([1 + 1e-6, 1.01, 2])
        n, alpha, rate = 10 ** draw.uniform(0, 9), 10 ** draw.uniform(-7, -2), 10 ** draw.uniform(6, 11)
        least = nccl_seconds(n, ranks, alpha, rate, algorithm, protocol) * (1 - 1e-12)
        assert nccl_seconds(n * more, ranks, alpha, rate, algorithm, protocol) >= least
        assert nccl_seconds(n, ranks, alpha * more, rate, algorithm, protocol) >= least
        assert nccl_seconds(n, ranks, alpha, rate / more, algorithm, protocol) >= least


def test_no_messages_together_take_less_than_the_bound():
    draw = random.Random(2)
    for _ in range(2000):
        algorithm = draw.choice(["nccl", "nccl-gpudirect"])
        link = Link(10 ** draw.uniform(-7, -1), 10 ** draw.uniform(6, 11), draw.randint(1, 40), algorithm)
        n, parts = 10 ** draw.uniform(2, 9), draw.randint(1, 30)
        assert link.least_seconds(n) <= parts * link.seconds(n / parts) * (1 + 1e-12)
    ring = Link(1e-3, 1e9, 8)
    assert ring.least_seconds(10**6) == ring.seconds(10**6)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_the_ring_slice_by_slice(ranks, protocol):
    """Each rank in the order of runRing: one slice after the other, the last receive of a loop before its next send."""
    draw = random.Random(ranks)
    slices = 2 if protocol == "Simple" else 1
    for _ in range(30):
        nbytes, alpha, rate = draw.randint(1, 400 * MIB), 10 ** draw.uniform(-5, -1.5), 10 ** draw.uniform(7, 9)
        chunk = (2 * MIB if protocol == "Simple" else 32 * 1024) * 2  # of both channels together
        wire = rate / (1 if protocol == "Simple" else 2)
        now = free = 0.0
        for loop in range(math.ceil(nbytes / (ranks * chunk))):
            slice_s = min(chunk, nbytes / ranks - loop * chunk) / slices / wire
            came = [now] * slices  # when the slice that a step sends has come; equal on all ranks
            for _step in range(2 * (ranks - 1)):
                for at in range(slices):
                    free = max(free, came[at]) + slice_s
                    came[at] = free + alpha
            now = came[-1]
        assert nccl_seconds(nbytes, ranks, alpha, rate, "ring", protocol) == near(now)


def tree_by_events(ranks, nbytes, alpha, rate, chunk):
    """Seconds until the last chunk of both of NCCL's trees has come; a rank's connections share its link by turns."""
    trees = nccl_trees(ranks)
    children = [[[r for r in range(ranks) if tree[r] == rank] for rank in range(ranks)] for tree in trees]
    chunks = max(1, math.ceil(nbytes / 2 / chunk))
    sizes = [min(chunk, nbytes / 2 - at * chunk) for at in range(chunks)]
    waiting = [{} for _ in range(ranks)]  # (tree, to): chunks ready for a peer
    busy, events, got, number, last = [False] * ranks, [], {}, 0, 0.0

    def put(rank, tree, to, at):
        waiting[rank].setdefault((tree, to), deque()).append(at)

    def send(rank, now):
        nonlocal number
        key = next((key for key, queue in waiting[rank].items() if queue), None)
        if busy[rank] or key is None:
            return
        at = waiting[rank][key].popleft()
        waiting[rank][key] = waiting[rank].pop(key)  # its next turn comes last
        busy[rank], number = True, number + 2
        heapq.heappush(events, (now + sizes[at] / rate, number, rank, None))
        heapq.heappush(events, (now + sizes[at] / rate + alpha, number + 1, key[1], (key[0], rank, at)))

    def down(rank, tree, at):
        for child in children[tree][rank]:
            put(rank, tree, child, at)

    for tree in (0, 1):
        for rank in range(ranks):
            for at in range(chunks if not children[tree][rank] else 0):
                put(rank, tree, trees[tree][rank], at)
    for rank in range(ranks):
        send(rank, 0.0)
    while events:
        now, _, rank, arrived = heapq.heappop(events)
        if arrived is None:
            busy[rank] = False
        else:
            (tree, sender, at), last = arrived, now
            if sender == trees[tree][rank]:
                down(rank, tree, at)
            else:
                got[tree, rank, at] = got.get((tree, rank, at), 0) + 1
                if got[tree, rank, at] == len(children[tree][rank]):
                    if trees[tree][rank] is None:
                        down(rank, tree, at)
                    else:
                        put(rank, tree, trees[tree][rank], at)
        send(rank, now)
    return last


@pytest.mark.parametrize("ranks", RANKS)
def test_the_tree_chunk_by_chunk(ranks):
    """A formula for what depends on turns: within a seventh, with 3 ranks within a fifth; large messages within 4 %."""
    for nbytes in (65_536, MIB, 4 * MIB, 16 * MIB, 128 * MIB):
        for alpha, rate in ((1e-2, 125e6), (1e-3, 625e6), (14e-6, 25e9)):
            seen = tree_by_events(ranks, nbytes, alpha, rate, MIB // 2)
            close = 0.04 if nbytes > 100 * MIB else 0.21 if ranks == 3 else 0.145
            assert nccl_seconds(nbytes, ranks, alpha, rate, "tree", "Simple") == pytest.approx(seen, rel=close)


# -- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 8, 1e9), r"nbytes must be .*got -1"),
        ((math.nan, 8, 1e9), r"nbytes must be .*got nan"),
        ((1, 8, 0), r"bytes_per_s must be .*got 0"),
        ((1, 1, 1e9), r"ranks must be 2 or more; got 1"),
        ((1, 2.5, 1e9), r"ranks must be .*got 2.5"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        nccl_choice(*arguments)


def test_a_link_of_nccl_checks_as_others_do():
    with pytest.raises(ValueError, match=r"algorithm must be one of .*nccl.*; got 'NCCL'"):
        Link(1e-3, 1e9, 8, "NCCL")
    with pytest.raises(ValueError, match="nbytes"):
        replace(Link(1e-3, 1e9, 8, "nccl")).seconds(-1)
