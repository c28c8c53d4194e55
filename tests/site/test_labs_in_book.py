"""Labs and figures as a reader meets them: the cards of a chapter, a lab's page, and what a phone shows."""

import pytest
from bs4 import BeautifulSoup

from tools import ROOT

PHONE = {"viewport": {"width": 390, "height": 800}}


def parsed(path):
    """A page, parsed."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def test_a_chapter_ends_with_cards_of_the_labs_that_it_shows(html):
    cards = parsed(html / "understand/one-step.html").select("#labs-of-this-chapter .lab-card")
    taken = {card.select_one("a.download")["href"].rpartition("/")[2]: card for card in cards}
    assert "plot_05_bucket_xray.py" in taken
    for name, card in taken.items():
        (script,) = ROOT.glob(f"gallery/*/{name}")
        assert (html / "understand" / card.select_one("a.download")["href"]).read_bytes() == script.read_bytes()
        picture = card.select_one("img.lab-picture")
        assert picture is None or (html / "understand" / picture["src"]).exists()


def test_a_lab_page_says_on_top_how_to_run_it(html):
    page = parsed(html / "labs/internals/plot_05_bucket_xray.html")
    run = page.select_one("h1 ~ p.lab-run")
    assert run.code.get_text() == "python gallery/internals/plot_05_bucket_xray.py"
    assert run.select_one("a.download")
    assert not page.select(".sphx-glr-footer")


def test_previous_and_next_of_a_lab_stay_among_its_labs(html):
    for path in html.glob("labs/*/plot_*.html"):
        around = parsed(path).select(".related-pages a")
        assert not [a["href"] for a in around if "/" in a["href"]], path


def test_a_figure_opens_as_large_as_the_screen_and_comes_back(browser, html):
    page = browser.new_page(**PHONE)
    page.goto((html / "understand/one-step.html").as_uri())
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
    page.close()


SMALL_OR_CUT = """() => {
    const found = [];
    const what = e => (e.textContent.trim() || e.className || e.tagName).slice(0, 40);
    for (const text of document.querySelectorAll("article svg.figure text")) {
        const matrix = text.getScreenCTM();
        if (!text.textContent.trim() || !matrix || !text.getClientRects().length) continue;
        const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
        if (size < 10.95) found.push(`${size.toFixed(1)} px: ${what(text)}`);
    }
    for (const e of document.querySelectorAll("article *:not(svg *)")) {
        if (e.scrollWidth <= e.clientWidth + 1 || !e.clientWidth) continue;
        const style = getComputedStyle(e);
        if (style.overflowX === "visible" || style.clip !== "auto" || style.position === "absolute") continue;
        if (style.textOverflow === "ellipsis") continue;  // says itself that there is more
        if (!style.backgroundImage.includes("gradient")) found.push(`cut: ${e.tagName}.${e.className} ${what(e)}`);
    }
    return found;
}"""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_on_a_phone_a_figure_can_be_read_and_nothing_is_cut_without_a_cue(browser, html):
    page = browser.new_page(**PHONE)
    wrong = {}
    for path in sorted(html.rglob("*.html")):
        name = path.relative_to(html)
        if name.parts[0] in ("understand", "run", "repair", "fast", "keep", "labs"):
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            if found := page.evaluate(SMALL_OR_CUT):
                wrong[str(name)] = found[:4]
    page.close()
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
