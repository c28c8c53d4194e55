"""The built pages: each opened once in a real browser, and all of them read as files.

A page that a browser opened asks nothing of another host, is accessible, and fits, in light and dark. Pages of labs,
errors and faults are of one form each: the browser opens as many as it takes to see every element and every class that
any of them has.
"""

import posixpath
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from strict_page import rest, violations, watched

from tools import ROOT

CHAPTER = "understand/idea.html"  # where one page is enough
BOOK = ROOT / "handbook"
ALIKE = ("labs/", "repair/errors/", "repair/faults/")
PAGES = {path.relative_to(BOOK).with_suffix(".html").as_posix() for path in BOOK.rglob("*.md")}
OTHERS = sorted(name for name in PAGES - {CHAPTER} if not name.startswith(ALIKE))
WIDE, NARROW, PHONE = 1280, 1020, 390  # NARROW: between two breakpoints of the theme
LIGHT = {"color_scheme": "light", "viewport": {"width": WIDE, "height": 800}}
DARK = {"color_scheme": "dark", "viewport": {"width": PHONE, "height": 800}}
# Found in the theme or in docutils, not in the book; each with its reason.
THEME = {
    "region": "furo puts its search field and skip links outside landmarks",
    "landmark-unique": "furo has two <aside> drawers",
    "landmark-complementary-is-top-level": "furo's table of contents is an <aside> inside <main>'s wrapper",
    "aria-allowed-role": "docutils says doc-biblioentry of a <div>",
    "aria-deprecated-role": "docutils still says doc-biblioentry",
}
# On a phone, tables and figures scroll by themselves; the keyboard reaches what scrolls in browsers of 2024 and later.
SCROLLS = "scrollable-region-focusable"


@pytest.fixture
def open_page(browser, site):
    """Open a page of the book for one reader; afterwards, nothing may have gone wrong in it."""
    opened, wrong = [], []

    def open_(path, **options):
        opened.append(watched(browser.new_page(**options), site, wrong))
        opened[-1].goto(f"{site}/{path}")
        return opened[-1]

    yield open_
    for page in opened:
        page.close()
    assert not wrong


def too_wide(page, width):
    """What makes the page scroll sideways at this width, or is cut off."""
    page.set_viewport_size({"width": width, "height": 800})
    rest(page)
    parts = page.evaluate(
        """() => [...document.querySelectorAll("article *")].filter(e => {
            const r = e.getBoundingClientRect();
            if (r.right <= innerWidth + 1 || r.width === 0) return false;
            for (let p = e.parentElement; p.tagName !== "ARTICLE"; p = p.parentElement)
                if (["auto", "scroll", "hidden"].includes(getComputedStyle(p).overflowX)) return false;
            return true;
        }).slice(0, 5).map(e => e.outerHTML.slice(0, 160))"""
    )
    wide = page.evaluate("document.documentElement.scrollWidth")
    return [f"{wide} px wide at {width} px: {parts}"] if parts or wide > width else []


