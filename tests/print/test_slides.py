"""Decks: the PDFs read back, and the slides in a real browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from printed import Printed
from pypdf import PdfReader

from _ext.decks.deck_pdf import light, plain_svg, read_slides
from _ext.decks.deck_sizes import LABEL_PX, code_size_px, legible, text_size_px
from tiny_book import EXTENSIONS, TinyBook
from tools import PATIENCE_S, ROOT, built_once

CONF = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
extensions = ["myst_parser", "_ext.embed.lanes", "_ext.style.math_svg", "_ext.decks.decks"]
myst_enable_extensions = ["colon_fence", "dollarmath", "attrs_inline", "attrs_block"]
html_math_renderer = "ziamath"
revealjs_static_path = [{str(ROOT / "handbook" / "_static")!r}, {str(ROOT / "slides" / "_static")!r}]
revealjs_style_theme, revealjs_css_files, revealjs_js_files = "deck.css", ["math.css"], ["deck.js"]
revealjs_script_plugins = [{{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}}]
revealjs_script_conf = "deckConfig"
project = "A book & more"


def setup(app):
    app.add_config_value("labs_edition", "mine", "env")
"""
HEADER = "what each rank says, and it is a line of many words"
LANES = "rank 0 │ loss 1\nrank 1 │ loss 2"
SAMPLE = f"""# A sample & a test

Below the title.

:::{{notes}}
Opening note.

- with a *list*
:::

# A part

## Code

```python
def worker():  # a comment
    return "text"
```

:::{{notes}}
Note on code: `x < y`.
:::

## Formula

$$T = \\frac{{1}}{{p}}$$

### Below, in a stack

```none
{HEADER}
```

```none
{LANES}
```

## In steps

```{{revealjs-fragments}}
- first step
- second step
```

```{{revealjs-break}}
```

Behind the break.

## Never shown

```{{revealjs-section}}
:data-visibility: hidden
```

Hidden text.

## Too much

{{{{much}}}}

# The end
"""
TITLES = ["A sample & a test", "A part", "Code", "Formula", "Below, in a stack", "In steps", "In steps", "Too much"]


@pytest.fixture(scope="session")
def sample() -> Path:
    """The folder of a deck with everything that can be nested, and one slide that is too full.

    It was built three times; ``builds`` beside it has the warnings and the times of the files that each build left.
    """

    def make(folder: Path) -> None:
        book, out, builds = deck(folder), folder / "_build" / "deck", []
        for number in range(3):
            built = book.build("revealjs", out="deck")
            assert not built.error, built.complaints
            builds.append((built.warnings, {path.name: path.stat().st_mtime_ns for path in out.glob("sample*")}))
            if number == 1:
                (out / "sample.pdf").unlink()
        (folder / "_build" / "builds").write_text(json.dumps(builds), encoding="utf-8")

    return built_once("sample-deck", make) / "_build" / "deck"


@pytest.fixture
def builds(sample: Path) -> list[tuple[str, dict[str, int]]]:
    return json.loads(sample.with_name("builds").read_text(encoding="utf-8"))


def deck(folder: Path) -> TinyBook:
    """Write the sample."""
    made = TinyBook(folder)
    made.write("conf.py", CONF)
    made.write("handbook/index.md", "# Decks\n\n```{toctree}\nsample\n```\n")
    much = "\n\n".join(f"Paragraph {number} of too many." for number in range(14))
    made.write("handbook/sample.md", SAMPLE.replace("{{much}}", much))
    return made


def pages(pdf: Path) -> list[str]:
    return [" ".join(page.split()) for page in Printed(pdf).pages[:-1]]


# -- a sample ---------------------------------------------------------------------------------------


def test_one_page_for_each_slide_stacks_and_breaks_included_hidden_ones_left_out(sample, builds):
    shown = pages(sample / "sample.pdf")
    warnings = builds[0][0]
    assert len(shown) == len(TITLES) + 2  # the overflow of 'Too much', and 'The end'
    for title, page in zip(TITLES, shown, strict=False):
        assert page.startswith(title)
    assert "Hidden text" not in " ".join(shown)
    assert "first step" in shown[5]
    assert "second step" in shown[5]
    assert "Behind the break" in shown[6]
    assert "the slide 'Too much' does not fit on its page; shorten it" in warnings
    assert warnings.count("WARNING") == 1


