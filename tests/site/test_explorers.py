"""The step explorer and the ring stepper in a real browser: Python's model, the true ring, and usable by all."""

import ast
import gzip
import json
import math
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Page
from strict_page import STATIC, StrictPage, violations
from tiny_book import EXTENSIONS, TinyBook

from _ext.explorers.explorer_examples import EXAMPLES, page_data
from _ext.explorers.ring_drawing import ring_states
from _ext.explorers.step_drawing import step_words
from ddplab import launch
from ddplab.costmodel import ALGORITHMS, Link, bucketed, simulate_step
from tools import ROOT

pytestmark = pytest.mark.full


def html_page() -> str:
    """Both elements and nothing else, with the book's style sheet."""
    data = json.dumps(page_data()).replace("<", "\\u003c")
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Explorers</title>
        <meta name="viewport" content="width=device-width, initial-scale=1">
        <link rel="stylesheet" href="book.css"><link rel="stylesheet" href="explorers.css">
        <link rel="stylesheet" href="looks.css">
        <main><article><h1>Explorers</h1>
        <ddp-step-explorer example="ethernet"><script type="application/json">{data}</script>
        <div class="explorer-instead">Static step.</div></ddp-step-explorer>
        <ddp-ring-stepper ranks="4"><div class="explorer-instead">Static ring.</div></ddp-ring-stepper>
        </article></main><script defer src="step-explorer.js"></script><script defer src="ring-stepper.js"></script>
        </html>"""


@pytest.fixture(scope="module")
def element(browser):
    """The page, under a strict policy."""
    element = StrictPage(browser, html_page())
    yield element
    element.close()


@pytest.fixture
def page(element):
    """The one page, as it is when it opens."""
    yield element.anew()
    element.check()


@pytest.fixture
def stopped_page(element):
    """A page of its own, whose clock stands still."""
    yield element.stopped()
    element.check()


def wait_until(page: Page, said: str) -> None:
    """As ``page.wait_for_function``, which needs an eval that the policy of the page forbids."""
    for _ in range(200):
        if page.evaluate(said):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {said}")


# -- the same model ----------------------------------------------------------------------------------


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
            "algorithm": rng.choice(ALGORITHMS),
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
    assert {case["link"]["algorithm"] for case in cases} == set(ALGORITHMS)
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
        """() => document.querySelectorAll('.step-slider input').forEach(
            input => input.dispatchEvent(new Event('input', {bubbles: true})))"""
    )
    assert page.evaluate("document.querySelector('ddp-step-explorer').settings") == asdict(settings)
    assert page.get_by_label("Example").input_value() == name


def milliseconds(seconds: float) -> str:
    digits = 2 if seconds < 0.000995 else 1 if seconds < 0.09995 else 0
    return f"{seconds * 1e3:.{digits}f} ms"


# -- the step explorer -------------------------------------------------------------------------------


def test_a_slider_redraws_and_speaks_once(stopped_page):
    page = stopped_page
    live = page.locator("ddp-step-explorer [role=status]")
    assert live.inner_text() == ""
    page.evaluate(
        """() => { window.spoken = []; const live = document.querySelector("ddp-step-explorer [role=status]");
            new MutationObserver(() => spoken.push(live.textContent)).observe(live, {childList: true}); }"""
    )
    slider = page.get_by_role("slider", name="Bucket size")
    before = page.locator(".step-number").inner_text()
    ethernet = EXAMPLES["ethernet"].settings
    assert before == f"{milliseconds(ethernet.step().step_s)} a step"
    slider.focus()
    for _ in range(7):  # 25 → 5 MiB
        page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "5 MiB"
    expected = milliseconds(ethernet.step(bucket_mib=5).step_s)
    assert page.locator(".step-number").inner_text() == f"{expected} a step"  # at once
    assert page.evaluate("spoken.length") == 0  # not at every step of the slider
    page.clock.run_for(5000)
    assert expected in live.inner_text()
    assert page.evaluate("spoken.length") == 1
    assert page.get_by_label("Example").input_value() == ""
    assert page.locator("output").evaluate_all("all => all.every(one => one.ariaLive === 'off')")


def test_every_control_changes_the_drawing(page):
    drawing = page.locator("ddp-step-explorer svg").first
    names = page.locator(".step-slider label").all_inner_texts()
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


# -- the ring stepper --------------------------------------------------------------------------------


def test_the_ring_is_the_algorithm(page):
    sizes = range(2, 9)
    shown = page.evaluate("sizes => sizes.map(p => document.querySelector('ddp-ring-stepper').states(p))", [*sizes])
    for p, steps in zip(sizes, shown, strict=True):
        assert len(steps) == 2 * p - 1
        for here, there in zip(ring_states(p), steps, strict=True):
            assert (here.step, here.phase) == (there["step"], there["phase"])
            assert sorted(here.moves) == sorted((one["from"], one["to"], one["chunk"]) for one in there["moves"])
            assert [list(row) for row in here.held] == there["held"]
            assert [[sum(1 << r for r in share) for share in row] for row in here.shares] == there["from"]


@pytest.mark.parametrize("p", range(2, 9))
def test_every_number_is_the_sum_of_its_shares(p):
    states = ring_states(p)
    for state in states:
        for rank in range(p):
            for chunk in range(p):
                share = state.shares[rank][chunk]
                assert state.held[rank][chunk] == sum(10 * source + chunk + 1 for source in share)
    for rank in range(p):
        assert sum(len(share) == p for share in states[p - 1].shares[rank]) == 1  # after the reduce-scatter
        assert all(len(share) == p for share in states[-1].shares[rank])
    for state in states[1:]:  # each rank sends one chunk to its right neighbour
        assert sorted(source for source, _, _ in state.moves) == list(range(p))
        assert all(to == (source + 1) % p for source, to, _ in state.moves)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_ring_is_that_of_the_lab(p):
    """The lab's own function on real ranks holds the same numbers after each step, and sends the same chunks."""
    source = (ROOT / "gallery/internals/plot_03_ring_allreduce.py").read_text()
    wanted = [
        one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "ring_all_reduce"
    ]
    code = (
        "import torch, torch.distributed as dist\nfrom torch.distributed import P2POp, irecv, isend\n"
        + ast.get_source_segment(source, wanted[0])
        + "\n\ndef watched():\n"
        "    rank, p = dist.get_rank(), dist.get_world_size()\n"
        "    x = 10.0 * rank + torch.arange(1.0, p + 1)\n"
        "    steps = [(None, x.tolist())]\n"
        "    ring_all_reduce(x, lambda sent, x: steps.append((sent, x.tolist())))\n"
        "    return steps\n"
    )
    lab: dict = {"__name__": "__main__"}
    exec(code, lab)
    traces = launch(lab["watched"], p)
    for step, state in enumerate(ring_states(p)):
        assert [list(row) for row in state.held] == [trace[step][1] for trace in traces]
        if step:
            assert {source: chunk for source, _, chunk in state.moves} == {
                rank: trace[step][0] for rank, trace in enumerate(traces)
            }


