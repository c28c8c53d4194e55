"""What a page weighs, and that nothing in it moves while it comes."""

import gzip
import io
import posixpath
import re
from html import unescape

import pytest
from fontTools.ttLib import TTFont
from PIL import Image, ImageChops

from _ext.embed.svg_slim import slim
from _ext.style.page_style import LEFT_OUT, lean
from tools import ROOT

MOST_BYTES, MOST_ELEMENTS = 120_000, 5_000  # of a page as a server sends it, with its figures
LISTS = {"reference/claims.html"}  # all claims: no chapter
WITHOUT_OURS = "_downloads", "_sources", "_static", "editions"
OPENED = (
    "index.html",
    "fast/scaling.html",
    "labs/idea/plot_03_memory_ledger.html",
    "repair/broken.html",
    "repair/diagnose.html",
    "repair/errors.html",
    "interviews/drill.html",
)
# What a reader has ticked shows on a page without moving anything.
TICKED = """try { localStorage.setItem("ddp-progress", JSON.stringify({version: 1, cards: {},
    done: {"understand/idea": "2026-01-31", "repair/broken": "2026-01-31"}})); } catch {}"""
LABS = ROOT / "gallery" / "editions" / "cpu-gloo" / "labs"
FONTS = ROOT / "handbook" / "_static" / "fonts"
# Drawn by a font of the reader's system: boxes and marks of outputs that a line quotes, and the parts of an emoji.
OF_THE_SYSTEM = set("│┃─━═┐┌└┘├┬┴█░►⋯⌈⌉⌊⌋ᵢₒᵀ⁻✗⅞🏖\ufe0f\u200b\n\t")
SVG = "http://www.w3.org/2000/svg"


@pytest.fixture(scope="module")
def texts(html):
    """Every page of the book by its name."""
    found = {path.relative_to(html).as_posix(): path for path in html.rglob("*.html")}
    return {
        name: path.read_text(encoding="utf-8") for name, path in found.items() if name.split("/")[0] not in WITHOUT_OURS
    }


def test_pages_are_light(texts):
    heavy = {}
    for name, text in texts.items():
        size, elements = len(gzip.compress(text.encode())), len(re.findall("<[a-zA-Z]", text))
        if (size > MOST_BYTES or elements > MOST_ELEMENTS) and name not in LISTS:
            heavy[name] = f"{size:,} bytes, {elements:,} elements"
    assert len(texts) > 140
    assert not heavy


def test_a_page_waits_for_one_sheet_and_no_script(html, texts):
    for name, text in texts.items():
        if "page.css" not in text:
            assert "stylesheet" not in text, name  # an old address, which only leads on
            continue
        sheets = re.findall(r'<link rel="stylesheet"[^>]*href="([^"?]*)', text)
        own = {"explorers.css", "diagnose.css", "room.css"}
        assert len(sheets) == 1 or {posixpath.basename(sheet) for sheet in sheets[1:]} <= own, name
        loaded = re.findall(r"<script ([^>]*src=[^>]*)>", text)
        assert all("defer" in script for script in loaded) or name == "search.html", name
    sheet = (html / "_static" / "page.css").read_text(encoding="utf-8")
    assert len(gzip.compress(sheet.encode())) < 25_000
    assert ".lane-name" in sheet
    assert ".sd-btn-outline-danger" not in sheet, "a class that no page has"


def test_a_sheet_keeps_what_a_page_may_have(texts):
    sheet = '/* a */ .a,\n.sd-btn:hover {x: "a  b"}@media print{.sd-btn.a{y:2} .sd-tab {z:3}}'
    assert lean(sheet) == ' .a, .sd-btn:hover {x: "a  b"}@media print{ .sd-tab {z:3}}'
    used = {name for text in texts.values() for found in re.findall(r'class="([^"]*)"', text) for name in found.split()}
    assert "sd-tab-set" in used
    assert not [name for name in used if LEFT_OUT.search(f".{name}")], "page_style leaves their rules out"