def test_slides_are_wide_and_vector(sample):
    reader = PdfReader(sample / "sample.pdf")
    for page in reader.pages:
        assert float(page.mediabox.width) / float(page.mediabox.height) == pytest.approx(16 / 9)
        assert not page.images
    assert reader.metadata.title == "A sample & a test"
    fonts = {name for page in reader.pages for name in str(page["/Resources"].get("/Font", {}))}
    assert fonts


def test_notes_stand_below_their_slide_two_on_a_page_and_only_in_the_handout(sample):
    slides, handout = pages(sample / "sample.pdf"), pages(sample / "sample-notes.pdf")
    count = len(TITLES) + 1
    assert len(handout) <= (count + 1) // 2
    text = " ".join(handout)
    numbers = [text.index(f"{number} / {count}") for number in range(1, count + 1)]
    assert numbers == sorted(numbers)
    assert "Opening note." in handout[0]
    assert "with a list" in handout[0]
    assert numbers[2] < text.index("Note on code: x < y.") < numbers[3]
    assert "def worker" in text
    assert not any("note" in page.lower() for page in slides)
    page = PdfReader(sample / "sample-notes.pdf").pages[0]
    assert float(page.mediabox.height) > float(page.mediabox.width)


def test_book_deck_and_edition_stand_below_every_slide(browser, sample):
    footer = "A book & more · A sample & a test · edition mine"
    for name in ("sample.pdf", "sample-notes.pdf"):
        assert all(footer in page for page in pages(sample / name)), name
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto((sample / "sample.html").as_uri())
    page.wait_for_function("Reveal.isReady()")
    for _ in TITLES:
        line = page.get_by_text(footer)
        assert line.is_visible()
        assert line.bounding_box()["y"] > 680
        page.keyboard.press("ArrowRight")
    page.close()


def test_lanes_notes_and_kinds_of_slides_are_in_the_page(sample):
    page = BeautifulSoup((sample / "sample.html").read_text(), "html.parser")
    code = page.find("section", id="code")
    assert [lane["class"][1] for lane in page.select(".lanes .lane")] == ["r0", "r1"]
    assert code.select_one("aside.notes code").get_text() == "x < y"
    assert "deck-title" in page.find("section", id="a-sample-a-test")["class"]
    assert "deck-part" in page.find("section", id="a-part")["class"]


def test_a_second_build_makes_only_what_is_missing(builds):
    first, second, without_pdf = (times for _, times in builds)
    assert first.keys() == {"sample.html", "sample.pdf", "sample-notes.pdf"}
    assert second == first
    assert without_pdf.keys() == first.keys()
    assert without_pdf["sample.html"] == first["sample.html"]


def test_what_is_shown_together_has_one_size_and_a_few_lines_stand_below_a_gap(sample):
    page = BeautifulSoup((sample / "sample.html").read_text(), "html.parser")
    sizes = {part.parent["style"] for part in page.select("#below-in-a-stack div[style] > :is(.lanes, div)")}
    assert sizes == {f"--code-size: {code_size_px(HEADER)}px"}
    assert code_size_px(HEADER) < code_size_px("loss 1", "loss 2")
    gap = re.fullmatch(r"--above-code: (\d+)px", page.select_one("#code")["style"])
    assert int(gap[1]) > 100
    assert not page.select_one("#formula.deck-code")


def test_without_pango_the_build_ends_at_once_and_says_what_to_install(tmp_path):
    (tmp_path / "weasyprint.py").write_text("raise OSError('cannot load library libpango-1.0-0')")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "revealjs", "-c", ".", "handbook", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=deck(tmp_path / "deck").root, capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )
    assert done.returncode != 0
    assert "PDF needs the Pango library" in done.stderr
    assert "apt install libpango-1.0-0" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "sample.html").exists()


