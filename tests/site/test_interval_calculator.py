"""The interval calculator in a real browser: Python's numbers, usable by all, and a figure where no script runs."""

import gzip
import random
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from strict_page import STATIC, StrictPage, violations
from tiny_book import TinyBook

from _ext.explorers.interval_calculator import Job, interval_words
from ddplab.model.interval import daly_s, lost_fraction, young_s

pytestmark = pytest.mark.full
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Interval</title>
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <link rel="stylesheet" href="book.css"><link rel="stylesheet" href="explorers.css">
    <link rel="stylesheet" href="interval-calculator.css"><link rel="stylesheet" href="looks.css">
    <main><article><h1>Interval</h1>
    <ddp-interval-calculator save-s="30" nodes="128" node-mtbf-days="1460" restart-s="300" interval-min="1440">
    <div class="explorer-instead">Static curve.</div></ddp-interval-calculator>
    </article></main><script defer src="interval-calculator.js"></script></html>"""


@pytest.fixture(scope="module")
def element(browser):
    """The page, under a strict policy."""
    element = StrictPage(browser, PAGE)
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


# -- the same numbers --------------------------------------------------------------------------------


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


# -- use ---------------------------------------------------------------------------------------------


def test_keys_change_it_and_it_speaks_once(stopped_page):
    page = stopped_page
    number, live = page.locator(".step-number"), page.locator("[role=status]")
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
    for field in page.get_by_role("spinbutton").all():
        before = curve.inner_html()
        field.fill("77")
        assert curve.inner_html() != before
    assert page.get_by_role("spinbutton").count() == 5


@pytest.mark.parametrize("bad", ["", "0", "-3"])
def test_what_is_no_time_is_said_and_not_computed(page, bad):
    field = page.get_by_label("A save stops")
    field.fill(bad)
    assert page.get_by_text("Each field takes a number above 0").is_visible()
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator(".step-number").inner_text() == "–"
    field.fill("30")
    assert not page.get_by_text("Each field takes a number above 0").is_visible()
    assert page.locator(".step-number").inner_text() == "128 min between saves (Daly)"


def test_marks_are_where_the_numbers_are(page):
    """The circles of the drawing lie on the curve, and Daly's at its lowest point."""
    points = page.locator("polyline").get_attribute("points").split()
    curve = [tuple(map(float, point.split(","))) for point in points]
    lowest = max(y for _, y in curve)  # SVG's y grows downwards
    circles = page.locator("circle").evaluate_all(
        "all => all.map(one => [+one.cx.baseVal.value, +one.cy.baseVal.value])"
    )
    for x, y in circles:
        near = min(curve, key=lambda point: abs(point[0] - x))
        assert abs(near[1] - y) < 4
    assert circles[0][1] == pytest.approx(lowest, abs=0.5)
    assert circles[1][1] < lowest - 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_fits_a_phone(element, page, scheme):
    element.anew(width=390, scheme=scheme)
    for nodes in ("128", "0"):
        page.get_by_label("Nodes").fill(nodes)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert not violations(page)


def test_colours_follow_dark_mode(page):
    looks = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        places = (("svg text", "fill"), ("svg .curve", "stroke"), ("input", "color"))
        looks[scheme] = [page.locator(at).first.evaluate(f"e => getComputedStyle(e).{name}") for at, name in places]
    assert not set(looks["light"]) & set(looks["dark"])


def test_paper_from_the_browser_keeps_the_numbers(page):
    page.emulate_media(media="print")
    assert not page.get_by_text("Static curve.").is_visible()
    assert page.get_by_label("Nodes").is_visible()
    assert page.locator(".step-number").is_visible()


def test_it_is_light_and_asks_for_nothing():
    source = (STATIC / "interval-calculator.js").read_text()
    assert len(gzip.compress(source.encode())) < 10_000
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


# -- the directive -----------------------------------------------------------------------------------

CHAPTER = """
```{interval-calculator}
:nodes: 64
:name: interval

Put in your own numbers.
```
"""


def tiny_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    book = TinyBook(tmp_path, monkeypatch)
    conf = (tmp_path / "conf.py").read_text()
    book.write(
        "conf.py",
        f'{conf}\nextensions.append("_ext.explorers.interval_calculator")\nhtml_static_path = [{str(STATIC)!r}]\n',
    )
    return book


def test_the_page_reads_without_scripts(browser, tmp_path, monkeypatch):
    book = tiny_book(tmp_path, monkeypatch)
    book.chapters(often=CHAPTER, other="Nothing.")
    built = book.build()
    assert built.complaints == ""
    for scripts in (False, True):
        context = browser.new_context(java_script_enabled=scripts)
        page = context.new_page()
        wrong = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto((built.folder / "often.html").as_uri())
        assert page.locator("figure svg.figure").is_visible() is not scripts
        assert page.locator(".explorer").count() == int(scripts)
        assert page.get_by_text("Put in your own numbers.").is_visible()
        if scripts:
            assert page.get_by_label("Nodes").input_value() == "64"
        context.close()
        assert not wrong
    page = built.page("often")
    assert page.select_one("figure svg.figure")["aria-label"].endswith(interval_words(Job(nodes=64)))
    assert len(page.select('script[src*="interval-calculator"], link[href*="interval-calculator"]')) == 2
    assert not built.page("other").select('script[src*="interval"], link[href*="interval"]')


def test_paper_gets_the_drawing(tmp_path, monkeypatch):
    book = tiny_book(tmp_path, monkeypatch)
    book.write("conf.py", (tmp_path / "conf.py").read_text() + 'extensions.append("_ext.forms.book_epub")\n')
    book.chapters(often=CHAPTER)
    epub = book.build("epub")
    page = BeautifulSoup((epub.folder / "often.xhtml").read_text(), "html.parser")
    assert not page.select("script, ddp-interval-calculator, input")
    assert page.select_one("figure img")["alt"].endswith(interval_words(Job(nodes=64)))


@pytest.mark.parametrize(
    ("option", "complaint"),
    [(":nodes: 0", "all but restart-s must be more than 0"), (":save-s: soon", "could not convert string to float")],
)
def test_a_wrong_option_is_reported(tmp_path, monkeypatch, option, complaint):
    book = tiny_book(tmp_path, monkeypatch)
    book.chapters(often=f"```{{interval-calculator}}\n{option}\n\nCaption.\n```")
    assert complaint in book.build().complaints
