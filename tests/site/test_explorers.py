"""What holds of every explorer: usable by all, light, and a figure where no script runs."""

import gzip
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from strict_page import KINDS, STATIC, rest, violations

from _ext.explorers import diagnose_page
from _ext.explorers.explorer_examples import EXAMPLES
from _ext.explorers.interval_drawing import Job, interval_words
from _ext.explorers.step_drawing import step_words
from ddplab.diagnose import entries
from ddplab.diagnose.browser import page_data
from tiny_book import CONF, EXTENSIONS, Built, TinyBook

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


SCRIPTS_OF_ALL = [*((f"{kind}.js",) for kind in KINDS), ("explorers.css",), diagnose_page.SCRIPTS]


@pytest.mark.parametrize("names", SCRIPTS_OF_ALL, ids=lambda names: names[0])
def test_they_are_light_and_ask_for_nothing(names):
    source = "".join((STATIC / name).read_text() for name in names)
    assert len(gzip.compress(source.encode())) < (25_000 if names == diagnose_page.SCRIPTS else 10_000)
    asks = ["fetch(", "XMLHttpRequest", "sendBeacon", "WebSocket", "import(", "eval(", "Function("]
    asks += ["innerHTML", "insertAdjacentHTML", *([".style"] if names != diagnose_page.SCRIPTS else [])]
    assert not [word for word in asks if word in source]


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


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The book for the web and as an EPUB."""
    made = TinyBook(tmp_path_factory.mktemp("book"))
    more = ["_ext.explorers.explorer_directives", "_ext.explorers.diagnose_page", "_ext.print.book_epub"]
    made.write("conf.py", f'{CONF}\nextensions += {more}\nhtml_static_path = ["{STATIC}"]')
    made.chapters(speed=CHAPTER, diagnose="```{diagnose}\nUse `ddplab diagnose`.\n```\n", other="Nothing.")
    builds = made.build(), made.build("epub")
    assert builds[0].complaints == ""
    return builds


def test_the_page_reads_without_scripts(browser, builds):
    built = builds[0]
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


def test_the_directive_puts_the_entries_into_the_page(builds):
    element = builds[0].page("diagnose").select_one("ddp-diagnose")
    assert element["errors"] == "errors/"
    assert json.loads(element.select_one("script").string) == json.loads(json.dumps(page_data(entries())))
    assert element.select_one(".diagnose-instead").get_text().strip() == "Use ddplab diagnose."
    assert builds[0].page("diagnose").select_one('script[src*="diagnose.js"]')
    other = builds[0].page("other")
    assert not other.select('script:is([src*="explorer"], [src*="interval"], [src*="diagnose.js"])')
    assert not other.select('link[href*="explorers"]')


def test_paper_gets_the_drawing(builds):
    page = builds[1].page("speed", "xhtml")
    assert not page.select("script, input, " + ", ".join(f"ddp-{kind}" for kind in KINDS))
    images = page.select("figure img")
    assert images[0]["alt"] == step_words(EXAMPLES["ethernet"])
    assert images[2]["alt"].endswith(interval_words(Job(nodes=64)))
    for image in images:
        svg = (builds[1].folder / image["src"]).read_text()
        assert "var(" not in svg  # a file of an EPUB knows no style sheet
        assert "font-family: sans-serif" in svg
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [name for name in root.attrib if "xmlns" in name]
    assert "Drag a slider." in page.get_text()
    page = builds[1].page("diagnose", "xhtml")
    assert "Use ddplab diagnose." in page.get_text()
    assert not page.select("script, ddp-diagnose")


def test_the_extension_leaves_torch_alone():
    code = "import sys, _ext.explorers.explorer_directives; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=EXTENSIONS)
    assert done.stdout == "False\n"