def test_the_fonts_have_every_letter_of_the_book(texts):
    words = re.compile(r"<(script|style|pre|svg|code)\b.*?</\1>|<[^>]*>", re.DOTALL)
    used = {letter for text in texts.values() for letter in unescape(words.sub("", text))} - OF_THE_SYSTEM
    faces = {path.stem: set(TTFont(path).getBestCmap()) for path in FONTS.glob("source-serif-4-*.woff2")}
    symbols = faces.pop("source-serif-4-symbols")
    assert len(faces) == 3
    missing = {name: sorted(one for one in used if ord(one) not in face | symbols) for name, face in faces.items()}
    assert not any(missing.values()), f"cut the faces anew (handbook/_static/book.css says how): {missing}"


# What moves once the text has been painted, other than by the reader's hand.
WATCH = """window.moved = []; window.observer = new PerformanceObserver(list => note(list.getEntries()));
    window.note = entries => entries.forEach(entry => {
        if (!entry.hadRecentInput && entry.startTime > window.came)
            moved.push([entry.value, entry.sources.map(s => s.node?.nodeName)]);
    });
    observer.observe({type: "layout-shift", buffered: true});
    document.addEventListener("readystatechange", () => { if (document.readyState == "interactive")
        requestAnimationFrame(() => setTimeout(() => { window.came = performance.now(); })); });"""
# All fonts are there, what waits for an idle page has run, and two frames have been painted since.
SETTLED = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    await document.fonts.ready;
    await new Promise(requestIdleCallback);
    await frame();
    await frame();
    await new Promise(requestIdleCallback);
    note(observer.takeRecords());
    return moved;
}"""


@pytest.mark.apart
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("path", OPENED)
def test_nothing_moves_once_a_page_has_come(browser, site, width, path):
    """By scripts and fonts that come after the text; while it comes, a line moves wherever the browser pauses."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    held, came = [], []
    page = context.new_page()
    page.add_init_script(WATCH + TICKED)
    page.route("**/*.js*", lambda route: route.continue_() if came else held.append(route))
    page.goto(f"{site}/{path}", wait_until="commit")
    page.wait_for_function("window.came")
    assert held
    came.append(True)
    for script in held:
        script.continue_()
    page.wait_for_load_state()
    moved = page.evaluate(SETTLED)
    context.close()
    assert sum(score for score, _ in moved) < 0.002, moved


# -- drawings ----------------------------------------------------------------------------------------


def drawn(page, svg):
    """The drawing as the browser paints it."""
    page.set_content(f"<body style='margin:0'>{svg}")
    return Image.open(io.BytesIO(page.locator("svg").first.screenshot())).convert("L")


@pytest.mark.parametrize("name", ["memory-ledger-1", "collectives-1", "published-tables-1", "same-buckets-1"])
def test_a_slim_drawing_looks_the_same(browser, name):
    file = (LABS / f"{name}.svg").read_text(encoding="utf-8")
    svg = file[file.index("<svg") :]
    page = browser.new_page(device_scale_factor=2, viewport={"width": 900, "height": 700})
    before, after = drawn(page, svg), drawn(page, slim(svg))
    page.close()
    assert before.size == after.size
    differ = sum(ImageChops.difference(before, after).histogram()[48:])  # of 256 greys; edges may round otherwise
    assert differ < 0.0002 * before.size[0] * before.size[1]
    assert 3 * slim(svg).count("<") < svg.count("<")


def test_slimming_keeps_what_lies_on_top():
    path = '<path d="M {0} 0 L {1} 0 L {1} 9 L {0} 9 z" style="fill: {2}"/>'
    shapes = [(0, 9, "#ff0000"), (5, 14, "#00ff00"), (0, 9, "#ff0000"), (40, 49, "#00ff00")]
    svg = f'<svg xmlns="{SVG}"><g id="figure_1">{"".join(path.format(*shape) for shape in shapes)}</g></svg>'
    order = re.findall("fill:(#[0-9a-f]{6})", slim(svg))
    assert order == ["#ff0000", "#00ff00", "#ff0000"]  # the last one joined the second, which it does not touch