@pytest.mark.parametrize(("asked", "paper"), [("?light", "rgb(253, 252, 250)"), ("?dark", "rgb(22, 24, 28)")])
def test_the_scheme_can_be_chosen_in_the_address(browser, sample, asked, paper):
    page = browser.new_page()
    page.goto((sample / "sample.html").as_uri() + asked)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    colors = page.locator("#code pre span").evaluate_all("all => all.map(one => getComputedStyle(one).color)")
    assert len(set(colors)) > 2, "code is coloured"
    page.close()


def test_without_scripts_a_deck_reads_from_top_to_bottom(browser, sample):
    page = browser.new_page(java_script_enabled=False)
    page.goto((sample / "sample.html").as_uri())
    headings = page.locator("section > h1, section > h2, section > h3")
    tops = [headings.nth(place).bounding_box()["y"] for place in range(headings.count())]
    assert tops == sorted(set(tops))
    page.close()


# -- its parts --------------------------------------------------------------------------------------


def test_what_weasyprint_does_not_know_is_replaced():
    assert light("a { color: light-dark(#123456, #fff); --x: light-dark(var(--y), red) }") == (
        "a { color: #123456; --x: light-dark(var(--y), red) }"
    )
    assert plain_svg('<path style="fill: var(--rank-0, #0072b2); stroke: currentColor"/>') == (
        '<path style="fill: #0072b2; stroke: #1f2328"/>'
    )


@pytest.mark.parametrize(("code", "size"), [("x", 40), ("x" * 100, 18), ("x\n" * 20, 14), ("x" * 500, 14), ("", 40)])
def test_code_is_as_large_as_the_slide_allows(code, size):
    assert code_size_px(code) == size
    assert code_size_px(code, "a") <= size


def test_text_is_as_large_as_the_slide_allows():
    assert text_size_px(["three words here"] * 3, (34, 62), 535) == 62
    assert 34 < text_size_px(["word " * 12] * 4, (34, 62), 535) < 62
    assert text_size_px(["word " * 200], (34, 62), 535) == 34
    assert text_size_px(["three words here", None], (34, 62), 535) == 42


def test_labels_of_a_figure_are_made_legible_and_larger_ones_stay():
    drawn = (
        '<svg><g style="font-size:8.5px"><text x="1" y="2">a</text></g><text style="font-size:30px">b</text>'
        '<text font-size="9">c</text><text transform="translate(5 6)">'
        '<tspan x="0 6.04" y="-0.10" style="font-size:9.5px">10</tspan>'
        '<tspan x="12.17 17.75" y="-4.00" style="font-size:6.65px">−9</tspan></text></svg>'
    )
    shown = legible(drawn, 2)
    assert re.findall(r'font-size(?::|=")([\d.]+)', shown) == ["10.01", "30.00", "10.01", "10.01", "10.01"]
    assert '<tspan x="12.17" y="-4.80"' in shown, "the letters of an exponent stand beside one another"


# -- the decks of the book --------------------------------------------------------------------------


DECKS = sorted(path.stem for path in (ROOT / "slides").glob("*.md") if path.stem != "index")


def outside_formulas(element):
    """The text of an element without its drawings, whose text in the page is a title."""
    parts = [element.text or ""]
    for child in element:
        parts += ["" if child.tag.endswith("svg") else outside_formulas(child), child.tail or ""]
    return "".join(parts)


def test_every_deck_has_a_page_for_each_slide_and_its_notes(slides):
    assert DECKS
    for name in DECKS:
        expected = read_slides((slides / f"{name}.html").read_text())
        shown, handout = pages(slides / f"{name}.pdf"), pages(slides / f"{name}-notes.pdf")
        assert len(shown) == len(expected)
        assert len(handout) <= 0.7 * len(expected), f"{name}: mostly two slides on a page"
        text = re.sub(r"\s+", "", "".join(handout))
        before = 0
        for number, (slide, page) in enumerate(zip(expected, shown, strict=True), 1):
            assert slide.title.split()[0] in page
            assert "edition" in page
            notes = re.sub(r"\s+", "", outside_formulas(slide.notes))
            at = text.index(f"{number}/{len(expected)}", before)
            assert at <= text.index(notes[:40], at)
            before = at


