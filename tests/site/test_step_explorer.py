"""The step explorer in a real browser: its model is that of Python, its drawing is the timeline."""

import math
import random
from dataclasses import asdict

import pytest

from _ext.explorers.explorer_examples import EXAMPLES
from _ext.explorers.step_drawing import step_words
from ddplab.costmodel import ALGORITHMS, Link, bucketed, simulate_step

LAWS = [name for name in ALGORITHMS if not name.startswith("nccl")]  # the page draws laws, not NCCL's tuner


def random_case(rng: random.Random) -> dict:
    """A step with everything drawn at random: sizes from nothing to GiB, links from slow to NVLink."""
    count = rng.choice([1, 2, 5, 30, 120])
    ready = sorted(rng.choice([0.0, rng.uniform(0, 0.5)]) for _ in range(count))
    cap = int(2 ** rng.uniform(8, 30))
    case = {
        "forward_s": rng.uniform(0, 0.5),
        "gradients": [[at, rng.choice([0, int(2 ** rng.uniform(0, 28))])] for at in ready],
        "cap_bytes": cap,
        "first_cap_bytes": rng.choice([cap, 2**20]),
        "optimizer_s": rng.choice([0, rng.uniform(0, 0.1)]),
        "overlap": rng.random() < 0.8,
        "accumulation": rng.choice([1, 1, 2, 7]),
        "link": {
            "latency_s": rng.choice([0, 10 ** rng.uniform(-7, -2)]),
            "bytes_per_s": 10 ** rng.uniform(6, 12),
            "ranks": rng.choice([1, 2, 3, 4, 5, 8, 127, 128, 129, rng.randint(2, 16384), 16384]),
            "algorithm": rng.choice(LAWS),
            "segment_bytes": rng.choice([2**20, int(2 ** rng.uniform(10, 24))]),
        },
    }
    if rng.random() < 0.3:
        case["backward_s"] = ready[-1] + rng.uniform(0, 0.1)
    return case


def in_python(case: dict) -> dict:
    gradients = [(at, nbytes) for at, nbytes in case["gradients"]]
    known = {name: case[name] for name in ("optimizer_s", "overlap", "accumulation", "backward_s") if name in case}
    buckets = bucketed(gradients, case["cap_bytes"], case["first_cap_bytes"])
    return asdict(simulate_step(case["forward_s"], gradients, buckets, Link(**case["link"]), **known))


def worst_difference(here: object, there: object) -> float:
    """The largest relative difference of two numbers, lists or mappings of the same form."""
    if isinstance(here, dict):
        assert here.keys() == there.keys()
        return max(worst_difference(here[name], there[name]) for name in here)
    if isinstance(here, list | tuple):
        assert len(here) == len(there)
        return max((worst_difference(a, b) for a, b in zip(here, there, strict=True)), default=0.0)
    return 0.0 if here == there else abs(here - there) / max(abs(here), abs(there))


def test_the_model_of_the_page_is_that_of_python(page):
    rng = random.Random(6)
    cases = [random_case(rng) for _ in range(400)]
    steps = page.evaluate("cases => document.querySelector('ddp-step-explorer').simulate(cases)", cases)
    expected = [in_python(case) for case in cases]
    worst = max(worst_difference(a, b) for a, b in zip(expected, steps, strict=True))
    print(f"largest relative difference: {worst:.1e}")
    assert worst <= 1e-9
    assert {case["link"]["algorithm"] for case in cases} == set(LAWS)
    exposed = sum(step["exposed_s"] > 0 for step in expected)
    assert 40 < exposed < 380  # both kinds of steps were compared
    assert sum(len(step["timeline"]) for step in expected) > 1200


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_shows_what_python_predicts(page, name):
    page.get_by_label("Example").select_option(name)
    settings = EXAMPLES[name].settings
    label = page.locator("ddp-step-explorer svg").first.get_attribute("aria-label")
    for seconds in (settings.step().step_s, settings.step().exposed_s, settings.step(overlap=False).step_s):
        assert milliseconds(seconds) in label
        assert milliseconds(seconds) in step_words(EXAMPLES[name])
    # every value of an example is one that its slider can take
    page.evaluate(
        """() => document.querySelectorAll('ddp-step-explorer .step-slider input').forEach(
            input => input.dispatchEvent(new Event('input', {bubbles: true})))"""
    )
    assert page.evaluate("document.querySelector('ddp-step-explorer').settings") == asdict(settings)
    assert page.get_by_label("Example").input_value() == name


def milliseconds(seconds: float) -> str:
    digits = 2 if seconds < 0.000995 else 1 if seconds < 0.09995 else 0
    return f"{seconds * 1e3:.{digits}f} ms"


def test_a_slider_redraws_and_speaks_once(stopped_page):
    page = stopped_page
    live = page.locator("ddp-step-explorer [role=status]")
    assert live.inner_text() == ""
    page.evaluate(
        """() => { window.spoken = []; const live = document.querySelector("ddp-step-explorer [role=status]");
            new MutationObserver(() => spoken.push(live.textContent)).observe(live, {childList: true}); }"""
    )
    slider = page.get_by_role("slider", name="Bucket size")
    before = page.locator("ddp-step-explorer .step-number").inner_text()
    ethernet = EXAMPLES["ethernet"].settings
    assert before == f"{milliseconds(ethernet.step().step_s)} a step"
    slider.focus()
    for _ in range(7):  # 25 → 5 MiB
        page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "5 MiB"
    expected = milliseconds(ethernet.step(bucket_mib=5).step_s)
    assert page.locator("ddp-step-explorer .step-number").inner_text() == f"{expected} a step"  # at once
    assert page.evaluate("spoken.length") == 0  # not at every step of the slider
    page.clock.run_for(5000)
    assert expected in live.inner_text()
    assert page.evaluate("spoken.length") == 1
    assert page.get_by_label("Example").input_value() == ""
    assert page.locator("ddp-step-explorer output").evaluate_all("all => all.every(one => one.ariaLive === 'off')")