def numbers(page: Page) -> list[list[int]]:
    rows = page.locator(".ring-table tbody tr")
    cells = rows.evaluate_all("rows => rows.map(row => [...row.cells].slice(1).map(cell => parseInt(cell.innerText)))")
    return [list(row) for row in cells]


def test_the_ring_goes_by_buttons_and_keys(page):
    states = [[list(row) for row in state.held] for state in ring_states(4)]
    slider, next_ = page.get_by_role("slider", name="Step", exact=True), page.get_by_role("button", name="Next")
    live = page.locator("ddp-ring-stepper [role=status]")
    assert numbers(page) == states[0]
    assert live.inner_text() == ""
    next_.focus()
    page.keyboard.press("Enter")
    assert numbers(page) == states[1]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert numbers(page) == states[3]
    page.keyboard.press("ArrowLeft")
    assert numbers(page) == states[2]
    assert slider.get_attribute("aria-valuetext") == "2 of 6, reduce-scatter"
    wait_until(page, "document.querySelector('ddp-ring-stepper [role=status]').textContent")
    said = live.inner_text()
    assert "Step 2 of 6, reduce-scatter" in said
    assert "Rank 0 sends chunk 4 to rank 1: 14 + 38 = 52." in said
    page.keyboard.press("End")
    assert numbers(page) == states[6]
    assert next_.get_attribute("aria-disabled") == "true"
    page.keyboard.press("Enter")  # at the end, and the focus stays
    assert numbers(page) == states[6]
    assert next_.evaluate("e => e === document.activeElement")
    page.keyboard.press("Home")
    assert numbers(page) == states[0]
    slider.focus()
    page.keyboard.press("ArrowRight")  # the slider's own key: one step, not two
    assert numbers(page) == states[1]
    page.get_by_role("button", name="Back").click()
    assert numbers(page) == states[0]
    page.locator("ddp-ring-stepper").get_by_label("Ranks").focus()
    page.keyboard.press("ArrowRight")  # the list's own key: five ranks, no step
    assert numbers(page) == [list(row) for row in ring_states(5)[0].held]
    page.locator("ddp-ring-stepper").get_by_label("Ranks").select_option("8")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert numbers(page) == [list(row) for row in ring_states(8)[-1].held]


