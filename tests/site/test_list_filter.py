"""The filter of the long lists, in the built book as a reader opens it from a folder."""

import pytest
from strict_page import violations
from test_pages import THEME

from ddplab.diagnose import entries

SHOWN = "[...document.querySelectorAll('.error-list > li')].filter(e => e.checkVisibility()).map(e => e.id)"


@pytest.fixture
def page(opened):
    return opened("repair/errors.html", viewport={"width": 390, "height": 800})


def test_a_line_of_a_log_finds_its_entry(page):
    asked, missed = page.locator(".list-filter input"), []
    for name, entry in entries().items():
        lines = [line for text in entry.samples for line in text.splitlines() if line.strip()]
        for match in entry.matches:
            line = next((line for line in lines if match.needle in line), None)
            if line and len(match.needle) >= 8:
                asked.fill(line)
                missed += [] if f"error-{name}" in page.evaluate(SHOWN) else [(name, line)]
    assert not missed


def test_words_and_place_narrow_the_list_and_the_count_says_so(page):
    asked, place, count = page.locator(".list-filter input, .list-filter select, .list-filter span").all()
    assert count.inner_text() == f"{len(entries())} of {len(entries())}"
    place.select_option("gloo")
    gloo = [name for name, entry in entries().items() if entry.area == "gloo"]
    assert sorted(page.evaluate(SHOWN)) == sorted(f"error-{name}" for name in gloo)
    place.select_option("")
    asked.fill("Default process group HAS NOT been initialized")
    assert page.evaluate(SHOWN) == ["error-dist-not-initialized"]
    assert page.locator("#error-dist-not-initialized a").get_attribute("href") == "errors/dist-not-initialized.html"
    assert not violations(page, THEME)
    asked.fill("no such words at all")
    assert count.inner_text() == f"0 of {len(entries())}"


def test_an_old_link_shows_its_line_even_if_the_filter_hid_it(page):
    page.locator(".list-filter input").fill("gloo")
    page.evaluate("location.hash = 'error-memory-cuda-out-of-memory'")
    page.locator("#error-memory-cuda-out-of-memory").wait_for()
    page.wait_for_function(
        "() => { const {top} = document.querySelector('#error-memory-cuda-out-of-memory').getBoundingClientRect();"
        " return top > -5 && top < 400 }"
    )


def test_without_scripts_the_list_leads_to_every_entry(opened):
    page = opened("repair/errors.html", java_script_enabled=False)
    assert not page.locator(".list-filter").is_visible()
    page.locator("#error-dist-not-initialized a").click()
    assert "Every rank that runs the line raises it" in page.locator("article").inner_text()
