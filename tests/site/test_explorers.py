"""What holds of every explorer: usable by all, light, a figure where no script runs, and one line for wrong options."""

import gzip
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from strict_page import KINDS, STATIC, rest, violations

from _ext.explorers.explorer_examples import EXAMPLES
from _ext.explorers.interval_drawing import Job, interval_words
from _ext.explorers.step_drawing import step_words
from tiny_book import EXTENSIONS, TinyBook

# -- in a browser ------------------------------------------------------------------------------------


def test_paper_from_the_browser(page):
    """Step and interval as the reader has set them; of the ring all steps, not the one that is shown."""
    page.emulate_media(media="print")
    assert not page.get_by_text("Static step.").is_visible()
    assert not page.get_by_text("Static curve.").is_visible()
    assert page.locator("ddp-step-explorer .step-number").is_visible()
    assert page.locator("ddp-interval-calculator .step-number").is_visible()
    assert page.get_by_text("25 MiB", exact=True).first.is_visible()
    assert not page.locator("ddp-step-explorer input").first.is_visible()
    assert page.get_by_label("Nodes").is_visible()
    assert page.get_by_text("Static ring.").is_visible()
    assert not page.locator(".ring-table").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_are_accessible_and_fit_a_phone(explorers, page, scheme):
    explorers.anew(width=390, scheme=scheme)
    for example, ranks, clicks, nodes in (("thousands", "8", 7, "128"), ("ethernet", "4", 3, "0")):
        page.get_by_label("Example").select_option(example)
        page.locator("ddp-ring-stepper").get_by_label("Ranks").select_option(ranks)
        page.get_by_label("Nodes").fill(nodes)
        for _ in range(clicks):
            page.get_by_role("button", name="Next").click()
        rest(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(
            """() => [...document.querySelectorAll("main *")].every(one =>
                one.closest(".explorer-hidden, .ring-long") || one.getBoundingClientRect().right <= innerWidth)"""
        )
        assert not violations(page)


def test_colours_follow_dark_mode(page):
    places = [("ddp-step-explorer svg text", "fill"), ("ddp-step-explorer svg .exposed", "fill")]
    places += [(".ring-share.explorer-r0", "backgroundColor"), ("ddp-interval-calculator svg text", "fill")]
    places += [("ddp-interval-calculator svg .curve", "stroke"), ("ddp-interval-calculator input", "color")]
    looks = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        looks[scheme] = [page.locator(at).first.evaluate(f"e => getComputedStyle(e).{name}") for at, name in places]
    assert not set(looks["light"]) & set(looks["dark"])
    assert looks["light"][2] == "rgb(0, 114, 178)"  # rank 0 as everywhere in the book


@pytest.mark.parametrize("name", [*(f"{kind}.js" for kind in KINDS), "explorers.css"])
def test_they_are_light_and_ask_for_nothing(name):
    source = (STATIC / name).read_text()
    assert len(gzip.compress(source.encode())) < 10_000
    if name.endswith(".js"):
        asks = ("fetch(", "XMLHttpRequest", "import(", "eval(", "Function(")
        assert not [word for word in (*asks, "innerHTML", "insertAdjacentHTML", ".style") if word in source]


# -- the directives ----------------------------------------------------------------------------------

CHAPTER = """
```{step-explorer}
:name: explorer-step

Drag a slider.
```

```{ring-stepper}
:ranks: 3

Step through it.
```

```{interval-calculator}
:nodes: 64

Put in your own numbers.
```
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    made = TinyBook(tmp_path)
    more = ["_ext.explorers.explorer_directives", "_ext.forms.book_epub"]
    made.write(
        "conf.py", f"{(tmp_path / 'conf.py').read_text()}\nextensions += {more}\nhtml_static_path = ['{STATIC}']\n"
    )
    made.chapters(speed=CHAPTER, other="Nothing.")
    return made


def test_the_page_reads_without_scripts(browser, book):
    built = book.build()
    assert built.complaints == ""
    for scripts in (False, True):
        context = browser.new_context(java_script_enabled=scripts)
        page = context.new_page()
        wrong = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto((built.folder / "speed.html").as_uri())
        drawings = page.locator("figure svg.figure")
        assert [drawing.is_visible() for drawing in drawings.all()] == [not scripts] * 3
        assert page.locator(".explorer").count() == (3 if scripts else 0)
        assert page.get_by_text("Drag a slider.").is_visible()
        if scripts:
            assert page.get_by_label("Nodes").input_value() == "64"
        context.close()
        assert not wrong
    page = built.page("speed")
    step, ring, curve = (svg["aria-label"] for svg in page.select("figure svg.figure"))
    assert step == step_words(EXAMPLES["ethernet"])
    assert ring.startswith("What 3 ranks hold at the start and after each of the 4 steps")
    assert curve.endswith(interval_words(Job(nodes=64)))
    assert "var(--rank-2, #009e73)" in str(page.select("svg")[1])
    assert len(page.select(", ".join(f'script[src*="{kind}.js"]' for kind in KINDS))) == 3
    assert not built.page("other").select('script[src*="explorer"], script[src*="interval"], link[href*="explorers"]')


def test_paper_gets_the_drawing(book):
    epub = book.build("epub")
    page = BeautifulSoup((epub.folder / "speed.xhtml").read_text(), "html.parser")
    assert not page.select("script, input, " + ", ".join(f"ddp-{kind}" for kind in KINDS))
    images = page.select("figure img")
    assert images[0]["alt"] == step_words(EXAMPLES["ethernet"])
    assert images[2]["alt"].endswith(interval_words(Job(nodes=64)))
    for image in images:
        svg = (epub.folder / image["src"]).read_text()
        assert "var(" not in svg  # a file of an EPUB knows no style sheet
        assert "font-family: sans-serif" in svg
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [name for name in root.attrib if "xmlns" in name]
    assert "Drag a slider." in page.get_text()


WRONG = {
    "```{step-explorer}\n:example: moon\n\nCaption.\n```": "there is no example 'moon'; choose one of ethernet, laptop",
    "```{step-explorer}\n```": "step-explorer: write below it what to see; it becomes the caption",
    "```{step-explorer}\n- A list.\n```": "step-explorer: begin with a paragraph that says what to see",
    "```{ring-stepper}\n:ranks: 9\n\nCaption.\n```": "ring-stepper: ranks must be 2 to 5; got 9",
    "```{interval-calculator}\n:nodes: 0\n\nCaption.\n```": "all but restart-s must be more than 0",
    "```{interval-calculator}\n:save-s: soon\n\nCaption.\n```": "could not convert string to float",
}


def test_a_wrong_option_is_reported(book):
    book.chapters(speed="\n\n".join(WRONG))
    warnings = book.build().warnings
    for message in WRONG.values():
        assert message in warnings


def test_the_extension_leaves_torch_alone():
    code = "import sys, _ext.explorers.explorer_directives; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=EXTENSIONS)
    assert done.stdout == "False\n"
