"""The page "Diagnose a log" in a real browser: the answers of the command line, and a log that stays inert."""

import base64
import gzip
import json
import re
import shutil
from dataclasses import asdict

import pytest
from playwright.sync_api import Locator, Page, expect
from strict_page import LOOKS, violations

from _ext.explorers.diagnose_page import SCRIPTS, element
from ddplab.diagnose import entries
from ddplab.diagnose.browser import page_data
from ddplab.diagnose.tables import tables
from diagnose_logs import BOOK, FOLLOWED, KNOWN, LOGS, SAMPLES, WRAPPED, answer
from tools import ROOT

LOG = dict(LOGS)
STATIC = ROOT / "handbook" / "_static"
TRY = [("own exception", LOG["user.log"].decode()), ("nothing <known>", "all is well\n")]
# What the element answers to each group of files, one group after the other.
READ = """async ([groups, worker, data]) => {
    const element = document.querySelector("ddp-diagnose"), answers = [], {Worker} = window, own = element.data;
    element.data = data || own;
    if (!worker) window.Worker = undefined;
    for (const files of groups)
        answers.push(await new Promise((resolve) => {
            const answer = ({detail}) => {
                const {characters, ...said} = detail || {};
                resolve(detail && said);
            };
            element.addEventListener("diagnosed", answer, {once: true});
            element.start(files.map(([name, base64]) =>
                new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], name)));
        }));
    element.data = own;
    window.Worker = Worker;
    return answers;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the file of the page is: the element and nothing else; it knows the tests' own entries."""
    folder = tmp_path_factory.mktemp("page")
    for name in (*SCRIPTS, "book.css", "diagnose.css"):
        shutil.copy(STATIC / name, folder)
    data = json.dumps(page_data(KNOWN)).replace("<", "\\u003c")
    scripts = "".join(f'<script defer src="{name}"></script>' for name in SCRIPTS)
    styles = "".join(f'<link rel="stylesheet" href="{name}.css">' for name in ("book", "diagnose"))
    start = element(data, TRY, errors="errors/", recorded="lab.html")
    (folder / "page.html").write_text(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Diagnose</title>{styles}
        <meta name="viewport" content="width=device-width, initial-scale=1"><style>{LOOKS}</style>
        <main><article><h1>Diagnose</h1>
        {start}<div class="diagnose-instead">Static.</div></ddp-diagnose></article></main>{scripts}</html>""",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def page(browser, folder):
    """The page, read from a folder as a reader may do; what it asks the network for is an error."""
    page, asked, own = browser.new_page(reduced_motion="reduce"), [], ("blob:", folder.as_uri())
    page.on("request", lambda request: request.url.startswith(own) or asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(str(error)))
    page.goto((folder / "page.html").as_uri())
    yield page
    page.close()
    assert not asked


def in_page(page: Page, *groups: tuple, worker: bool = True, known: dict | None = None) -> list[dict | None]:
    """The page's answer to each group of files, in one call."""
    encoded = [[[name, base64.b64encode(data).decode()] for name, data in files] for files in groups]
    return page.evaluate(READ, [encoded, worker, known and page_data(known)])


def in_python(known: dict, *files: tuple[str, bytes]) -> dict:
    return json.loads(json.dumps(asdict(answer(known, *files))))


@pytest.mark.parametrize(
    ("known", "files"),
    [(KNOWN, LOGS), (BOOK, LOGS + WRAPPED + SAMPLES + FOLLOWED)],
    ids=["own entries", "the book's entries"],
)
def test_page_and_command_answer_the_same(page, known, files):
    """Without a worker, as where a page may start none: hundreds of workers would take most of the time."""
    files = [file for file in files if file[1]]  # of an empty log the page says that there is nothing yet
    assert len(files) > 40
    shown = in_page(page, *((file,) for file in files), worker=False, known=known)
    expected = [in_python(known, file) for file in files]
    assert sum(bool(one["diagnoses"]) for one in expected) > 0.8 * len(files)
    differing = [
        f"{name}:\n  page:   {there}\n  Python: {here}"
        for (name, _), there, here in zip(files, shown, expected, strict=True)
        if there != here
    ]
    assert not differing, f"{len(differing)} of {len(files)} logs differ:\n" + "\n".join(differing)


# Python takes all of these. The browser refuses them, or takes them for something else unless the flag u is set.
PYTHON_ONLY = [r"(?P<n>x)", r"(?i)a", r"\Aa", r"a\Z", r"[]a]", r"a{,2}", r"a]"]


def test_every_pattern_is_one_in_python_and_in_the_browser(page):
    sources = [*tables["patterns"].values(), *(one["pattern"] for one in tables["prefixes"])]
    sources += [one["pattern"] for kind in ("facts", "ends", "errors") for one in tables[kind]]
    sources += [match.regex.pattern for entry in entries().values() for match in entry.matches if match.regex]
    refused = """(sources) => sources.filter((one) => {
        try { new RegExp(one, "u"); return false; } catch { return true; }
    })"""
    assert page.evaluate(refused, sources) == []  # Python has compiled them
    assert page.evaluate(refused, PYTHON_ONLY) == PYTHON_ONLY


def test_an_empty_log_is_no_diagnosis(page):
    assert in_python(entries(), ("empty.log", LOG["empty.log"]))["nothing"]["kind"] == "empty"
    page.evaluate("document.querySelector('ddp-diagnose').start([new File([], 'empty.log')])")
    assert "There is no text yet" in page.get_by_role("status").inner_text()


def test_several_files_packed_ones_and_many_blocks(page):
    """A file for each rank, a packed log, one that was cut off; a log with what matters across its blocks' borders."""
    user = LOG["user.log"].splitlines(keepends=True)
    ranks = [(f"out_{rank}.log", b"".join(one for one in user if f"rank{rank}]".encode() in one)) for rank in range(4)]
    packed = gzip.compress(LOG["kill.log"])
    groups = [ranks, [("a.log.gz", packed)], [("a.log.gz", packed[:-12])]]
    noise = b"".join(b"[rank%d]: step %d loss %d\n" % (i % 8, i, i * 7919 % 1000) for i in range(60_000))
    long = noise + LOG["userrec.log"] + noise + LOG["nearby.log"] + noise[: len(noise) // 4]
    groups += [[("big.log", b"x" * shift + b"\n" + long)] for shift in (1, 500_000)]
    shown = in_page(page, *groups)
    assert shown == [in_python(KNOWN, *files) for files in groups]
    assert {one["rank"] for one in shown[0]["diagnoses"]} >= {2}
    assert {one["diagnoses"][0]["evidence"][0]["line_number"] for one in shown[3:]} == {60_011}


def test_a_log_is_inert(page):
    page.locator("textarea").fill(LOG["hostile.log"].decode())
    page.get_by_role("button", name="Diagnose the text").click()
    page.locator(".diagnose-verdict").wait_for()
    assert page.title() == "Diagnose"
    results = page.locator(".diagnose-results")
    assert results.locator("img, script, iframe, style, link, object").count() == 0
    assert results.locator("a").count() == 0
    assert results.locator("svg:not(.diagnose-mark)").count() == 0
    assert "<img src='https://evil.example/a.png' onerror=alert(1)>" in results.locator("pre").first.inner_text()
    assert "\x1b" not in results.inner_text()


def test_keyboard_and_status(page):
    page.get_by_label("Paste what the ranks printed").fill(LOG["oom_then_watchdog.log"].decode())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(".diagnose-verdict").wait_for()
    assert "First: A GPU ran out of memory" in page.get_by_role("status").inner_text()
    assert page.locator(".diagnose-verdict a").first.get_attribute("href") == "errors/memory-cuda.html"


def diagnosed(page: Page, name: str) -> Locator:
    """The verdict on one of the logs to try."""
    page.get_by_role("button", name=name).click()
    page.locator(".diagnose-verdict").wait_for()
    return page.locator(".diagnose-verdict")


def test_a_log_to_try_fills_the_box_and_the_verdict_is_seen_and_read_at_once(page):
    page.set_viewport_size({"width": 390, "height": 700})
    verdict = diagnosed(page, "own exception")
    assert page.locator("textarea").input_value() == TRY[0][1]
    assert verdict.evaluate("element => document.activeElement === element")
    title, who = verdict.locator("h2"), verdict.locator(".diagnose-rank")
    for part in (title, who):
        box = part.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 700
    assert who.inner_text() == "Suspect: rank 2"
    assert title.evaluate("element => parseFloat(getComputedStyle(element).fontSize)") >= 22
    page.get_by_role("button", name="nothing <known>").click()
    page.locator(".diagnose-state").filter(has_text="characters read)").wait_for()


def test_the_timeline_has_a_lane_per_rank_and_is_walked_with_the_keyboard(page):
    diagnosed(page, "own exception")
    marks, names = page.locator(".diagnose-lanes button"), page.locator(".diagnose-lane-name")
    assert {"rank 1", "rank 2"} <= set(names.all_inner_texts())
    listed = page.locator(".diagnose-timeline li")
    assert marks.count() == listed.count() > 3
    assert "rank 2" in page.locator(".diagnose-lanes [tabindex='0']").get_attribute("aria-label")
    assert page.locator(".diagnose-readout code").inner_text() in listed.all_text_contents()[0]
    shapes = page.locator(".diagnose-legend path").evaluate_all("found => found.map((one) => one.getAttribute('d'))")
    assert len(set(shapes)) == len(shapes) > 1
    page.locator(".diagnose-lanes [tabindex='0']").focus()
    for key, place in (("End", marks.count() - 1), ("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert marks.nth(place).evaluate("element => document.activeElement === element"), key
        assert page.locator(".diagnose-readout").inner_text() == marks_text(listed, place), key
    page.keyboard.press("ArrowDown")
    moved = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "rank 2" not in moved
    assert page.locator(".diagnose-lanes [tabindex='0']").count() == 1


def marks_text(listed: Locator, place: int) -> str:
    return listed.nth(place).text_content()


def test_long_timelines_of_many_ranks_stay_within_the_page(page):
    """No engine here has such a log: 200 lines of 64 ranks, half an hour apart."""
    page.set_viewport_size({"width": 390, "height": 800})
    kinds = ("error", "warning", "consequence", "fact")
    lines = [
        {"rank": n % 64, "line": n, "seconds": n / 100 + 1800 * (n > 99), "text": "x" * 160, "kind": kinds[n % 4]}
        for n in range(200)
    ]
    page.evaluate(
        """(lines) => document.querySelector(".diagnose-results").replaceChildren(
            ddpDiagnose.timeline(lines, {rank: 40, why: ""}))""",
        lines,
    )
    assert page.locator(".diagnose-lane-name").all_inner_texts()[-2:] == ["rank 40", "53 more"]
    assert page.locator(".diagnose-pause").all_inner_texts() == ["30 min"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate("() => new Promise(requestAnimationFrame)")  # the chosen one comes into view at the next frame
    chosen = page.locator(".diagnose-lanes [aria-pressed='true']")
    assert "Error, rank 40" in chosen.get_attribute("aria-label")
    assert 60 < chosen.bounding_box()["x"] < 360


def test_a_report_is_copied(page):
    verdict = diagnosed(page, "own exception")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # the button says it for two seconds
    verdict.get_by_role("button", name="Copy report").click()
    verdict.get_by_role("button", name="Copied").wait_for()
    page.clock.run_for(2000)
    verdict.get_by_role("button", name="Copy report").wait_for()
    box = page.locator("textarea")
    box.fill("")
    box.press("Control+v")
    text = box.input_value()
    assert text.startswith("**A Python exception ended a rank: KeyError: 'label'** (`python-exception`)")
    assert "Suspect: rank 2." in text
    assert "    line 7, rank 2: [rank2]: KeyError: 'label'" in text
    assert "Versions that the log names: Python 3.11" in text


def test_no_answer_shows_raw_markup(page):
    """The texts of all entries, rendered as an answer's are; what is code may hold anything."""
    shown = page.evaluate(
        """(known) => known.map((entry) => {
            const one = {...entry, evidence: [], followed: []}, all = document.createElement("div");
            all.append(...ddpDiagnose.inline(entry.title, true), ...ddpDiagnose.body(one, entry));
            all.querySelectorAll("code, pre").forEach((code) => code.remove());
            return [entry.id, all.textContent];
        })""",
        page_data(entries())["entries"],
    )
    assert len(shown) == len(entries())
    raw = re.compile(r"`|\*\w|\w\*|\]\(|\{[a-z:-]+\}")
    assert not [(name, text) for name, text in shown if raw.search(text)]


def test_the_text_is_kept_in_the_tab_only_on_request(page):
    box, keep = page.locator("textarea"), page.get_by_label("Keep the text in this tab")
    assert not keep.is_checked()
    for kept, text in ((True, "the log\n"), (False, "")):
        box.fill("the log\n")
        keep.set_checked(kept)
        # The element starts anew, as after a reload, to which a busy Chromium once gave no storage at all.
        page.evaluate("() => { const one = document.querySelector('ddp-diagnose'); one.outerHTML = one.outerHTML; }")
        assert (box.input_value(), keep.is_checked()) == (text, kept)


def test_with_scripts_off_the_page_says_what_to_run(page, browser):
    off = browser.new_page(java_script_enabled=False)
    off.goto(page.url)
    assert off.get_by_text("Static.").is_visible()
    assert not off.locator("textarea").is_visible()
    off.close()


def test_nothing_known_and_bad_input(page):
    (shown,) = in_page(page, [("a.log", b"all is well\n")])
    assert (shown["diagnoses"], shown["nothing"]["kind"]) == ([], "no-error")
    assert "The log has no error" in page.get_by_role("status").inner_text()
    assert "py-spy dump" in page.locator(".diagnose-results").inner_text()
    assert in_page(page, [("a.bin", bytes(range(32)) * 100)]) == [None]
    assert "a.bin is not a text log, it holds binary data; give" in page.get_by_role("status").inner_text()
    assert in_page(page, [("a.zip", b"PK\3\4")]) == [None]
    assert "a.zip is a zip archive" in page.get_by_role("status").inner_text()
    page.locator("textarea").fill("")
    page.get_by_role("button", name="Diagnose the text").click()
    expect(page.get_by_role("status")).to_contain_text("There is no text yet")


def test_it_can_be_cancelled(page):
    state = page.evaluate(
        """() => new Promise((resolve) => {
            const element = document.querySelector("ddp-diagnose");
            const answer = (event) => resolve([event.detail, element.state.textContent]);
            element.addEventListener("diagnosed", answer, {once: true});
            element.start([new File([("step 1 loss 2.0\\n").repeat(4_000_000)], "a.log")]);
            element.querySelector(".diagnose-cancel").click();
        })"""
    )
    assert state == [None, "Cancelled."]
    assert page.get_by_role("button", name="Cancel").count() == 0  # hidden again


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_fits_a_phone(page, scheme):
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    in_page(page, [("user.log", LOG["user.log"])])
    page.locator(".diagnose-verdict").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not violations(page)
