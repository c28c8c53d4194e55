"""ddplab.costmodel against values by hand and step-by-step simulations of its algorithms."""

import heapq
import math
import random
from dataclasses import replace

import pytest
from nccl_trees import nccl_trees

from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ddplab.costmodel import (
    ALGORITHMS,
    Cluster,
    Link,
    allreduce_seconds,
    bucketed,
    bus_bandwidth,
    equal_layers,
    fit_link,
    simulate_step,
)

RANKS = [2, 3, 4, 5, 7, 8, 13, 16]
LAWS = [a for a in ALGORITHMS if not a.startswith("nccl")]  # one formula each; NCCL chooses, in test_nccl_model.py


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-15)


# -- one all-reduce: by hand --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "ranks", "seconds"),
    [  # 1,000,000 bytes, 1 ms a hop, 10 MB/s: the bytes once over the link take 100 ms
        ("link", 2, 0.101),
        ("ring", 2, 0.102),  # 2 rounds of 1 ms and 50 ms
        ("ring", 4, 0.156),  # 6 rounds of 1 ms and 25 ms
        ("tree", 4, 0.204),  # up and down 2 levels, and twice the bytes
        ("tree", 5, 0.206),  # the third level
        ("halving-doubling", 4, 0.154),  # 4 rounds: 50, 25, 25, 50 ms
        ("halving-doubling", 3, 0.304),  # the third rank sends all and gets all: 2 × 101 ms more than 2 ranks
        ("pipelined-ring", 4, 0.151),  # segments of 100,000 bytes: six rounds of 25 ms, and the last hop
        ("gloo", 2, 0.102),  # two phases of five segments of 10 ms, and one hop: 51 ms each
    ],
)
def test_by_hand(algorithm, ranks, seconds):
    assert allreduce_seconds(1_000_000, ranks, 1e-3, 10e6, algorithm, segment_bytes=100_000) == near(seconds)


@pytest.mark.parametrize("algorithm", LAWS)
def test_limits(algorithm):
    def cost(n, p, alpha=1e-4, rate=1e8):
        return allreduce_seconds(n, p, alpha, rate, algorithm)

    assert cost(10**9, 1) == 0.0
    for ranks in RANKS:
        hops = cost(0, ranks, alpha=1.0)
        assert hops >= 1
        assert cost(0, ranks) == near(hops * 1e-4)  # no bytes: latency and nothing else
        assert cost(10**6, ranks, alpha=0.0, rate=1e3) == near(1e5 * cost(10**6, ranks, alpha=0.0))
    huge = cost(25 * MIB, 16_384)
    assert math.isfinite(huge)
    assert huge > 0.25  # the bytes alone


@pytest.mark.parametrize("algorithm", LAWS)
def test_never_faster_with_more_to_do(algorithm):
    draw = random.Random(1)
    for _ in range(2000):
        ranks, segment = draw.randint(2, 40), draw.randint(1, 3 * MIB)
        n, alpha, rate = 10 ** draw.uniform(0, 9), 10 ** draw.uniform(-7, -2), 10 ** draw.uniform(6, 11)
        more = draw.choice([1 + 1e-6, 1.01, 2])
        link = Link(alpha, rate, ranks, algorithm, segment)
        base = link.seconds(n)
        assert link.seconds(n * more) >= base * (1 - 1e-12)
        assert replace(link, latency_s=alpha * more).seconds(n) >= base * (1 - 1e-12)
        assert replace(link, bytes_per_s=rate * more).seconds(n) <= base * (1 + 1e-12)
        part = n * draw.random()  # two messages never cost less than one: what Step.lower_bound_s rests on
        assert link.seconds(part) + link.seconds(n - part) >= base * (1 - 1e-12)


def test_bus_bandwidth_is_the_rate_of_the_link():
    assert bus_bandwidth(10**9, 8, 1.0) == near(1.75e9)
    for ranks in RANKS:
        assert bus_bandwidth(10**6, ranks, allreduce_seconds(10**6, ranks, 0.0, 5e9)) == near(5e9)


# -- one all-reduce: step by step ---------------------------------------------------------------------


