"""Addresses are promises: each that the book ever had leads to its answer, with scripts and without."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from strict_page import violations

from _ext.navigation.redirects import FILE, read_lines
from tiny_book import Built, TinyBook
from tools import ROOT

TABLE = ROOT / "handbook" / FILE
CONF = f"""
extensions = ["myst_parser", "_ext.cards.cards", "_ext.navigation.redirects"]
myst_enable_extensions = ["colon_fence"]
html_theme = "basic"
html_static_path = [{str(ROOT / "handbook/_static")!r}]
html_css_files = ["book.css"]
"""
ONE = """
(kept)=
## Reworded since
"""
TWO = """
(carried)=
## What was carried here

### Words once

::::{quiz} how-many
:question: How many?
- [x] one
- [ ] two
  : That is one more.
+++ why
There is one.
::::
"""
OURS = """# A small book.
gone -> two
  once carried
index
one
  card-how-many
  carried in-old-words
  dropped -> two
  kept old-words
  merged -> two#words-once
  split -> kept
  the-one-chapter
two
"""
WRONG = {
    "what is nowhere": ("  kept old", "  lost\n  kept old", r":9: the book has no one#lost any more; write behind it"),
    "a page that is nowhere": ("index\n", "index\nlost\n  this\n", r":5: the book has no lost any more"),
    "no such section": ("two#words-once", "two#words", r":10: one#merged is to lead to two#words, which is no label"),
    "no such label": ("-> kept", "-> keep", r":11: one#split is to lead to keep, which is no label, page or page#id"),
    "a section that is there": (
        "  the-one-chapter",
        "  the-one-chapter -> two",
        r":12: the book has one#the-one-chapter; take",
    ),
    "a page that is there": ("\none", "\none -> two", r":5: the book has one; take '-> two' out"),
}


def ids_of(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


def test_each_address_is_there_or_leads_on_in_one_step(html: Path) -> None:
    """Where its link leads, test_every_link_inside_the_book_leads_somewhere looks."""
    ids: dict[str, set[str]] = {}
    missing = []
    for line in read_lines(TABLE.read_text(encoding="utf-8")):
        page = html / f"{line.page}.html"
        if line.page not in ids:
            ids[line.page] = {"", *ids_of(page)} if page.is_file() else set()
        missing += [f"{FILE}:{line.number}: {line.page}#{one}" for one in line.ids if one not in ids[line.page]]
    assert len(ids) > 400
    assert not missing, "\n".join(missing[:30])


def test_the_table_has_every_address_of_the_book(html: Path) -> None:
    assert TABLE.read_text() == (html / FILE).read_text(), "run `make addresses`, and commit what it adds"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TinyBook:
    """A book whose sections have moved."""
    book = TinyBook(tmp_path_factory.mktemp("book"))
    book.write("conf.py", CONF)
    book.chapters(one=ONE, two=TWO)
    book.write(f"handbook/{FILE}", OURS)
    return book


@pytest.fixture(scope="module")
def built(small: TinyBook) -> Built:
    made = small.build()
    assert not made.complaints
    return made


def test_what_moved_leads_on_from_the_pages_that_had_it(built: Built) -> None:
    one, gone = built.page("one"), built.page("gone")
    beside = [anchor["id"] for anchor in one.find(id="kept").find_all("span", id=True)]
    assert beside == ["reworded-since", "old-words", "split"]
    links = {line["id"]: line.a["href"] for line in one.find_all(class_="moved")}
    assert links == {
        "card-how-many": "two.html#card-how-many",
        "carried": "two.html#carried",
        "in-old-words": "two.html#carried",
        "dropped": "two.html",
        "merged": "two.html#words-once",
    }
    assert {line["id"]: line.a["href"] for line in gone.find_all(class_="moved")} == {
        "once": "two.html#carried",
        "carried": "two.html#carried",
    }


def test_a_build_adds_what_the_table_lacks_and_takes_nothing_out(built: Built) -> None:
    whole = OURS.replace("index\n", "index\n  book\n").replace("kept old-words", "kept old-words reworded-since")
    whole += "  card-how-many\n  carried what-was-carried-here\n  the-two-chapter\n  words-once\n"
    assert (built.folder / FILE).read_text() == whole


@pytest.mark.parametrize("name", WRONG)
def test_an_address_that_leads_nowhere_ends_the_build_with_its_line(small: TinyBook, built: Built, name: str) -> None:
    old, new, message = WRONG[name]
    small.write(f"handbook/{FILE}", OURS.replace(old, new))
    try:
        wrong = small.build()
    finally:
        small.write(f"handbook/{FILE}", OURS)
    assert re.search(f"^{FILE}{message}", wrong.warnings.replace("WARNING: ", ""))
    assert wrong.error == f"{FILE}: 1 problem, named above"


def test_a_page_is_written_again_when_its_addresses_lead_elsewhere(small: TinyBook, built: Built) -> None:
    small.build()
    small.write(f"handbook/{FILE}", OURS.replace("dropped -> two", "dropped -> two#words-once"))
    assert small.build().written == ["index", "one"]  # Sphinx writes the list that a page is in
    small.write(f"handbook/{FILE}", OURS)
    assert small.build().written == ["index", "one"]  # Sphinx writes the list that a page is in


@pytest.mark.parametrize("scripts", [True, False])
def test_a_reader_with_an_old_address_arrives(browser: Browser, built: Built, scripts: bool) -> None:
    page = browser.new_page(java_script_enabled=scripts)

    def opened(address: str) -> Page:
        page.goto("about:blank")
        page.goto(f"{built.folder.as_uri()}/{address}")
        return page

    assert opened("one.html").locator(".moved:visible").count() == 0
    assert not scripts or not violations(page, {"region", "landmark-unique"})  # of Sphinx's plain theme
    opened("one.html#old-words")
    assert page.locator("#kept :target").count() == 1
    for address, answer in (("one.html#merged", "words-once"), ("one.html#card-how-many", "card-how-many")):
        opened(address)
        if not scripts:
            shown = page.locator(".moved:visible")
            assert shown.all_text_contents()[0].startswith("What was here is now in The two chapter")
            shown.locator("a").click()
        page.wait_for_url(f"**/two.html#{answer}")
        assert page.locator(":target").get_attribute("id") == answer
    opened("gone.html#once")
    page.wait_for_url("**/two.html#carried" if scripts else "**/two.html")
    page.close()
