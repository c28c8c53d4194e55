"""ddplab.model.interval against Daly's printed values, a search for the minimum, and simulated failures."""

import math
import random

import pytest

from ddplab.model.interval import daly_s, lost_fraction, young_s

MINUTE, HOUR = 60.0, 3600.0


def simulated(interval_s: float, save_s: float, mtbf_s: float, restart_s: float, segments: int) -> float:
    """The share lost in a job that is played event by event: train, save, fail, restart."""
    rng = random.Random(7)
    now_s = 0.0
    failure_s = rng.expovariate(1 / mtbf_s)
    for _ in range(segments):
        needs_s = interval_s + save_s
        while failure_s < now_s + needs_s:  # what was not saved is lost, and a restart comes on top
            now_s = failure_s
            failure_s = now_s + rng.expovariate(1 / mtbf_s)
            needs_s = restart_s + interval_s + save_s
        now_s += needs_s
    return 1 - segments * interval_s / now_s


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_printed_values(mtbf_s, minutes):
    """The captions of figures 3 to 5 of the paper, all with a save of 5 minutes."""
    digits = 1 if minutes < 10 else 0
    assert round(daly_s(5 * MINUTE, mtbf_s) / MINUTE, digits) == minutes


def test_young_by_hand():
    assert young_s(50, 3600) == 600
    assert young_s(0, 3600) == 0


def test_dalys_interval_is_mtbf_where_a_save_takes_longer():
    assert daly_s(200, 100) == daly_s(1e6, 100) == 100
    just_below = daly_s(200 - 1e-6, 100)  # x is 1: 200 · (1 + 1/3 + 1/9) − 200, no smooth join
    assert just_below == pytest.approx(200 * 4 / 9)


@pytest.mark.parametrize("case", [(600, 30, 6000, 0), (600, 30, 6000, 300), (100, 100, 400, 50), (2000, 10, 1000, 100)])
def test_the_expectation_is_that_of_simulated_failures(case):
    assert simulated(*case, segments=60_000) == pytest.approx(lost_fraction(*case), rel=0.03)


@pytest.mark.parametrize("restart_s", [0, 100, 3000])
@pytest.mark.parametrize("save_s", [1, 10, 100, 500])
def test_where_the_minimum_is(save_s, restart_s):
    """Searched on a fine grid: Daly's interval costs nearly what the best costs, and R does not move the best."""
    mtbf_s = 1000.0
    grid = [mtbf_s * 1.01**n for n in range(-700, 200)]
    best = min(grid, key=lambda t: lost_fraction(t, save_s, mtbf_s, restart_s))
    least = lost_fraction(best, save_s, mtbf_s, restart_s)
    assert math.exp((best + save_s) / mtbf_s) * (1 - best / mtbf_s) == pytest.approx(1, abs=0.03)  # no R in it
    assert lost_fraction(daly_s(save_s, mtbf_s), save_s, mtbf_s, restart_s) < least + 1e-3
    assert lost_fraction(young_s(save_s, mtbf_s), save_s, mtbf_s, restart_s) >= least - 1e-5


def test_young_is_the_limit_of_cheap_saves():
    """With C ≪ M the share lost at Young's interval is √(2C/M), and Daly's interval is Young's."""
    for save_s in (1.0, 0.01, 0.0001):
        ratio = lost_fraction(young_s(save_s, 1e6), save_s, 1e6) / math.sqrt(2 * save_s / 1e6)
        assert ratio == pytest.approx(1, abs=2e-3)
        assert daly_s(save_s, 1e6) == pytest.approx(young_s(save_s, 1e6), rel=1e-3)


def test_hopeless_jobs_lose_everything():
    assert lost_fraction(1e6, 1, 1) == 1
    assert lost_fraction(1, 1, 1, restart_s=1e6) == 1
    assert 0 <= lost_fraction(1e-3, 0, 1e9) < 1e-9


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_what_is_no_time_is_refused(bad):
    for call in (
        lambda: young_s(bad, 1),
        lambda: young_s(1, bad),
        lambda: daly_s(bad, 1),
        lambda: lost_fraction(bad, 1, 1),
        lambda: lost_fraction(1, 1, 1, bad),
    ):
        with pytest.raises(ValueError, match=r"must be a number of seconds.*got"):
            call()
    with pytest.raises(ValueError, match="interval_s must be a number of seconds, more than 0; got 0"):
        lost_fraction(0, 1, 1)
    with pytest.raises(ValueError, match="mtbf_s must be"):
        young_s(1, 0)