def test_every_control_changes_the_drawing(page):
    drawing = page.locator("ddp-step-explorer svg").first
    names = page.locator("ddp-step-explorer .step-slider label").all_inner_texts()
    assert len(names) == 10
    for name in names:
        control = page.locator("ddp-step-explorer").get_by_label(name, exact=True)
        before = drawing.inner_html()
        if control.evaluate("e => e.tagName") == "SELECT":
            control.focus()
            page.keyboard.press("ArrowDown")
        else:
            control.focus()
            page.keyboard.press("End")
        assert drawing.inner_html() != before, name
        page.get_by_label("Example").select_option("laptop")
        page.get_by_label("Example").select_option("ethernet")


@pytest.mark.parametrize("name", ["ethernet", "thousands"])
def test_the_drawing_is_the_timeline(page, name):
    """Rectangles of transfers are as long as the model says, on the scale of the axis."""
    page.get_by_label("Example").select_option(name)
    settings = EXAMPLES[name].settings
    step, serial = settings.step(), settings.step(overlap=False)
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("ddp-step-explorer svg")[0].querySelectorAll(".transfer, .exposed")]
            .map(one => [one.getAttribute("class"), +one.getAttribute("x"), +one.getAttribute("width")])"""
    )
    axis = page.evaluate(
        """() => { const one = document.querySelector("ddp-step-explorer svg line.axis");
            return [+one.getAttribute("x1"), +one.getAttribute("x2")]; }"""
    )
    scale = (axis[1] - axis[0]) / serial.step_s
    end = step.forward_s + step.backward_s
    expected = []
    for one in step.timeline:
        if one.start_s < end:
            expected.append(("transfer", one.start_s, min(one.end_s, end)))
        if one.end_s > end:
            expected.append(("exposed", max(one.start_s, end), one.end_s))
    assert {kind for kind, _, _ in expected} == {"transfer", "exposed"}
    if name == "thousands":  # one transfer begins under the backward and ends after it
        assert len(expected) == len(step.timeline) + 1
    for (kind, x, width), (wanted, start, stop) in zip(boxes, expected, strict=True):
        assert kind == wanted
        assert math.isclose(x, axis[0] + start * scale, abs_tol=0.02)
        assert math.isclose(width, (stop - start) * scale, abs_tol=0.02)


# -- the guided experiments of the chapter -----------------------------------------------------------


def test_experiment_buckets_have_a_best_size():
    """Ethernet: from 25 MiB down the step gets shorter until a bucket is a layer or so, then latency costs more."""
    settings = EXAMPLES["ethernet"].settings
    took = {mib: settings.step(bucket_mib=mib).step_s for mib in (0.25, 1, 5, 25, 50, 1024)}
    assert took[5] < took[25] < took[50] < took[1024]
    assert took[5] < took[1]
    assert took[0.25] == took[1]  # a bucket holds at least one gradient
    assert settings.step(bucket_mib=128).overlapped_s == 0
    flat = [settings.step(bucket_mib=mib).step_s for mib in (3, 4, 5, 6, 8, 10)]
    assert max(flat) < 1.03 * min(flat)
    assert min(took.values()) > settings.step().lower_bound_s


def test_experiment_a_faster_link_stops_paying():
    """Ethernet: ten times the bandwidth removes nearly all waiting; eight times more changes almost nothing."""
    settings = EXAMPLES["ethernet"].settings
    slow, fast, faster = (settings.step(gbit_per_s=rate) for rate in (10, 100, 800))
    assert fast.exposed_s < slow.exposed_s / 5
    assert fast.step_s - faster.step_s < 0.02 * fast.step_s
    assert faster.step_s >= faster.lower_bound_s == faster.compute_s


def test_experiment_thousands_of_ranks_need_another_algorithm():
    """4096 ranks: the ring's latency is most of the step at 25 MiB; larger buckets or a tree take it away."""
    settings = EXAMPLES["thousands"].settings
    ring, large, tree = settings.step(), settings.step(bucket_mib=400), settings.step(algorithm="tree")
    assert ring.exposed_s > ring.compute_s
    assert large.exposed_s < 0.1 * large.compute_s
    assert tree.exposed_s < 0.01 * tree.compute_s
    assert settings.gbit_per_s == 20 * EXAMPLES["ethernet"].settings.gbit_per_s
    assert settings.step(ranks=8).exposed_s < 0.01 * settings.step(ranks=8).compute_s


def test_experiment_accumulation_spreads_the_wait():
    """Ethernet: four micro-batches wait as long as one does, once for all four."""
    settings = EXAMPLES["ethernet"].settings
    one, four = settings.step(), settings.step(accumulation=4)
    assert math.isclose(one.exposed_s, four.exposed_s)
    assert math.isclose(four.step_s, 4 * one.compute_s + one.exposed_s)