def test_no_text_leaves_its_page(slides):
    for name in DECKS:
        for kind in (f"{name}.pdf", f"{name}-notes.pdf"):
            printed = Printed(slides / kind)
            width, height = printed.size
            for number, words in enumerate(printed.words, 1):
                places = [(word, (x / width, y / height, to / width, foot / height)) for x, y, to, foot, word in words]
                outside = [word for word, place in places if min(place) < 0.01 or max(place) > 0.995]
                assert not outside, f"{kind}, page {number}: {outside}"


def test_a_slide_says_one_thing(slides):
    for name in DECKS:
        page = BeautifulSoup((slides / f"{name}.html").read_text(), "html.parser")
        for slide in [section for section in page.select(".slides section") if not section.find("section")]:
            title = slide.find(["h1", "h2", "h3"]).get_text()
            assert all(len(pre.get_text().strip().splitlines()) <= 12 for pre in slide.select("pre")), title
            if "deck-part" not in slide["class"]:
                assert slide.select_one("aside.notes") or "deck-question" in slide["class"], f"{title}: no notes"
            if {"deck-question", "deck-answer"} & set(slide["class"]):
                continue  # written for the chapter
            for aside in slide.select("aside, pre, .stamp, svg"):
                aside.extract()
            assert len(slide.select("figure, .lab-output, .lab-code")) <= 1, title
            assert len(re.findall(r"\w+", slide.get_text())) <= 40, title


SIZES = {"projector": (1280, 720), "old projector": (1024, 768), "phone": (390, 844)}
OVERFLOW = """() => Reveal.getSlides().flatMap((slide, number) => {
  const at = Reveal.getIndices(slide);
  Reveal.slide(at.h, at.v);
  const box = slide.getBoundingClientRect();
  const clipped = element => element.closest("aside, pre, .math-scroll") && !element.matches("pre, .math-scroll");
  return [...slide.querySelectorAll("*")].filter(element => !clipped(element))
    .map(element => element.getBoundingClientRect())
    .filter(inner => inner.width && (inner.right > box.right + 1 || inner.bottom > box.bottom + 1))
    .slice(0, 1).map(() => number + 1);
})"""

# Labels of drawings that are smaller than a given size in px of the slide, and options that are broken.
UNREADABLE = """least => Reveal.getSlides().flatMap((slide, number) => {
  const at = Reveal.getIndices(slide);
  Reveal.slide(at.h, at.v);
  const letters = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const small = [...slide.querySelectorAll("svg :is(text, tspan)")].filter(letters).map(label => {
    const to = label.getScreenCTM();
    const scale = Math.sqrt(Math.abs(to.a * to.d - to.b * to.c)) / Reveal.getScale();
    return [parseFloat(getComputedStyle(label).fontSize) * scale, label.textContent];
  }).filter(([size]) => size < least);
  const broken = [...slide.querySelectorAll(":not(aside) > * > .pre")].filter(code => code.getClientRects().length > 1);
  return [...small, ...broken.map(code => code.textContent)].map(what => [number + 1, what]);
})"""


@pytest.mark.apart
@pytest.mark.parametrize("name", DECKS)
def test_in_a_browser_slides_fit_every_screen_and_load_nothing_from_elsewhere(browser, slides, name):
    page = browser.new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: errors.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    count = len(read_slides((slides / f"{name}.html").read_text()))
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.goto((slides / f"{name}.html").as_uri())  # each time: a deck takes the shape of the screen as it opens
        page.wait_for_function("Reveal.isReady()")
        assert page.evaluate("Reveal.getTotalSlides()") == count
        assert page.evaluate(OVERFLOW) == [], f"on a {size}"
        if size == "projector":
            assert page.evaluate(UNREADABLE, LABEL_PX - 0.05) == []
    page.close()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert errors == []