# Labels of figures that are too small to read, and what is cut off with nothing that says so.
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
    return found.slice(0, 4);
}"""


def faults(tab, address, whole=False):
    """What is wrong with a page on a wide screen in light mode, and on a phone in dark mode.

    On the phone ``whole`` asks axe for all of its rules, not for those of colours only.
    """
    page, wrong = tab
    wrong.clear()
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDE, "height": 800})
    page.goto(address)
    found = violations(page, THEME) + too_wide(page, WIDE) + too_wide(page, NARROW)
    drawn, color = page.locator("svg.figure text"), "e => getComputedStyle(e).fill"
    light = drawn.first.evaluate(color) if drawn.count() else "none"
    page.emulate_media(color_scheme="dark")
    if light != "none" and drawn.first.evaluate(color) == light:
        found.append(f"a figure stays {light} in dark mode")
    found += too_wide(page, PHONE) + page.evaluate(SMALL_OR_CUT)
    return found + violations(page, {*THEME, SCROLLS}, colors_only=not whole) + wrong


@pytest.mark.apart
@pytest.mark.parametrize("path", [pytest.param(CHAPTER, marks=pytest.mark.core), *OTHERS])
def test_page_is_accessible_and_fits(tab, site, path):
    assert not faults(tab, f"{site}/{path}", whole=path == CHAPTER)


@pytest.mark.apart
def test_pages_of_one_form_with_every_kind_of_content_are_accessible_and_fit(tab, site, html):
    paths = {path.relative_to(html).as_posix(): path for folder in ALIKE for path in html.glob(f"{folder}**/*.html")}
    alike = {name: Reading(path).kinds for name, path in paths.items()}
    left, sample = set().union(*alike.values()), []
    while left:  # the page that has most of what no page of the sample has yet
        sample.append(max(alike, key=lambda name: len(alike[name] & left)))
        left -= alike[sample[-1]]
    assert {"div.lane", "svg.figure", "div.code-diff", "a.download", "dl.labs"} <= set().union(
        *(alike[name] for name in sample)
    )
    assert {name for name in ALIKE if any(one.startswith(name) for one in sample)} == set(ALIKE)
    wrong = {name: faults(tab, f"{site}/{name}", whole=True) for name in sample}
    assert not any(wrong.values()), wrong


def test_the_navigation_of_a_wide_screen_is_accessible_in_dark_mode(open_page):
    page = open_page("index.html", color_scheme="dark", viewport={"width": WIDE, "height": 800})
    assert not violations(page, THEME) + too_wide(page, WIDE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_colour_that_is_hard_to_see_is_told_also_where_much_looks_alike(browser, scheme, monkeypatch):
    monkeypatch.delenv("EVERY_TEXT", raising=False)
    page = browser.new_page(color_scheme=scheme)
    page.set_content("""<html lang="en"><title>Colours</title><style>
        html { background: #fff; color: #000 } .deep { color: #bbb } .hid { display: none }
        @media (prefers-color-scheme: dark) { html { background: #000; color: #fff } .deep { color: #444 } }
        </style><main><h1>Colours</h1><p class="hid">1 <b class="deep">no</b></main>""")
    page.evaluate("""() => document.querySelector("main").append(...Array.from({length: 60}, (_, n) => {
        const p = document.createElement("p");
        p.innerHTML = n % 10 ? `plain ${n} <i>too</i>` : `plain ${n} <b class="deep">deep</b>`;
        return p;
    }))""")
    for colors_only in (True, False):
        assert len(violations(page, (), colors_only)) == 2
    assert page.locator("[data-alike]").count() > 40
    page.evaluate("document.querySelectorAll('.deep').forEach(one => one.className = '')")
    assert not violations(page)
    page.close()


@pytest.mark.core
def test_a_chapter_reads_fully_without_scripts(open_page):
    text = {}
    for scripts in (True, False):
        page = open_page(CHAPTER, java_script_enabled=scripts)
        text[scripts] = page.locator("article").inner_text()
    assert text[True].replace("Copy", "") == text[False].replace("Copy", "")
    assert page.locator("svg.figure").first.is_visible()
    option = page.locator(".quiz label").first
    look = "e => getComputedStyle(e).backgroundColor + getComputedStyle(e).borderColor"
    before = option.evaluate(look)
    option.click()
    assert page.locator(".quiz").first.locator("input:checked").count() == 1
    assert option.evaluate(look) != before
    wrong = page.locator(".quiz").nth(1).locator("li:has(.quiz-wrong)")
    assert not wrong.first.locator(".quiz-reason p").is_visible()
    wrong.first.locator("label").click()
    assert wrong.first.locator(".quiz-reason p").is_visible()
    assert not wrong.last.locator(".quiz-reason p").is_visible(), "only the chosen one, until the answer is open"
    fold = open_page("understand/practice.html", java_script_enabled=False).locator("details.interview").first
    fold.locator("summary").first.click()
    assert fold.locator("p").last.is_visible()


# -- all pages, read as files ------------------------------------------------------------------------


class Reading(HTMLParser):
    """What a page's file says of its links, pictures and kinds of content."""

    def __init__(self, path):
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.ids, self.links, self.loaded, self.drawings, self.undescribed = [], [], [], [], []
        self.headings = 0
        self.kinds = set()  # elements and classes in the article, such as "div.lane"; a drawing is one
        self._open = Counter()
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._open[tag] += 1
        self.headings += tag == "h1"
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("img", "script", "iframe", "source", "audio", "video") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and {"stylesheet", "icon", "preload"} & set(given["rel"].split()):
            self.loaded.append(given["href"])
        if tag == "svg" and given.get("class") == "figure":
            self.drawings.append(given.get("aria-label", ""))
        if tag == "img" and "alt" not in given:
            self.undescribed.append(given.get("src"))
        if self._open["article"] and not self._open["svg"] - (tag == "svg"):
            self.kinds |= {tag, *(f"{tag}.{name}" for name in (given.get("class") or "").split())}

    def handle_endtag(self, tag):
        self._open[tag] -= 1


@pytest.fixture(scope="module")
def pages(html):
    """Every page of the book by its name, but for the search, which a script writes."""
    found = {path.relative_to(html).as_posix(): Reading(path) for path in html.rglob("*.html")}
    assert len(found) > 140
    return {name: page for name, page in found.items() if not name.startswith(("_", "search"))}


def test_every_link_inside_the_book_leads_somewhere(html, pages):
    ids = {name: set(page.ids) for name, page in pages.items()}
    for path in html.glob("_claims/*.html"):  # the tests' source, which ticks lead to
        ids[path.relative_to(html).as_posix()] = set(Reading(path).ids)
    files = {path.relative_to(html).as_posix() for path in html.rglob("*") if path.is_file()}
    dead = []
    for name, page in pages.items():
        for link in dict.fromkeys(page.links):
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            reached = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(to.path))) if to.path else name
            if reached not in files or (to.fragment and unquote(to.fragment) not in ids.get(reached, ())):
                dead.append(f"{name}: {link}")
    assert not dead, "\n".join(dead[:30])


def test_each_recipe_and_each_starter_can_be_downloaded_where_the_text_is(html, pages):
    parts = "understand/", "run/", "repair/", "fast/", "keep/"
    linked = {
        (html / name).parent.joinpath(unquote(link)).read_bytes()
        for name, page in pages.items()
        for link in page.links
        if name.startswith(parts) and "_downloads/" in link
    }
    gallery = ROOT / "gallery"
    shipped = [path for path in (gallery / "recipes").iterdir() if path.is_file()]
    shipped += [gallery / "ddplab" / "checkpoint.py", *gallery.glob("recipes/data/*.txt")]
    shipped += gallery.glob("exercises/*/starter.py")
    assert len(shipped) > 25
    assert not [path.relative_to(gallery).as_posix() for path in shipped if path.read_bytes() not in linked]


def test_no_page_loads_anything_from_elsewhere(html, pages):
    strange = [
        f"{name}: {source}"
        for name, page in pages.items()
        for source in page.loaded
        if not source.startswith("data:") and not (html / name).parent.joinpath(source.partition("?")[0]).is_file()
    ]
    assert not strange, "\n".join(strange[:30])
    for path in html.rglob("_static/**/*.css"):
        assert not re.search(r"""(@import|url\()\s*["']?(https?:)?//""", path.read_text(encoding="utf-8")), path


def test_every_page_has_one_title_ids_that_differ_and_words_for_its_pictures(pages):
    repeated = re.compile("equation-|STIX")  # by MyST around an equation; a glyph of a title, in its contents
    wrong = []
    for name, page in pages.items():
        twice = [one for one, count in Counter(page.ids).items() if count > 1 and not repeated.match(one)]
        short = [label for label in page.drawings if len(label) <= 10]
        if page.headings != 1 or twice or short or page.undescribed:
            wrong.append(f"{name}: {page.headings} h1, twice {twice}, short {short}, no alt {page.undescribed}")
    assert not wrong, "\n".join(wrong[:30])
    assert sum(len(page.drawings) for page in pages.values()) > 50


def test_every_lab_page_has_its_stamp(pages):
    labs = {name: page for name, page in pages.items() if name.startswith("labs/") and "/plot_" in name}
    assert len(labs) > 100
    assert not [name for name, page in labs.items() if not {"p.stamp", "div.stamp", "div.note"} & page.kinds]


@pytest.mark.core
def test_a_tick_opens_its_panel_in_place_and_escape_closes_it(open_page):
    page = open_page(CHAPTER, viewport={"width": PHONE, "height": 800})
    tick, panel = page.locator("button.claim-tick").first, page.locator(".claim-panel").first
    box = tick.bounding_box()
    assert min(box["width"], box["height"]) >= 24
    assert not panel.is_visible()
    tick.focus()
    page.keyboard.press("Enter")
    assert panel.is_visible()
    shown = panel.bounding_box()
    assert shown["x"] >= 0
    assert shown["x"] + shown["width"] <= PHONE
    page.keyboard.press("Tab")
    assert panel.evaluate("panel => panel.contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert tick.evaluate("tick => document.activeElement === tick")


def test_the_list_of_claims_is_light_and_can_be_filtered(open_page, html):
    assert (html / "reference/claims.html").stat().st_size <= 300_000
    page = open_page("reference/claims.html", **LIGHT)
    rows = page.locator("table.claims tr[data-holds]")
    every = rows.count()
    asked = page.get_by_label("Words that a claim has")
    asked.fill("no_sync")
    left = page.locator("table.claims tr[data-holds]:visible")
    assert 0 < left.count() < every
    assert all("no_sync" in text.lower() for text in left.all_text_contents())
    asked.fill("no such words")
    assert not left.count()
