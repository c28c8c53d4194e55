"""Where a reader is, in a real browser on the built book: header, navigation, path, contents, keys, front page."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from strict_page import violations
from test_pages import DARK, LIGHT, PHONE, THEME, too_wide

from _ext.explorers.explorer_examples import EXAMPLES
from _ext.explorers.step_drawing import step_picture
from _ext.navigation import downloads
from tools import ROOT

CHAPTER = "understand/one-step.html"


def sees(page, selector):
    """Whether the middle of an element is on the screen, and nothing lies over it."""
    return page.locator(selector).first.evaluate(
        """e => { const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
                  return r.width > 0 && e.contains(document.elementFromPoint(x, y)); }"""
    )


# -- the header ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1440, 1024, PHONE])
@pytest.mark.parametrize("scripts", [True, False])
def test_my_job_is_broken_stands_in_the_header_of_every_width(opened, width, scripts):
    page = opened(CHAPTER, viewport={"width": width, "height": 800}, java_script_enabled=scripts)
    for _ in range(2):
        assert sees(page, ".header-broken")
        assert sees(page, ".header-search")
        if scripts:
            page.evaluate("scrollTo(0, 4000)")
            page.locator("html.reading").wait_for()
    page.locator(".header-broken").click()
    page.wait_for_url("**/repair/broken.html")


def test_every_page_of_the_theme_has_the_header_and_a_favicon_that_is_there(html):
    found = 0
    for path in html.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if 'class="mobile-header"' not in page:
            continue
        found += 1
        link = re.search(r'class="header-broken" href="([^"]*)"', page)[1]
        assert (path.parent / link).resolve() == html / "repair" / "broken.html" or path.name == "broken.html"
        icons = re.findall(r'<link rel="(?:shortcut )?icon" href="([^"?]*)', page)
        assert len(icons) == 2
        assert all((path.parent / icon).is_file() for icon in icons), path
    assert found > 150
    assert (html / "favicon.ico").is_file()  # asked for by pages at old addresses


def test_on_a_phone_the_header_shows_the_section_and_how_far_one_has_read(opened):
    page = opened(CHAPTER, **DARK)
    heading = page.locator("article h2").nth(2)
    heading.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 100)")
    said = page.locator(".where-section")
    page.wait_for_function("/^2[.](?!1)/.test(document.querySelector('.where-section').textContent.trim())")
    assert said.inner_text().strip() == heading.inner_text().removesuffix("#").strip()
    assert sees(page, ".header-where")
    far = "() => new DOMMatrix(getComputedStyle(document.querySelector('.reading-progress')).transform).a"
    middle = page.evaluate(far)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_function(f"({far})() > 0.99")
    assert 0 < middle < 0.9


def test_a_link_to_a_section_shows_its_heading_below_the_header(opened):
    for width in (1440, PHONE):
        page = opened(CHAPTER, viewport={"width": width, "height": 800}, reduced_motion="reduce")
        for name in page.eval_on_selector_all("article section section", "all => all.slice(0, 4).map(e => e.id)"):
            page.goto(f"{page.url.partition('#')[0]}#{name}")
            heading = f"[id='{name}'] > :is(h2, h3)"
            page.wait_for_function(f"Math.abs(document.getElementById('{name}').getBoundingClientRect().top) < 200")
            assert sees(page, heading), (width, name)
    # The way back to the top, which furo shows while one scrolls up, stays off the text's upper half.
    frames = "for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);"  # furo has seen it
    page.evaluate(f"async () => {{ scrollBy(0, 2000); {frames} scrollBy(0, -300); }}")
    page.locator(".back-to-top").wait_for()
    assert page.locator(".back-to-top").bounding_box()["y"] > 600


# -- contents, navigation, path ----------------------------------------------------------------------


def test_the_contents_follow_the_reading_and_fold_what_is_not_read(opened):
    page = opened(CHAPTER, viewport={"width": 1440, "height": 320})  # so low that the contents must scroll
    last = page.locator("article > section > section").last
    last.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 60)")
    entry = f".toc-tree a[href='#{last.get_attribute('id')}']"
    page.locator(f"{entry}[aria-current]").wait_for()
    assert sees(page, entry)
    groups = page.locator(".toc-tree > ul > li > ul > li > ul")
    assert groups.count() >= 1
    for number in range(groups.count()):
        group = groups.nth(number)
        assert group.is_visible() == group.evaluate("e => e.parentElement.classList.contains('reading')")
    page = opened(CHAPTER, viewport={"width": 1440, "height": 800}, java_script_enabled=False)
    assert all(group.is_visible() for group in page.locator(".toc-tree ul ul ul").all())


def test_the_navigation_opens_the_part_of_the_page_and_marks_it(opened):
    page = opened(CHAPTER, viewport={"width": 1440, "height": 800}, java_script_enabled=False)
    folds = page.locator(".book-nav > details")
    assert [fold.locator("summary").inner_text() for fold in folds.all() if fold.get_attribute("open") is not None] == [
        "I. Understand"
    ]
    assert page.locator(".book-nav [aria-current=page]").inner_text() == "2. One step of DDP"
    folds.nth(2).locator("summary").click()
    assert page.get_by_role("link", name="13. The fault lab").is_visible()


def test_previous_and_next_lead_from_chapter_to_chapter_and_the_path_leads_back(read):
    page, seen = "index.html", []
    while page:
        seen.append(page)
        link = read(page).select_one("a.next-page")
        page = os.path.normpath(os.path.join(os.path.dirname(page), link["href"])) if link else ""
        assert page not in seen
        assert len(seen) < 60
    assert not [name for name in seen if name.startswith(("labs/", "repair/faults/", "repair/errors/"))]
    assert {"understand/idea.html", "repair/errors.html", "keep/practice.html"} <= set(seen)
    for before, after in itertools.pairwise(seen):
        back = read(after).select_one("a.prev-page")["href"]
        assert os.path.normpath(os.path.join(os.path.dirname(after), back.rstrip("#") or Path(after).name)) == before
    path = read("repair/faults/killed-rank.html").select_one(".breadcrumbs")
    assert [step.get_text() for step in path.select("li")][1:3] == ["III. Repair", "13. The fault lab"]
    assert path.select("a")[2]["href"] == "../fault-lab.html"
    part = path.select("a")[1]["href"]
    assert read("index.html").find(id=part.partition("#")[2])


# -- keys --------------------------------------------------------------------------------------------


def test_keys_lead_on_are_documented_and_can_be_turned_off(opened):
    page = opened("understand/idea.html", viewport={"width": 1440, "height": 800})
    page.keyboard.press("n")
    page.wait_for_url("**/one-step.html")
    page.keyboard.press("?")
    keys = page.locator("dialog.keys-overlay")
    assert {"n", "p", "/", "?"} == set(keys.locator("kbd").all_inner_texts())
    page.keyboard.press("p")  # not while it is open
    keys.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    page.evaluate("navigation.addEventListener('navigate', () => { window.leaves = true; })")  # at once
    page.keyboard.press("p")
    page.keyboard.press("/")
    assert not page.evaluate("window.leaves")
    assert page.url.endswith("one-step.html")
    assert not page.locator(".search-overlay").count()
    page.get_by_role("button", name="Keys").click()
    keys.get_by_role("checkbox").check()
    keys.get_by_role("button", name="Close").click()
    page.keyboard.press("p")
    page.wait_for_url("**/idea.html")


def test_the_keyboard_skips_to_the_text_and_shows_where_it_is(opened):
    page = opened(CHAPTER, viewport={"width": 1440, "height": 800})
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('skip-to-content')"):
            break
    page.keyboard.press("Enter")
    assert page.url.endswith("#furo-main-content")
    page.locator(".header-broken").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.locator(".header-broken").evaluate("e => parseFloat(getComputedStyle(e).outlineWidth)") >= 2


@pytest.mark.parametrize("mode", [LIGHT, DARK], ids=["light", "dark"])
def test_the_front_page_with_its_drawers_is_accessible_and_fits(opened, mode):
    page = opened("index.html", **mode)
    page.keyboard.press("?")
    page.locator("dialog.keys-overlay").wait_for()
    assert not violations(page, {*THEME, "scrollable-region-focusable"})
    page.keyboard.press("Escape")
    for width in (1440, 1024, PHONE):
        assert not too_wide(page, width)


# -- the front page ----------------------------------------------------------------------------------


def test_the_front_page_opens_its_doors_on_the_first_screen(opened):
    page = opened("index.html", viewport={"width": 1440, "height": 800})
    for name in ("Start reading", "My job is broken", "Run your first two ranks"):
        assert page.locator(".doors .sd-card-title", has_text=name).bounding_box()["y"] < 700
    page.locator(".doors .sd-card").last.click()
    page.wait_for_url("**#first-ranks")


def test_the_map_has_every_chapter_of_the_book_with_its_number(read):
    front = read("index.html")
    stops = {link["href"]: link for link in front.select(".book-map a")}
    for link in front.select(".book-nav a"):
        stop = stops.pop(link["href"])
        number = stop.select_one(".map-number")
        title = stop.select("span")[-1].get_text()
        assert link.get_text() == (f"{number.get_text()}. {title}" if number else title)
    assert not stops


def test_downloads_are_linked_when_they_are_there_and_only_then(tmp_path):
    pages = tmp_path / "html"
    pages.mkdir()
    front = pages / "index.html"
    front.write_text("<p>before</p><!-- downloads --><!-- /downloads --><p>after</p>")
    downloads.fill(tmp_path, pages)
    assert not re.search("href", front.read_text())
    assert front.read_text().count("make pdf") == 2
    practice = pages / "run" / "practice.html"
    practice.parent.mkdir()
    practice.write_text('<!-- decks [["deck", "Run & co"], ["other", "Other"]] --><!-- /decks -->', encoding="utf-8")
    downloads.fill(tmp_path, pages)
    assert "Run &amp; co, Other; " in practice.read_text()
    assert "href" not in practice.read_text()
    for name in ("pdf/ddp-handbook.pdf", "pdf/run-launch.pdf", "slides/deck.pdf", "slides/deck-notes.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"pdf")
    subprocess.run([sys.executable, downloads.__file__, tmp_path], check=True)  # as the Makefile does
    text = front.read_text()
    links = re.findall('href="([^"]*)"', text)
    assert len(links) == 4
    assert re.findall('href="([^"]*)"[^>]*>([^<]*)', practice.read_text()) == [
        ("../_downloads/book/deck.pdf", "Run &amp; co"), ("../_downloads/book/deck-notes.pdf", "notes"),
    ]  # fmt: skip
    assert all((pages / link).read_bytes() == b"pdf" for link in links)
    assert "make epub" in text
    assert "make pdf" not in text
    assert text.startswith("<p>before</p>")
    assert text.endswith("<p>after</p>")
    (tmp_path / "slides/deck.pdf").unlink()
    downloads.fill(tmp_path, pages)
    assert "deck.pdf" not in front.read_text()
    assert "deck.pdf" not in practice.read_text()


def test_the_picture_of_the_readme_is_the_drawing_of_the_front_page():
    kept = ROOT / "handbook" / "_static" / "step.svg"
    assert "](handbook/_static/step.svg)" in (ROOT / "README.md").read_text()
    drawn = step_picture(next(iter(EXAMPLES.values())))
    if kept.read_text(encoding="utf-8") != drawn:
        new = kept.with_suffix(".new.svg.tmp")
        new.write_text(drawn, encoding="utf-8")
        raise AssertionError(f"the drawing has changed; look at it, then: mv {new} {kept}")


def test_the_best_bucket_size_is_marked_on_the_curve(opened):
    page = opened("index.html", viewport={"width": 1440, "height": 800})
    explorer = page.locator("ddp-step-explorer")
    best = explorer.locator(".step-facts strong").last.inner_text()
    assert explorer.locator(".explorer text", has_text="best:").text_content() == f"best: {best}"
    low = explorer.locator(".curve").get_attribute("points").split()
    lowest = max(float(point.partition(",")[2]) for point in low)
    assert abs(float(explorer.locator(".best-point").get_attribute("cy")) - lowest) < 0.2