def test_a_screen_reader_hears_whose_shares_are_in_a_number(page):
    page.get_by_role("button", name="Next").click()
    cell = page.get_by_role("row", name="rank 1").get_by_role("cell").first
    assert cell.inner_text().split() == ["12", "from", "ranks", "0,", "1"]
    assert page.get_by_role("table", name="What each rank holds, chunk by chunk").count() == 1


def test_the_ring_plays(stopped_page):
    page = stopped_page
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2000)
    page.get_by_role("button", name="Pause").click()
    held = numbers(page)
    assert held == [list(row) for row in ring_states(4)[2].held]
    page.clock.run_for(10_000)
    assert numbers(page) == held
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(30_000)
    assert numbers(page) == [list(row) for row in ring_states(4)[-1].held]
    assert page.get_by_role("button", name="Play").count() == 1  # it has stopped


def test_nothing_moves_for_those_who_ask(page):
    page.evaluate(
        """() => { window.moved = 0; const animate = Element.prototype.animate;
            Element.prototype.animate = function (...how) { moved++; return animate.apply(this, how); }; }"""
    )
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Next").click()
    assert page.evaluate("moved") == 0
    assert numbers(page) == [list(row) for row in ring_states(4)[1].held]
    page.emulate_media(reduced_motion="no-preference")
    page.get_by_role("button", name="Next").click()
    assert page.evaluate("moved") == 4
    assert numbers(page) == [list(row) for row in ring_states(4)[2].held]


# -- both --------------------------------------------------------------------------------------------


def test_paper_from_the_browser(page):
    """The step as the reader has set it, with its settings; of the ring all steps, not the one that is shown."""
    page.emulate_media(media="print")
    assert not page.get_by_text("Static step.").is_visible()
    assert page.locator(".step-number").is_visible()
    assert page.get_by_text("25 MiB", exact=True).first.is_visible()
    assert not page.locator("ddp-step-explorer input").first.is_visible()
    assert page.get_by_text("Static ring.").is_visible()
    assert not page.locator(".ring-table").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_are_accessible_and_fit_a_phone(element, page, scheme):
    element.anew(width=390, scheme=scheme)
    for example, ranks, clicks in (("thousands", "8", 7), ("ethernet", "4", 3)):
        page.get_by_label("Example").select_option(example)
        page.locator("ddp-ring-stepper").get_by_label("Ranks").select_option(ranks)
        for _ in range(clicks):
            page.get_by_role("button", name="Next").click()
        wait_until(page, "document.getAnimations().length === 0")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(
            """() => [...document.querySelectorAll("main *")].every(one =>
                one.closest(".explorer-hidden, .ring-long") || one.getBoundingClientRect().right <= innerWidth)"""
        )
        assert not violations(page)


def test_colours_follow_dark_mode(page):
    looks = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        looks[scheme] = [
            page.locator(place).first.evaluate(f"e => getComputedStyle(e).{name}")
            for place, name in (
                ("svg text", "fill"),
                ("svg .exposed", "fill"),
                (".ring-share.explorer-r0", "backgroundColor"),
            )
        ]
    assert not set(looks["light"]) & set(looks["dark"])
    assert looks["light"][2] == "rgb(0, 114, 178)"  # rank 0 as everywhere in the book


