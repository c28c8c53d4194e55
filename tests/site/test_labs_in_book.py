"""Labs and figures as a reader meets them: the cards of a chapter, a lab's page, and what a phone shows."""

import pytest
from test_pages import SMALL_OR_CUT

from tools import ROOT

PHONE = {"viewport": {"width": 390, "height": 800}}


def test_a_chapter_ends_with_cards_of_the_labs_that_it_shows(html, read):
    cards = read("understand/one-step.html").select("#labs-of-this-chapter .lab-card")
    taken = {card.select_one("a.download")["href"].rpartition("/")[2]: card for card in cards}
    assert "plot_05_bucket_xray.py" in taken
    for name, card in taken.items():
        (script,) = ROOT.glob(f"gallery/*/{name}")
        assert (html / "understand" / card.select_one("a.download")["href"]).read_bytes() == script.read_bytes()
        picture = card.select_one("img.lab-picture")
        assert picture is None or (html / "understand" / picture["src"]).exists()


def test_a_lab_page_says_on_top_how_to_run_it(read):
    page = read("labs/internals/plot_05_bucket_xray.html")
    run = page.select_one("h1 ~ p.lab-run")
    assert run.code.get_text() == "python gallery/internals/plot_05_bucket_xray.py"
    assert run.select_one("a.download")
    assert not page.select(".sphx-glr-footer")


def test_previous_and_next_of_a_lab_stay_among_its_labs(html, read):
    for path in html.glob("labs/*/plot_*.html"):
        around = read(path).select(".related-pages a")
        assert not [a["href"] for a in around if "/" in a["href"]], path


def test_a_figure_opens_as_large_as_the_screen_and_comes_back(opened):
    page = opened("understand/one-step.html", **PHONE)
    button = page.locator(".enlarge").first
    holder = page.locator(".figure-svg:has(.enlarge)").first
    before = holder.bounding_box()["height"]
    button.click()
    shown = page.locator("dialog.enlarged svg.figure")
    width = shown.bounding_box()["width"]
    page.get_by_role("button", name="Larger").click()
    assert shown.bounding_box()["width"] > width > 390
    page.keyboard.press("Escape")
    assert not page.locator("dialog.enlarged").is_visible()
    assert holder.locator("svg.figure").count() == 1
    assert holder.bounding_box()["height"] == pytest.approx(before, abs=1)


def test_on_a_phone_the_figures_of_every_lab_can_be_read(browser, html):
    """Other pages are opened in test_pages.py: chapters all, and of labs those that show every kind of content."""
    page, wrong = browser.new_page(**PHONE), {}
    for path in sorted(html.glob("labs/*/*.html")):
        if 'class="figure"' in path.read_text(encoding="utf-8"):
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            if found := page.evaluate(SMALL_OR_CUT):
                wrong[path.name] = found
    page.close()
    assert not wrong
