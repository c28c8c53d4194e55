"""The interval calculator in a real browser: Python's numbers, and marks where the numbers are."""

import random

import pytest

from _ext.explorers.interval_drawing import Job, interval_words
from ddplab.model.interval import daly_s, lost_fraction, young_s


def random_job(rng: random.Random) -> dict[str, float]:
    """From saves of milliseconds and years without a failure to saves that take longer than the job lives."""
    mtbf_s = 10 ** rng.uniform(1, 8)
    return {
        "save_s": mtbf_s * 10 ** rng.uniform(-7, 0.7),
        "mtbf_s": mtbf_s,
        "restart_s": rng.choice([0.0, mtbf_s * 10 ** rng.uniform(-5, 1)]),
        "interval_s": mtbf_s * 10 ** rng.uniform(-5, 3.2),
    }


def test_the_page_computes_what_python_computes(page):
    rng = random.Random(6)
    jobs = [random_job(rng) for _ in range(200)]
    there = page.evaluate("jobs => document.querySelector('ddp-interval-calculator').compute(jobs)", jobs)
    for job, seen in zip(jobs, there, strict=True):
        save_s, mtbf_s = job["save_s"], job["mtbf_s"]
        assert seen["young_s"] == pytest.approx(young_s(save_s, mtbf_s), rel=1e-9)
        assert seen["daly_s"] == pytest.approx(daly_s(save_s, mtbf_s), rel=1e-9)
        assert seen["lost"] == pytest.approx(lost_fraction(**job), rel=1e-9, abs=1e-9)
    assert sum(job["save_s"] >= 2 * job["mtbf_s"] for job in jobs) > 2
    assert sum(seen["lost"] == 1 for seen in there) > 2  # too many failures for a float


@pytest.mark.parametrize("job", [Job(), Job(5, 1, 30, 0, 10), Job(0.5, 16384, 1825, 600, 30)])
def test_the_page_says_what_the_figure_says(page, job):
    fill(page, job)
    assert page.locator("ddp-interval-calculator svg").get_attribute("aria-label").endswith(interval_words(job))


def fill(page, job):
    labels = ("A save stops", "Nodes", "Days per failure", "Failure to next step", "Your interval")
    for label, value in zip(labels, vars(job).values(), strict=True):
        page.get_by_label(label).fill(str(value))


def test_keys_change_it_and_it_speaks_once(stopped_page):
    page = stopped_page
    number, live = (
        page.locator("ddp-interval-calculator .step-number"),
        page.locator("ddp-interval-calculator [role=status]"),
    )
    assert number.inner_text() == "128 min between saves (Daly)"
    assert live.inner_text() == ""
    page.get_by_label("Nodes").focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    assert page.get_by_label("Nodes").input_value() == "131"
    assert number.inner_text() != "128 min between saves (Daly)"  # at once
    assert live.inner_text() == ""  # not at every key
    page.clock.run_for(5000)
    assert live.inner_text() == interval_words(Job(nodes=131))


def test_every_field_changes_the_curve(page):
    curve = page.locator("ddp-interval-calculator svg")
    for field in page.locator("ddp-interval-calculator").get_by_role("spinbutton").all():
        before = curve.inner_html()
        field.fill("77")
        assert curve.inner_html() != before
    assert page.locator("ddp-interval-calculator").get_by_role("spinbutton").count() == 5


@pytest.mark.parametrize("bad", ["", "0", "-3"])
def test_what_is_not_a_time_is_reported_and_not_computed(page, bad):
    field = page.get_by_label("A save stops")
    field.fill(bad)
    assert page.get_by_text("Each field takes a number above 0").is_visible()
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator("ddp-interval-calculator .step-number").inner_text() == "–"
    field.fill("30")
    assert not page.get_by_text("Each field takes a number above 0").is_visible()
    assert page.locator("ddp-interval-calculator .step-number").inner_text() == "128 min between saves (Daly)"


def test_marks_are_where_the_numbers_are(page):
    """The circles of the drawing lie on the curve, and Daly's at its lowest point."""
    points = page.locator("ddp-interval-calculator polyline").get_attribute("points").split()
    curve = [tuple(map(float, point.split(","))) for point in points]
    lowest = max(y for _, y in curve)  # SVG's y grows downwards
    circles = page.locator("ddp-interval-calculator circle").evaluate_all(
        "all => all.map(one => [+one.cx.baseVal.value, +one.cy.baseVal.value])"
    )
    for x, y in circles:
        near = min(curve, key=lambda point: abs(point[0] - x))
        assert abs(near[1] - y) < 4
    assert circles[0][1] == pytest.approx(lowest, abs=0.5)
    assert circles[1][1] < lowest - 20
