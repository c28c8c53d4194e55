"""The pages of the error index: one for each entry, a light list that leads to them, and searches that find them."""

import gzip
import re

from ddplab.diagnose import entries
from ddplab.diagnose.answers import page_of


def words(text):
    return " ".join(text.split())


def test_every_entry_has_its_page_where_diagnose_says(html, read):
    for name, entry in entries().items():
        page = read(page_of(name))  # what `ddplab diagnose` prints
        article = page.select_one(f"article #error-{name}")
        assert words(page.title.get_text()).partition(" - ")[0], name
        assert words(entry.message) in words(article.select_one(".error-message").get_text()), name
        assert {"cause", "fix", "what-each-rank-shows"} <= {one["id"] for one in article.select("section")}, name
        assert page.select_one(".breadcrumbs a[href='../errors.html']"), name
    assert len(list((html / "repair" / "errors").glob("*.html"))) == len(entries())


def test_the_index_is_light_and_old_anchors_lead_to_the_pages(html, read):
    text = (html / "repair" / "errors.html").read_text(encoding="utf-8")
    assert len(gzip.compress(text.encode())) < 200 * len(entries())
    assert len(re.findall("<[a-zA-Z]", text)) < 1_500
    lines = {line["id"]: line.a["href"] for line in read("repair/errors.html").select(".error-list > li")}
    assert lines == {f"error-{name}": f"errors/{name}.html" for name in entries()}


def test_references_of_chapters_lead_to_the_pages_and_other_pages_list_none(html, read):
    chapter = (html / "repair" / "fault-lab.html").read_text(encoding="utf-8")
    assert 'href="errors/nccl-watchdog-timeout.html"' in chapter
    assert "errors.html#error-" not in chapter
    listed = read("index.html").select(".book-nav a")
    assert not [link for link in listed if "/errors/" in link["href"]]


def says_another(line: str, page: str) -> bool:
    """Whether the line is the message of the entry on this page."""
    return any(page == page_of(name) and one.needle in line for name, e in entries().items() for one in e.matches)


def test_any_pasted_line_finds_its_page_by_search(opened):
    """The message among the first three; a line around it, such as a frame of its traceback, among the first five."""
    asked = [
        (
            page_of(name),
            line,
            3 if any(len(match.needle) >= 8 and match.needle in line for match in entry.matches) else 5,
        )
        for name, entry in entries().items()
        for text in entry.samples
        for line in text.splitlines()
        if len(re.findall(r"[^\W\d_]", re.sub(r"^\[rank\d+\]:|/[^\s\"]*/", "", line))) >= 16  # else it may be anybody's
        if "Traceback (most recent" not in line
    ]
    assert len(asked) > 300
    page = opened("index.html")
    found = page.evaluate(
        "async (lines) => Promise.all(lines.map(async (one) => (await ddpSearch(one, 5)).map((hit) => hit.address)))",
        [line for _, line, _ in asked],
    )
    page.keyboard.press("/")
    page.keyboard.insert_text(asked[0][1])  # as pasted
    first = page.locator(".search-overlay li a").first
    first.wait_for()
    shown = first.get_attribute("href")
    missed = [
        (line, hits)
        for (where, line, most), hits in zip(asked, found, strict=True)
        if where not in hits[:most] and not says_another(line, hits[0])  # what a sample also shows has its own page
    ]
    assert not missed
    assert shown.endswith(asked[0][0])
