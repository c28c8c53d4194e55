"""What `ddplab tune-buckets` tries and advises, from given measurements: no ranks."""

import math
import random

import pytest

from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ddplab.costmodel import Link, bucketed, equal_layers, simulate_step
from ddplab.model.tuning.advice import advise, median_interval
from ddplab.model.tuning.measure import LEAST_ROUNDS
from ddplab.model.tuning.plans import choose, link_of, make_plans

KIB = 1024


@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 40, 200])
def test_the_interval_of_the_median_is_as_narrow_as_its_confidence_allows(n):
    values = list(range(n))
    random.Random(n).shuffle(values)
    low, high = median_interval(values)
    if low == -math.inf:
        assert high == math.inf
        assert 2 * 0.5**n > 0.01  # even the whole range is not sure enough
        return
    below, above = low, n - 1 - high  # values outside, on either side
    assert below == above
    outside = [2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in (below, below + 1)]
    assert outside[0] <= 0.01 < outside[1]


def noisy(middle, spread, rounds=20, seed=0):
    rng = random.Random(seed)
    return [middle + spread * rng.uniform(-1, 1) for _ in range(rounds)]


def test_a_clear_optimum_is_recommended():
    found = advise(noisy(0.100, 0.002), {1.0: noisy(0.095, 0.002, seed=1), 4.0: noisy(0.080, 0.002, seed=2)})
    assert (found.cap_mb, found.verdict, found.best_mb) == (4.0, "clear", 4.0)
    assert 0.017 < found.low_s < found.gain_s < found.high_s < 0.023


def test_noise_larger_than_the_difference_keeps_the_default():
    found = advise(noisy(0.100, 0.030), {4.0: noisy(0.098, 0.030, seed=1)})
    assert (found.cap_mb, found.verdict, found.best_mb) == (None, "within noise", 4.0)
    assert found.low_s < 0 < found.high_s


def test_a_disturbance_that_hits_all_caps_of_a_round_hides_nothing():
    """The spread of each cap is ten times their difference; that of the differences is not."""
    drift = noisy(0.100, 0.050)
    found = advise(drift, {4.0: [s - 0.005 for s in drift]})
    assert (found.cap_mb, found.verdict) == (4.0, "clear")
    slower = [s + 0.0001 for s in drift]
    assert advise(drift, {4.0: [s - 0.005 for s in drift], 8.0: slower}).best_mb == 4.0
    shuffled = random.Random(3).sample(drift, len(drift))
    assert advise(drift, {4.0: [s - 0.005 for s in shuffled]}).verdict == "within noise"


@pytest.mark.parametrize("other_s", [0.120, 0.100, 0.0995])
def test_the_default_stays_where_nothing_is_a_percent_faster(other_s):
    found = advise(noisy(0.100, 1e-5), {4.0: noisy(other_s, 1e-5, seed=1)})
    assert (found.cap_mb, found.verdict) == (None, "default is best")


def test_few_rounds_are_never_clear():
    assert advise([0.2] * (LEAST_ROUNDS - 1), {4.0: [0.1] * (LEAST_ROUNDS - 1)}).verdict == "within noise"
    assert advise([0.2] * LEAST_ROUNDS, {4.0: [0.1] * LEAST_ROUNDS}).verdict == "clear"


def test_without_another_cap_the_default_is_best():
    assert advise([0.1], {}).verdict == "default is best"


GRADIENTS = equal_layers(40, MIB, 0.080)
LINK = Link(1e-3, 600 * MIB, 2, "link")


def test_plans_are_those_of_the_cost_model():
    plans = make_plans(GRADIENTS, None, LINK, 0.010, 0.090, [3, 3, 3.5])
    assert [plan.cap_mb for plan in plans[:3]] == [None, 3, 3.5]  # also where the buckets are the same
    for plan in plans:
        caps = (DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES) if plan.cap_mb is None else (int(plan.cap_mb * MIB),)
        assert plan.step == simulate_step(0.010, GRADIENTS, bucketed(GRADIENTS, *caps), LINK, backward_s=0.090)
    grid = [tuple(plan.bucket_bytes) for plan in plans[3:]]
    assert len(set(grid)) == len(grid)
    assert {len(buckets) for buckets in grid} >= {40, 1}


def test_tensors_of_two_dtypes_fill_buckets_of_their_own():
    kinds = ["half" if i % 2 else "float" for i in range(40)]
    (plan,) = (p for p in make_plans(GRADIENTS, kinds, LINK, 0.0, 0.080, [20]) if p.cap_mb == 20)
    assert plan.bucket_bytes == [20 * MIB, 20 * MIB]
    assert plan.step.timeline[0].ready_s == pytest.approx(0.078)  # full only with the last but one gradient


def test_the_best_and_its_surroundings_are_chosen():
    plans = make_plans(GRADIENTS, None, LINK, 0.010, 0.080)
    best = min(plans[1:], key=lambda plan: plan.step.step_s)
    for most in range(2, 7):
        chosen = choose(plans, most=most)
        assert len(chosen) == most
        assert chosen[0].cap_mb is None
        assert best in chosen
    caps = [plan.cap_mb for plan in chosen[1:]]
    assert caps == sorted(caps)
    assert caps[0] < best.cap_mb < caps[-1]
    assert choose(plans[:1]) == plans[:1]
    assert [plan.cap_mb for plan in choose(make_plans(GRADIENTS, None, LINK, 0, 0.08, [7, 2]), [7, 2])] == [None, 2, 7]


@pytest.mark.parametrize("algorithm", ["ring", "link"])
def test_a_link_that_hardly_notices_bytes_is_all_latency(algorithm):
    sizes = [4 * KIB, 64 * KIB, MIB]
    link = link_of([(n, 0.060 - n * 1e-12) for n in sizes], 3, algorithm)
    for nbytes in sizes:
        assert link.seconds(nbytes) == pytest.approx(0.060, rel=1e-3)
    assert link.residual < 1e-3
    real = Link(1e-3, 1e9, 3, algorithm)
    assert link_of([(n, real.seconds(n)) for n in sizes], 3, algorithm).bytes_per_s == pytest.approx(1e9)


def steps_s(plan, rounds=20, seed=0):
    """Times of steps as predicted, and up to 2 % more, as steps are."""
    chance = random.Random(seed)
    return [plan.step.step_s * chance.uniform(1, 1.02) for _ in range(rounds)]


def verdict(link, caps_mb):
    """What is advised for six gradients of 64 KiB, each ready 20 ms after the one before, if steps are as predicted."""
    gradients = [((number + 1) * 0.020, 64 * KIB) for number in range(6)]
    default, *others = make_plans(gradients, None, link, 0.006, 0.120, caps_mb)[: 1 + len(caps_mb)]
    return advise(steps_s(default), {plan.cap_mb: steps_s(plan, seed=plan.cap_mb) for plan in others})


def test_small_buckets_are_best_on_a_link_that_is_hidden_behind_the_backward():
    """64 KiB travel as long as a layer computes: all at once double the backward, one by one hide but the last."""
    found = verdict(Link(0, 64 * KIB / 0.020, 2, "link"), [0.05, 0.1])
    assert (found.verdict, found.cap_mb) == ("clear", 0.05)
    assert found.gain_s == pytest.approx(0.100, rel=0.05)


def test_latency_asks_for_few_buckets():
    """Six transfers of 60 ms are at least 360 ms; the default's one bucket takes half of that."""
    found = verdict(Link(0.060, 1.25e9, 2, "link"), [0.05])
    assert (found.verdict, found.cap_mb) == ("default is best", None)
    assert found.gain_s < -0.150