def ring_by_steps(ranks, sizes, latency_s, bytes_per_s, window=None):
    """Pass real numbers round a ring; the last arrival, and what each rank holds.

    ``sizes``: bytes of each segment of a chunk. ``window``: a rank sends segment k once it has received segment
    k − window of its phase (gloo); None: once the link is free and the segment has arrived.
    """
    per_chunk, total = len(sizes), (ranks - 1) * len(sizes)
    values = [[[float(100 * r + 10 * c + j) for j in range(per_chunk)] for c in range(ranks)] for r in range(ranks)]
    arrived = [[0.0] * per_chunk for _ in range(ranks)]  # when the rank got what it sends next
    free = [0.0] * ranks
    for phase in (0, 1):
        begin = [max(row) for row in arrived] if window else [0.0] * ranks
        got = [[] for _ in range(ranks)]
        for k in range(total):
            turn, j = divmod(k, per_chunk)
            sent = []
            for rank in range(ranks):
                chunk = (rank - turn + phase) % ranks
                start = max(free[rank], arrived[rank][j], begin[rank])
                if window and k >= window:
                    start = max(start, got[rank][k - window])
                free[rank] = start + sizes[j] / bytes_per_s
                sent.append((chunk, values[rank][chunk][j], free[rank] + latency_s))
            for rank in range(ranks):
                chunk, value, at = sent[rank - 1]
                values[rank][chunk][j] = value if phase else values[rank][chunk][j] + value
                arrived[rank][j] = at
                got[rank].append(at)
    return max(map(max, arrived)), values


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("algorithm", ["ring", "pipelined-ring", "gloo"])
def test_rings_step_by_step(algorithm, ranks):
    draw = random.Random(ranks)
    for _ in range(40):
        nbytes, segment = ranks * draw.randint(1, 20_000), draw.randint(500, 20_000)
        latency_s, rate = 10 ** draw.uniform(-5, -2), 10 ** draw.uniform(5, 8)
        chunk = nbytes // ranks
        if algorithm == "ring":
            sizes, window = [chunk], None
        elif algorithm == "pipelined-ring":
            sizes, window = [segment] * (chunk // segment) + [chunk % segment] * (chunk % segment > 0), None
        else:  # the arithmetic of gloo's ring(): numSegments, numSegmentsPerRank
            segments = max(math.ceil(nbytes / segment), 2 * ranks)
            per_chunk = math.ceil(segments / ranks)
            sizes, window = [chunk / per_chunk] * per_chunk, 2
        seconds, values = ring_by_steps(ranks, sizes, latency_s, rate, window)
        assert allreduce_seconds(nbytes, ranks, latency_s, rate, algorithm, segment_bytes=segment) == near(seconds)
        for held in values:  # it was an all-reduce
            for chunk_number, row in enumerate(held):
                for j, value in enumerate(row):
                    assert value == near(sum(100 * r + 10 * chunk_number + j for r in range(ranks)))


@pytest.mark.parametrize("ranks", RANKS)
def test_halving_doubling_step_by_step(ranks):
    latency_s, rate, q = 1e-3, 1e6, 1 << (ranks.bit_length() - 1)
    nbytes = 840 * q
    extra = ranks - q
    clock = [0.0] * ranks
    held = [[float(r + block) for block in range(q)] for r in range(ranks)]
    active = [2 * i + 1 if i < extra else i + extra for i in range(q)]  # as MPICH folds them

    def pass_on(pairs):  # (from, to, blocks, add): all at once
        snapshot, before = [list(row) for row in held], list(clock)
        for source, target, blocks, add in pairs:
            clock[target] = max(before[source], before[target]) + latency_s + len(blocks) * nbytes / q / rate
            for block in blocks:
                held[target][block] = snapshot[source][block] + add * snapshot[target][block]

    pass_on([(2 * i, 2 * i + 1, range(q), 1) for i in range(extra)])
    spans, masks = [(0, q)] * q, []
    mask = 1
    while mask < q:
        pairs, after = [], list(spans)
        for me in range(q):
            low, high = spans[me]
            middle = (low + high) // 2
            after[me] = (low, middle) if me < me ^ mask else (middle, high)
            pairs.append((active[me ^ mask], active[me], range(*after[me]), 1))
        pass_on(pairs)
        spans = after
        masks.append(mask)
        mask *= 2
    for mask in reversed(masks):
        pass_on([(active[me ^ mask], active[me], range(*spans[me ^ mask]), 0) for me in range(q)])
        spans = [(min(spans[me][0], spans[me ^ mask][0]), max(spans[me][1], spans[me ^ mask][1])) for me in range(q)]
    pass_on([(2 * i + 1, 2 * i, range(q), 0) for i in range(extra)])

    assert all(row == [sum(r + block for r in range(ranks)) for block in range(q)] for row in held)
    assert allreduce_seconds(nbytes, ranks, latency_s, rate, "halving-doubling") == near(max(clock))


@pytest.mark.parametrize("ranks", [*RANKS, 100])
def test_the_trees_of_nccl_are_that_deep_and_move_that_much(ranks):
    sent = dict.fromkeys(range(ranks), 0.0)  # in n: up to the parent, down to each child, half of the bytes per tree
    for parents in nccl_trees(ranks):
        depth = 0
        for rank in range(ranks):
            hops, at = 0, rank
            while parents[at] is not None:
                hops, at = hops + 1, parents[at]
            depth = max(depth, hops)
            if parents[rank] is not None:
                sent[rank] += 0.5
                sent[parents[rank]] += 0.5
        assert allreduce_seconds(0, ranks, 1.0, 1.0, "tree") == 2 * depth
    volume = allreduce_seconds(1.0, ranks, 0.0, 1.0, "tree")
    assert max(sent.values()) == (volume if ranks > 3 else ranks / 2)


# -- nodes of several ranks ---------------------------------------------------------------------------


def test_cluster_by_hand():
    cluster = Cluster(4, 8, 3e-6, 200e9, 20e-6, 50e9)  # 100 MB: 0.5 ms inside, 2 ms between
    assert cluster.ranks == 32
    assert cluster.seconds(10**8) == near(56 * 3e-6 + 6 * 20e-6 + 2 * 31 / 32 * 2e-3)
    assert replace(cluster, algorithm="tree").seconds(10**8) == near(2 * (7 * 3e-6 + 2 * 20e-6) + 2 * 2e-3)
    two = replace(cluster, nodes=2, algorithm="tree")  # n/2 up one tree, n/2 down the other
    assert two.seconds(10**8) == near(2 * (7 * 3e-6 + 20e-6) + 2e-3)
    hierarchical = replace(cluster, algorithm="hierarchical")
    assert hierarchical.seconds(10**8) == near(14 * 3e-6 + 6 * 20e-6 + 1.75 * 0.5e-3 + 1.5 * 2e-3)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
def test_a_cluster_of_one_kind_of_link_is_a_link(algorithm):
    flat = algorithm.replace("hierarchical", "ring")
    for n in (0, 10**4, 10**8):
        assert Cluster(1, 1, 1.0, 1.0, 1.0, 1.0, algorithm).seconds(n) == 0.0
        assert Cluster(9, 1, 7.0, 1.0, 1e-5, 1e9, algorithm).seconds(n) == near(
            allreduce_seconds(n, 9, 1e-5, 1e9, flat)
        )  # one rank per node: what is inside does not matter
        if algorithm != "tree":  # within a node NCCL's tree is a chain
            assert Cluster(1, 9, 1e-5, 1e9, 7.0, 1.0, algorithm).seconds(n) == near(
                allreduce_seconds(n, 9, 1e-5, 1e9, flat)
            )


# -- fitting a link -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "link"])
def test_fit_recovers_the_link(algorithm):
    link = Link(40e-6, 1.25e9, 6, algorithm)
    exact = [(n, link.seconds(n)) for n in (1000, 10**5, 10**7)]
    found = fit_link(exact, 6, algorithm)
    assert (found.latency_s, found.bytes_per_s, found.ranks) == (near(40e-6), near(1.25e9), 6)
    assert found.residual == pytest.approx(0, abs=1e-9)
    mixed = [(n, replace(link, ranks=p).seconds(n), p) for n in (10**4, 10**6) for p in (2, 3, 8)]
    assert fit_link(mixed, 6, algorithm).bytes_per_s == near(1.25e9)


def test_fit_bears_hiccups_and_noise():
    draw = random.Random(3)
    link = Link(100e-6, 1e9, 4)
    samples = [(2**k, link.seconds(2**k) * (1 + draw.gauss(0, 0.02))) for k in range(8, 28)]
    for position in (2, 9, 16, 17, 19):
        samples[position] = (samples[position][0], samples[position][1] * 2)
    found = fit_link(samples, 4)  # without weights the rate is off by over a tenth
    assert found.latency_s == pytest.approx(100e-6, rel=0.04)
    assert found.bytes_per_s == pytest.approx(1e9, rel=0.04)
    assert 0.005 < found.residual < 0.04
    assert found.seconds(samples[9][0]) / samples[9][1] == pytest.approx(0.5, abs=0.05)


def test_fit_has_no_negative_latency():
    found = fit_link([(1000, 0.8e-6), (10**6, 1.1e-3), (10**7, 1.1e-2)], algorithm="link")
    assert found.latency_s == 0.0
    assert found.bytes_per_s > 0


# -- the step -----------------------------------------------------------------------------------------

SLOW = Link(10e-3, 1e6, algorithm="link")  # 10 ms, and 1 ms per 1000 bytes


def test_step_by_hand():
    gradients = [(0.010, 10_000), (0.020, 10_000), (0.050, 10_000)]
    step = simulate_step(0.040, gradients, [[0], [1], [2]], SLOW, optimizer_s=0.005)
    # ready at 50, 60, 90 ms; 20 ms each: 50–70, 70–90, 90–110
    assert [(t.ready_s, t.start_s, t.end_s) for t in step.timeline] == [
        (near(0.050), near(0.050), near(0.070)),
        (near(0.060), near(0.070), near(0.090)),
        (near(0.090), near(0.090), near(0.110)),
    ]
    assert (step.step_s, step.exposed_s, step.overlapped_s) == (near(0.115), near(0.020), near(0.040))
    assert (step.communication_s, step.lower_bound_s) == (near(0.060), near(0.095))
    assert (step.compute_s, step.serial_s) == (near(0.095), near(0.155))

    one = simulate_step(0.040, gradients, [[0, 1, 2]], SLOW, optimizer_s=0.005)
    assert (one.step_s, one.exposed_s) == (near(0.135), near(0.040))
    late = simulate_step(0.040, gradients, [[0], [1], [2]], SLOW, optimizer_s=0.005, backward_s=0.080)
    assert (late.step_s, late.exposed_s) == (near(0.125), 0.0)
    serial = simulate_step(0.040, gradients, [[0], [1], [2]], SLOW, optimizer_s=0.005, overlap=False)
    assert (serial.step_s, serial.overlapped_s) == (near(0.155), near(0.0))
    assert serial.timeline[0].start_s == near(0.090)
    silent = simulate_step(0.040, gradients, [[0], [1], [2]], None, optimizer_s=0.005)
    assert (silent.step_s, silent.communication_s, silent.timeline) == (near(0.095), 0.0, ())


def test_accumulation_sends_once():
    gradients = [(0.010, 10_000), (0.050, 10_000)]
    once = simulate_step(0.040, gradients, [[0], [1]], SLOW)
    four = simulate_step(0.040, gradients, [[0], [1]], SLOW, accumulation=4)
    assert four.step_s == near(once.step_s + 3 * 0.090)
    assert four.communication_s == near(once.communication_s)
    assert (four.forward_s, four.backward_s) == (near(0.160), near(0.200))
    assert four.timeline[0].start_s == near(3 * 0.090 + 0.050)


def random_case(draw):
    gradients = sorted(
        (draw.choice([draw.random(), 0.5]) * 0.2, draw.randint(0, 60_000)) for _ in range(draw.randint(1, 40))
    )
    order = list(range(len(gradients)))
    if draw.random() < 0.3:
        draw.shuffle(order)  # buckets of the first iteration are not in ready order
    cap = draw.randint(1, 150_000)
    buckets = [[order[i] for i in bucket] for bucket in bucketed([gradients[i] for i in order], cap)]
    algorithm = draw.choice(ALGORITHMS)
    link = Link(10 ** draw.uniform(-5, -2), 10 ** draw.uniform(5, 8), draw.randint(1, 20), algorithm, 10_000)
    timings = {"optimizer_s": draw.random() * 0.02, "accumulation": draw.randint(1, 4)}
    return draw.random() * 0.1, gradients, buckets, link, timings


def by_events(forward_s, gradients, buckets, link, overlap, optimizer_s, accumulation):
    """The step as a machine runs it: events in order of time, buckets counted down, a queue before the link."""
    events, now, busy, queue, done = [], 0.0, None, [], []
    backward_s = max(ready for ready, _ in gradients)
    for _ in range(accumulation - 1):
        now += forward_s
        now += backward_s
    now += forward_s
    for position, (ready, _) in enumerate(gradients):
        heapq.heappush(events, (now + ready, 0, position))
    heapq.heappush(events, (now + backward_s, 1, None))
    pending = [len(bucket) for bucket in buckets]
    home = {position: number for number, bucket in enumerate(buckets) for position in bucket}
    following, finished = 0, not overlap
    while events:
        now, kind, which = heapq.heappop(events)
        if kind == 0:
            pending[home[which]] -= 1
        elif kind == 1:
            finished = False
        else:
            done.append((which, busy, now))
            busy = None
        while not finished and following < len(buckets) and pending[following] == 0:
            queue.append(following)
            following += 1
        if busy is None and queue:
            number, busy = queue.pop(0), now
            heapq.heappush(events, (now + link.seconds(sum(gradients[i][1] for i in buckets[number])), 2, number))
    return now + optimizer_s, done


@pytest.mark.parametrize("overlap", [True, False])
def test_the_recurrence_is_what_happens(overlap):
    draw = random.Random(5)
    for _ in range(400):
        forward_s, gradients, buckets, link, timings = random_case(draw)
        step = simulate_step(forward_s, gradients, buckets, link, overlap=overlap, **timings)
        seconds, done = by_events(forward_s, gradients, buckets, link, overlap, **timings)
        assert step.step_s == near(seconds)
        assert [(t.bucket, near(t.start_s), near(t.end_s)) for t in step.timeline] == done


def test_bounds_hold():
    draw = random.Random(6)
    for _ in range(400):
        forward_s, gradients, buckets, link, timings = random_case(draw)
        step = simulate_step(forward_s, gradients, buckets, link, **timings)
        serial = simulate_step(forward_s, gradients, buckets, link, overlap=False, **timings)
        silent = simulate_step(forward_s, gradients, buckets, None, **timings)
        room = 1 + 1e-9
        assert silent.step_s == near(step.compute_s)
        assert step.compute_s <= step.lower_bound_s * room
        assert step.lower_bound_s <= step.step_s * room
        assert step.step_s <= serial.step_s * room
        assert serial.step_s == near(step.serial_s)
        assert step.step_s == near(step.compute_s + step.exposed_s)
        assert step.exposed_s + step.overlapped_s == near(step.communication_s)
        assert min(step.exposed_s, step.overlapped_s) >= 0
        if link.algorithm in LAWS:  # at another rate NCCL may choose what takes longer
            faster = replace(link, bytes_per_s=link.bytes_per_s * 1.5)
            assert simulate_step(forward_s, gradients, buckets, faster, **timings).step_s <= step.step_s * room
        for transfer, before in zip(step.timeline[1:], step.timeline, strict=False):
            assert transfer.start_s >= max(transfer.ready_s, before.end_s)


# -- from the model to the buckets --------------------------------------------------------------------


def test_equal_layers_and_their_buckets():
    """``assign``, which ``bucketed`` asks, stands beside torch's own in test_assign.py."""
    buckets = bucketed(equal_layers(12, 4 * MIB, 0.1), DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES)
    assert [len(bucket) for bucket in buckets] == [1, 7, 4]
    assert bucketed([(0.1, 4), (0.2, 4), (0.3, 8)], 8) == [[0, 1], [2]]
    assert equal_layers(4, 100, 0.2) == [(near(0.05), 100), (near(0.1), 100), (near(0.15), 100), (0.2, 100)]


# -- errors -------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allreduce_seconds(-1, 2, 0, 1), r"nbytes must be .* 0 or more; got -1"),
        (lambda: allreduce_seconds(NAN, 2, 0, 1), r"nbytes must be .* got nan"),
        (lambda: allreduce_seconds(10**400, 2, 0, 1), r"nbytes must be a finite number"),
        (lambda: allreduce_seconds(1, 0, 0, 1), r"ranks must be a whole number .* got 0"),
        (lambda: allreduce_seconds(1, 2.5, 0, 1), r"ranks must be a whole number .* got 2.5"),
        (lambda: allreduce_seconds(1, True, 0, 1), r"ranks must be a whole number .* got True"),
        (lambda: allreduce_seconds(1, 2, -1e-6, 1), r"latency_s must be .* got -1e-06"),
        (lambda: allreduce_seconds(1, 2, 0, 0), r"bytes_per_s must be .* above 0; got 0"),
        (lambda: allreduce_seconds(1, 2, 0, INF), r"bytes_per_s must be .* got inf"),
        (lambda: allreduce_seconds(1, 2, 0, 1, "star"), r"algorithm must be one of ring, .*; got 'star'"),
        (lambda: allreduce_seconds(1, 2, 0, 1, "gloo", segment_bytes=0), r"segment_bytes must be .* got 0"),
        (lambda: Link(0, 1).seconds(-5), r"nbytes must be .* got -5"),
        (lambda: Cluster(0, 8, 0, 1, 0, 1), r"nodes must be .* got 0"),
        (lambda: Cluster(2, 8, 0, 1, 0, -1), r"between_bytes_per_s must be .* got -1"),
        (lambda: Cluster(2, 8, 0, 1, 0, 1, "link"), r"algorithm must be ring, tree or hierarchical; got 'link'"),
        (lambda: bus_bandwidth(1, 2, 0), r"seconds must be .* above 0; got 0"),
        (lambda: fit_link([]), r"samples must hold at least two different sizes; got 0"),
        (lambda: fit_link([(10, 1.0), (10, 1.1)]), r"two different sizes; got 2"),
        (lambda: fit_link([(10, 1.0), (1000, 0.001)]), r"samples with more bytes must take longer"),
        (lambda: fit_link([(10, 0.0), (20, 1.0)]), r"samples\[0\] seconds must be .* got 0.0"),
        (lambda: fit_link([(10, 1.0, 1), (20, 2.0, 1)]), r"samples\[0\] ranks must be 2 or more; got 1"),
        (lambda: fit_link([(10, 1.0), (20, 2.0)], algorithm="gloo"), r"algorithm must be ring, .*; got 'gloo'"),
        (lambda: simulate_step(-1.0, [], [], SLOW), r"forward_s must be .* got -1.0"),
        (lambda: simulate_step(0.0, [(NAN, 1)], [[0]], SLOW), r"gradients\[0\] ready time must be .* got nan"),
        (lambda: simulate_step(0.0, [(0.1, 1), (0.2, -4)], [[0, 1]], SLOW), r"gradients\[1\] bytes must be .* got -4"),
        (lambda: simulate_step(0.0, [(0.1, 1)], [[0, 0]], SLOW), r"buckets must hold each of the 1 gradients .* once"),
        (lambda: simulate_step(0.0, [(0.1, 1), (0.2, 1)], [[0]], SLOW), r"buckets must hold each of the 2 gradients"),
        (lambda: simulate_step(0.0, [(0.1, 1)], [[0]], SLOW, backward_s=0.05), r"backward_s must not be below .* 0.05"),
        (lambda: simulate_step(0.0, [(0.1, 1)], [[0]], SLOW, accumulation=0), r"accumulation must be .* got 0"),
        (lambda: bucketed([(0.1, 1)], 10, 0), r"first_cap_bytes must be a positive number of bytes; got 0"),
        (lambda: equal_layers(0, 1, 1.0), r"layers must be a whole number .* got 0"),
    ],
)
def test_errors_name_the_argument_and_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
