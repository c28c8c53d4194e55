"""The page "Diagnose a log" in a real browser: the answers of the command line, and a log that stays inert."""

import base64
import gzip
import io
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Page
from strict_page import violations
from tiny_book import TinyBook

from ddplab.diagnose import Engine, entries
from ddplab.diagnose.browser import page_data
from ddplab.diagnose.reading import ranks_of, read_text
from tools import ROOT

pytestmark = pytest.mark.full
OWN = ROOT / "tests" / "kit" / "diagnose"
LOGS = sorted((OWN / "logs").iterdir())
STATIC = ROOT / "handbook" / "_static"
# All groups of files in one call, one after the other: what the element answers to each.
READ = """async (groups) => {
    const element = document.querySelector("ddp-diagnose"), answers = [];
    for (const files of groups)
        answers.push(await new Promise((resolve) => {
            const answer = (event) => resolve(event.detail && event.detail.diagnoses);
            element.addEventListener("diagnosed", answer, {once: true});
            element.start(files.map(([name, base64]) =>
                new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], name)));
        }));
    return answers;
}"""


def build_page(folder: Path, known: dict) -> Path:
    """A page with the element and nothing else, which fits a phone, read from a folder as a reader may do."""
    for name in ("diagnose.js", "diagnose.css"):
        shutil.copy(STATIC / name, folder)
    data = json.dumps(page_data(known)).replace("<", "\\u003c")
    page = folder / "page.html"
    page.write_text(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Diagnose</title>
        <link rel="stylesheet" href="diagnose.css">
        <main><h1>Diagnose</h1><h2>A log</h2><ddp-diagnose errors="errors.html">
        <script type="application/json">{data}</script><div class="diagnose-instead">Static.</div></ddp-diagnose></main>
        <script defer src="diagnose.js"></script></html>""",
        encoding="utf-8",
    )
    return page


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """A page with the tests' own entries, and one with the book's; what they ask the network for is an error."""
    opened, asked = {}, []
    for name, known in (("own", entries(OWN / "entries")), ("book", entries())):
        page = browser.new_page()
        path = build_page(tmp_path_factory.mktemp(name), known)
        page.goto(path.as_uri())
        page.on("request", lambda request: request.url.startswith("blob:") or asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(str(error)))
        opened[name] = page
    opened["book"].evaluate("() => { window.Worker = undefined; }")
    yield opened
    for page in opened.values():
        page.close()
    assert not asked


def in_page(page: Page, *files: tuple[str, bytes]) -> list[dict] | None:
    return answers(page, [files])[0]


def answers(page: Page, groups: list[tuple[tuple[str, bytes], ...]]) -> list[list[dict] | None]:
    """The page's answer to each group of files, all of them in one call."""
    encoded = [[[name, base64.b64encode(data).decode()] for name, data in files] for files in groups]
    return page.evaluate(READ, encoded)


def in_python(known: dict, *files: tuple[str, bytes]) -> list[dict]:
    engine = Engine(known)
    for (name, data), rank in zip(files, ranks_of([name for name, _ in files]), strict=True):
        engine.start(name, rank)
        for text in read_text(io.BufferedReader(io.BytesIO(data)), name):
            engine.feed(text)
    return json.loads(json.dumps([asdict(one) for one in engine.finish()]))


SAMPLES = [(f"{name}.log", sample.encode()) for name, entry in entries().items() for sample in entry.samples]


@pytest.mark.parametrize(
    ("page", "known", "files"),
    [  # the page of the book may start no worker, and reads by itself; three hundred workers took most of the time
        ("own", entries(OWN / "entries"), [(path.name, path.read_bytes()) for path in LOGS]),
        ("book", entries(), [*((path.name, path.read_bytes()) for path in LOGS), *SAMPLES]),
    ],
    ids=["logs and the tests' own entries", "logs, and each entry's samples, and the book's entries"],
)
def test_page_and_command_line_say_the_same(pages, page, known, files):
    files = [file for file in files if file[1]]  # of an empty log the page says that there is nothing yet
    assert len(files) > 40
    shown = answers(pages[page], [(file,) for file in files])
    expected = [in_python(known, file) for file in files]
    assert sum(map(bool, expected)) > 0.8 * len(files)
    differing = [
        f"{name}:\n  page:   {there}\n  Python: {here}"
        for (name, _), there, here in zip(files, shown, expected, strict=True)
        if there != here
    ]
    assert not differing, f"{len(differing)} of {len(files)} logs differ:\n" + "\n".join(differing)


def test_an_empty_log_is_no_diagnosis(pages):
    empty = (OWN / "logs" / "empty.log").read_bytes()
    assert (empty, in_python(entries(), ("empty.log", empty))) == (b"", [])
    pages["own"].evaluate("document.querySelector('ddp-diagnose').start([new File([], 'empty.log')])")
    assert "There is no text yet" in pages["own"].get_by_role("status").inner_text()


def test_several_files_and_packed_ones(pages):
    known = entries(OWN / "entries")
    user = (OWN / "logs" / "user.log").read_bytes().splitlines(keepends=True)
    files = [(f"out_{rank}.log", b"".join(one for one in user if f"rank{rank}]".encode() in one)) for rank in range(4)]
    answer = in_page(pages["own"], *files)
    assert answer == in_python(known, *files)
    assert {one["rank"] for one in answer} >= {2}
    packed = ("a.log.gz", gzip.compress((OWN / "logs" / "kill.log").read_bytes()))
    assert in_page(pages["own"], packed) == in_python(known, packed)
    cut = (packed[0], packed[1][:-12])
    assert in_page(pages["own"], cut) == in_python(known, cut)


def test_blocks_join_without_a_seam(pages):
    """A log of many blocks, with what matters across their borders."""
    noise = "".join(f"[rank{i % 8}]: step {i} loss {i * 7919 % 1000}\n" for i in range(60_000))
    matters = [(OWN / "logs" / f"{name}.log").read_text() for name in ("userrec", "nearby")]
    log = noise + matters[0] + noise + matters[1] + noise[: len(noise) // 4]
    for shift in (0, 1, 500_000):
        file = ("big.log", ("x" * shift + "\n" + log).encode())
        answer = in_page(pages["own"], file)
        assert answer == in_python(entries(OWN / "entries"), file)
        assert answer[0]["evidence"][0]["line_number"] == 60_011


def test_a_log_is_inert(pages):
    page = pages["own"]
    page.locator("textarea").fill((OWN / "logs" / "hostile.log").read_text())
    page.get_by_role("button", name="Diagnose the text").click()
    page.locator(".diagnose-list").wait_for()
    assert page.title() == "Diagnose"
    results = page.locator(".diagnose-results")
    assert results.locator("img, script, iframe, svg, style, link, object").count() == 0
    assert results.locator("a").count() == 0
    assert "<img src='https://evil.example/a.png' onerror=alert(1)>" in results.locator("pre").first.inner_text()
    assert "\x1b" not in results.inner_text()


def test_keyboard_and_status(pages):
    page = pages["own"]
    page.get_by_label("Paste what the ranks printed").fill((OWN / "logs" / "oom_then_watchdog.log").read_text())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(".diagnose-list").wait_for()
    assert "First: A GPU ran out of memory" in page.get_by_role("status").inner_text()
    assert page.locator(".diagnose-list a").first.get_attribute("href") == "errors.html#error-memory-cuda"


def test_nothing_known_and_bad_input(pages):
    page = pages["own"]
    assert in_page(page, ("a.log", b"all is well\n")) == []
    assert "Nothing in the log is known" in page.get_by_role("status").inner_text()
    assert "py-spy dump" in page.locator(".diagnose-results").inner_text()
    assert in_page(page, ("a.bin", bytes(range(32)) * 100)) is None
    assert "a.bin is not a text log, it holds binary data." in page.get_by_role("status").inner_text()
    page.locator("textarea").fill("")
    page.get_by_role("button", name="Diagnose the text").click()
    assert "There is no text yet" in page.get_by_role("status").inner_text()


def test_it_can_be_cancelled(pages):
    page = pages["own"]
    said = page.evaluate(
        """() => new Promise((resolve) => {
            const element = document.querySelector("ddp-diagnose");
            const answer = (event) => resolve([event.detail, element.state.textContent]);
            element.addEventListener("diagnosed", answer, {once: true});
            element.start([new File([("step 1 loss 2.0\\n").repeat(4_000_000)], "a.log")]);
            element.querySelector("button:not([hidden]):nth-of-type(2)").click();
        })"""
    )
    assert said == [None, "Cancelled."]
    assert page.get_by_role("button", name="Cancel").count() == 0  # hidden again


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_fits_a_phone(pages, scheme):
    page = pages["own"]
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    in_page(page, ("user.log", (OWN / "logs" / "user.log").read_bytes()))
    page.locator(".diagnose-list").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not violations(page)


def test_the_script_is_light():
    assert len(gzip.compress((STATIC / "diagnose.js").read_bytes())) < 30_000


def test_the_script_asks_for_nothing():
    source = (STATIC / "diagnose.js").read_text()
    for word in ("fetch(", "XMLHttpRequest", "sendBeacon", "innerHTML", "insertAdjacentHTML", "import(", "WebSocket"):
        assert word not in source, word


def test_the_directive_puts_the_entries_into_the_page(tmp_path, monkeypatch):
    book = TinyBook(tmp_path, monkeypatch)
    book.write(
        "conf.py",
        (tmp_path / "conf.py").read_text()
        + f"""
extensions.append("_ext.explorers.diagnose_page")
html_static_path = [{str(STATIC)!r}]
""",
    )
    book.chapters(diagnose="```{diagnose}\nUse `ddplab diagnose`.\n```\n", errors="Nothing.")
    built = book.build()
    assert built.complaints == ""
    page = built.page("diagnose")
    element = page.select_one("ddp-diagnose")
    assert element["errors"] == "errors.html"
    assert json.loads(element.select_one("script").string) == json.loads(json.dumps(page_data(entries())))
    assert element.select_one(".diagnose-instead").get_text().strip() == "Use ddplab diagnose."
    assert page.select_one('script[src*="diagnose.js"]')
    assert not built.page("errors").select_one('script[src*="diagnose.js"]')
    epub = book.build("epub")
    page = BeautifulSoup((epub.folder / "diagnose.xhtml").read_text(), "html.parser")
    assert "Use ddplab diagnose." in page.get_text()
    assert not page.select("script, ddp-diagnose")
