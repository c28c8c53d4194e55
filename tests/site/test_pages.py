"""The built pages in a real browser: nothing from elsewhere, accessible, readable without scripts and on a phone."""

import functools
import gzip
import http.server
import threading
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

PAGES = [
    "index.html",
    "idea.html",
    "internals.html",
    "from_scratch.html",
    "museum.html",
    "setup.html",
    "debugging.html",
    "faults.html",
    "errors.html",
    "diagnose.html",
    "performance.html",
    "checkpointing.html",
    "claims.html",
    "edition.html",
    "glossary.html",
    "labs/internals/index.html",
    "labs/internals/plot_03_ring_allreduce.html",
    "labs/internals/plot_05_bucket_xray.html",
    "labs/idea/plot_02_mean_of_means.html",
    "labs/from_scratch/plot_10_grade_yourself.html",
    "labs/museum/plot_05_two_forwards_two_backwards.html",
    "labs/setup/plot_04_hello_ranks.html",
    "labs/debugging/plot_00_triage.html",
    "labs/debugging/plot_07_killed_rank.html",
    "labs/performance/plot_20_predict_then_measure.html",
]
# Found in the theme, not in the book; each with its reason.
THEME = {
    "region": "furo puts its search field and skip links outside landmarks",
    "landmark-unique": "furo has two <aside> drawers",
    "landmark-complementary-is-top-level": "furo's table of contents is an <aside> inside <main>'s wrapper",
}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(html):
    """Address of a server of the built pages."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def open_page(browser, site):
    """Open a page of the book; afterwards, nothing may have been asked of another host, nor gone wrong."""
    contexts, strangers, errors = [], [], []

    def open_(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a bound; axe looks at each of thousands of elements
        page.on("request", lambda r: r.url.startswith((site, "data:")) or strangers.append(r.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda r: errors.append(f"failed: {r.url}"))
        page.on("response", lambda r: r.status < 400 or errors.append(f"{r.status}: {r.url}"))
        page.goto(f"{site}/{path}")
        page.wait_for_timeout(500)  # requests after it has loaded are seen, too; Chromium may be idle and not say so
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not strangers
    assert not errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(open_page, path, scheme):
    page = open_page(path, color_scheme=scheme)
    found = Axe().run(page).response["violations"]
    said = [
        f"{v['id']}: {node['html'][:160]} | {node.get('failureSummary', '')[:300]}"
        for v in found
        if v["id"] not in THEME
        for node in v["nodes"]
    ]
    assert not said, "\n".join(said[:15])


@pytest.mark.parametrize("width", [1020, 1280])
def test_page_fits_between_the_breakpoints_of_the_theme(open_page, width):
    page = open_page("internals.html", viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("path", PAGES)
def test_page_fits_a_phone(open_page, path):
    page = open_page(path, viewport={"width": 390, "height": 800})
    width = page.evaluate("document.documentElement.scrollWidth")
    wide = page.evaluate(
        """() => [...document.querySelectorAll("article *")].filter(e => {
            const r = e.getBoundingClientRect();
            for (let p = e.parentElement; p; p = p.parentElement)
                if (["auto", "scroll", "hidden"].includes(getComputedStyle(p).overflowX)) return false;
            return r.right > innerWidth + 1 && r.width > 0;
        }).slice(0, 5).map(e => e.outerHTML.slice(0, 160))"""
    )
    assert width <= 390, wide
    assert not wide


def test_page_reads_fully_without_scripts(open_page):
    text = {}
    for scripts in (True, False):
        page = open_page("internals.html", java_script_enabled=scripts)
        text[scripts] = page.locator("article").inner_text()
        assert page.locator("details.interview").count() >= 12
        fold = page.locator("details.interview").first
        fold.locator("summary").first.click()
        assert fold.locator("p").last.is_visible()
        assert page.locator("svg.figure").first.is_visible()
    assert text[True].replace("Copy", "") == text[False].replace("Copy", "")


def test_quiz_answers_without_scripts(open_page):
    page = open_page("internals.html", java_script_enabled=False)
    quiz = page.locator(".quiz").first
    option = quiz.locator("label").first
    before = option.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).borderColor")
    option.click()
    assert quiz.locator("input:checked").count() == 1
    assert option.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).borderColor") != before


def test_figures_follow_dark_mode(open_page):
    colors = set()
    for scheme in ("light", "dark"):
        page = open_page("internals.html", color_scheme=scheme)
        text = page.locator("svg.figure text").first
        colors.add(text.evaluate("e => getComputedStyle(e).fill"))
    assert len(colors) == 2


def test_every_lab_page_has_its_stamp(html):
    for path in (html / "labs").glob("*/plot_*.html"):
        assert 'class="stamp' in path.read_text(), path.name


def test_every_figure_says_what_it_shows(html):
    import re

    for path in html.rglob("*.html"):
        for label in re.findall(r'<svg[^>]*class="figure"[^>]*aria-label="([^"]*)"', path.read_text()):
            assert len(label) > 10, path


def test_the_chapter_is_light(html):
    """The page with its style sheets and scripts, as a server sends it; fonts are cached for the whole book."""
    page = (html / "internals.html").read_text()
    parts = [html / "internals.html", *_linked(html, page)]
    weight = sum(len(gzip.compress(path.read_bytes())) for path in parts)
    assert weight < 200_000, {path.name: len(gzip.compress(path.read_bytes())) for path in parts}


def _linked(html: Path, page: str) -> list[Path]:
    import re

    found = re.findall(r'(?:src|href)="(_static/[^"?]+)', page)
    return [html / path for path in dict.fromkeys(found) if (html / path).suffix in (".css", ".js")]
