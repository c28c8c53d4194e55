"""The pages of the error index: one for each entry, a light list that leads to them, and searches that find them."""

import gzip
import re

import pytest
from bs4 import BeautifulSoup

from ddplab.diagnose import entries
from ddplab.diagnose.answers import page_of

pytestmark = pytest.mark.full


def read(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def words(text):
    return " ".join(text.split())


def test_every_entry_has_its_page_where_diagnose_says(html):
    for name, entry in entries().items():
        page = read(html / page_of(name))  # what `ddplab diagnose` prints
        article = page.select_one(f"article #error-{name}")
        assert words(page.title.get_text()).partition(" - ")[0], name
        assert words(entry.message) in words(article.select_one(".error-message").get_text()), name
        assert {"cause", "fix", "what-each-rank-shows"} <= {one["id"] for one in article.select("section")}, name
        assert page.select_one(".breadcrumbs a[href='../errors.html']"), name
    assert len(list((html / "repair" / "errors").glob("*.html"))) == len(entries())


def test_the_index_is_light_and_old_anchors_lead_to_the_pages(html):
    text = (html / "repair" / "errors.html").read_text(encoding="utf-8")
    assert len(gzip.compress(text.encode())) < 40_000
    assert len(re.findall("<[a-zA-Z]", text)) < 1_500
    lines = {line["id"]: line.a["href"] for line in read(html / "repair" / "errors.html").select(".error-list > li")}
    assert lines == {f"error-{name}": f"errors/{name}.html" for name in entries()}


def test_references_of_chapters_lead_to_the_pages_and_other_pages_list_none(html):
    chapter = (html / "repair" / "fault-lab.html").read_text(encoding="utf-8")
    assert 'href="errors/nccl-watchdog-timeout.html"' in chapter
    assert "errors.html#error-" not in chapter
    listed = read(html / "index.html").select(".book-nav a")
    assert not [link for link in listed if "/errors/" in link["href"]]


def test_a_pasted_line_finds_its_page_by_search(browser, html):
    asked = [
        (name, line)
        for name, entry in entries().items()
        for text in entry.samples[:1]
        for line in text.splitlines()
        if any(match.needle in line and len(match.needle) >= 8 for match in entry.matches)
    ]
    page = browser.new_page()
    page.goto((html / "index.html").as_uri())
    found = page.evaluate(
        "async (lines) => Promise.all(lines.map(async (one) => (await ddpSearch(one, 3)).map((hit) => hit.address)))",
        [line for _, line in asked],
    )
    page.close()
    missed = [(name, line, hits) for (name, line), hits in zip(asked, found, strict=True) if page_of(name) not in hits]
    assert not missed