@pytest.mark.parametrize("name", ["step-explorer.js", "ring-stepper.js", "explorers.css"])
def test_they_are_light(name):
    assert len(gzip.compress((STATIC / name).read_bytes())) < 10_000


@pytest.mark.parametrize("name", ["step-explorer.js", "ring-stepper.js"])
def test_the_scripts_ask_for_nothing(name):
    source = (STATIC / name).read_text()
    for word in (
        "fetch(",
        "XMLHttpRequest",
        "innerHTML",
        "insertAdjacentHTML",
        "import(",
        "eval(",
        "Function(",
        ".style",
    ):
        assert word not in source, word


# -- the directives ----------------------------------------------------------------------------------

CHAPTER = """
```{step-explorer}
:name: explorer-step

Drag a slider.
```

```{ring-stepper}
:ranks: 3

Step through it.
```
"""


def tiny_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    book = TinyBook(tmp_path, monkeypatch)
    conf = (tmp_path / "conf.py").read_text()
    book.write(
        "conf.py", f'{conf}\nextensions.append("_ext.explorers.step_and_ring")\nhtml_static_path = [{str(STATIC)!r}]\n'
    )
    return book


def test_the_page_reads_without_scripts(browser, tmp_path, monkeypatch):
    book = tiny_book(tmp_path, monkeypatch)
    book.chapters(speed=CHAPTER, other="Nothing.")
    built = book.build()
    assert built.complaints == ""
    for scripts in (False, True):
        context = browser.new_context(java_script_enabled=scripts)
        page = context.new_page()
        wrong = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto((built.folder / "speed.html").as_uri())
        drawings = page.locator("figure svg.figure")
        assert drawings.count() == 2
        for drawing in drawings.all():
            assert drawing.is_visible() is not scripts
        assert page.locator(".explorer").count() == (2 if scripts else 0)
        assert page.get_by_text("Drag a slider.").is_visible()
        context.close()
        assert not wrong
    page = built.page("speed")
    names = [svg["aria-label"] for svg in page.select("figure svg.figure")]
    assert names[0] == step_words(EXAMPLES["ethernet"])
    assert names[1].startswith("What 3 ranks hold at the start and after each of the 4 steps")
    assert "var(--rank-2, #009e73)" in str(page.select("svg")[1])
    scripts = [one["src"] for one in page.select("script[src]")]
    assert sum("step-explorer.js" in one or "ring-stepper.js" in one for one in scripts) == 2
    assert not built.page("other").select('script[src*="explorer"], link[href*="explorers"]')


def test_paper_gets_the_drawing(tmp_path, monkeypatch):
    book = tiny_book(tmp_path, monkeypatch)
    book.write("conf.py", (tmp_path / "conf.py").read_text() + 'extensions.append("_ext.forms.book_epub")\n')
    book.chapters(speed=CHAPTER)
    epub = book.build("epub")
    page = BeautifulSoup((epub.folder / "speed.xhtml").read_text(), "html.parser")
    assert not page.select("script, ddp-step-explorer, ddp-ring-stepper, input")
    images = page.select("figure img")
    assert images[0]["alt"] == step_words(EXAMPLES["ethernet"])
    assert len(images) == 2
    for image in images:
        svg = (epub.folder / image["src"]).read_text()
        assert "var(" not in svg  # a file of an EPUB knows no style sheet
        assert "font-family: sans-serif" in svg
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [name for name in root.attrib if "xmlns" in name]
    assert "Drag a slider." in page.get_text()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```{step-explorer}\n:example: moon\n\nCaption.\n```", "there is no example 'moon'"),
        ("```{step-explorer}\n```", "say in a paragraph what to see"),
        ("```{ring-stepper}\n:ranks: 9\n\nCaption.\n```", "ranks must be 2 to 5; got 9"),
    ],
)
def test_a_wrong_option_is_reported(tmp_path, monkeypatch, text, complaint):
    book = tiny_book(tmp_path, monkeypatch)
    book.chapters(speed=text)
    assert complaint in book.build().complaints


def test_the_extension_leaves_torch_alone():
    code = "import sys, _ext.explorers.step_and_ring; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=EXTENSIONS)
    assert done.stdout == "False\n"


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
