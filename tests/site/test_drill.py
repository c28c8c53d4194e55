"""The interview room in a real browser, on the built book as a reader opens it from a folder."""

import json
import posixpath
import re
from urllib.parse import parse_qsl

import pytest
from strict_page import violations
from test_pages import THEME, too_wide

from _ext.navigation.reading_time import WORDS_PER_MINUTE

KEPT = "JSON.parse(localStorage.getItem('ddp-progress'))"
PHONE = {"viewport": {"width": 390, "height": 800}}
WIDTHS = [1440, 1024, 390]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture
def drill(opened):
    """The page with the drill; nothing may be asked of a host."""
    page, wrong = opened("interviews/drill.html", **PHONE), []
    page.on("request", lambda one: one.url.startswith(("file:", "blob:", "data:")) or wrong.append(one.url))
    page.reload()
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    assert not wrong


def card(drill):
    return drill.locator(".room-question").inner_text()


def test_a_card_by_keyboard(drill):
    first = card(drill)
    assert not drill.locator(".room-body .card-answer").count()
    drill.get_by_role("button", name="Show the answer").focus()
    drill.keyboard.press("Enter")
    assert drill.locator(".room-body .card-answer").evaluate("e => e === document.activeElement")
    follow = drill.locator(".room-follow > li")
    assert not follow.count()
    drill.keyboard.press(" ")
    assert follow.count() == 1
    asks, whole = follow.locator("strong").first, follow.inner_text()
    assert whole.strip() == asks.inner_text().strip()  # its answer takes room, and is neither seen nor read
    drill.keyboard.press(" ")
    assert len(follow.inner_text()) > len(whole)
    drill.keyboard.press("2")
    assert card(drill) != first
    assert drill.locator(".room-question").evaluate("e => e === document.activeElement")
    assert "1 answered today" in drill.locator("ddp-drill .room-said").inner_text()
    (kept,) = drill.evaluate(KEPT)["cards"].values()
    assert kept["box"] == 2
    assert kept["due"] > kept["seen"]


def test_again_comes_back_soon_and_reloading_keeps_it(drill):
    again = card(drill)
    drill.get_by_role("button", name="Show the answer").focus()
    drill.keyboard.press("Enter")
    drill.keyboard.press("1")
    for _ in range(4):
        assert card(drill) != again
        drill.keyboard.press("Enter")
        drill.keyboard.press("3")
    assert card(drill) == again
    drill.reload()
    assert card(drill) == again  # it is due
    assert sorted(one["box"] for one in drill.evaluate(KEPT)["cards"].values()) == [1, 3, 3, 3, 3]


def test_keys_that_are_turned_off_do_nothing(drill):
    drill.evaluate("localStorage.setItem('keys', 'off')")
    drill.get_by_role("button", name="Show the answer").click()
    asked = card(drill)
    drill.keyboard.press("2")
    assert card(drill) == asked
    drill.evaluate("localStorage.removeItem('keys')")


def test_a_chapter_and_a_level_narrow_the_choice_also_from_an_address(drill, read, html):
    link = read("interviews/index.html").select_one("a[href*='level=core&chapter=understand/idea']")
    drill.goto((html / "interviews/x").parent.as_uri() + "/" + link["href"])
    assert re.match("1. The idea · core", drill.locator(".room-about").inner_text())
    said = drill.locator("ddp-drill .room-said")
    for number in range(4):  # the link asks for four cards
        assert f"{number} of 4 in this round" in said.inner_text()
        drill.get_by_role("button", name="Show the answer").click()
        drill.get_by_role("button", name=["Again", "Easy"][number % 2]).click()
    assert "The round is over: 2 again, 0 good, 2 easy." in drill.locator(".room-stage").inner_text()
    drill.keyboard.press("Enter")  # a key does nothing here
    plans = drill.get_by_role("link", name="To the plans")
    assert plans.evaluate("e => e.href") == (html / "interviews/index.html").as_uri()
    drill.get_by_role("button", name="Another round").click()
    assert "0 of 4 in this round" in said.inner_text()
    drill.get_by_role("combobox", name="Stop after").select_option("all")
    assert "in this round" not in said.inner_text()
    drill.get_by_role("combobox", name="Level").select_option("staff")
    assert "· staff ·" in drill.locator(".room-about").inner_text()
    drill.get_by_role("combobox", name="Chapter").select_option("keep/")
    drill.get_by_role("button", name="Show the answer").click()
    links = drill.locator(".room-body .card-evidence a")
    assert links.count()
    for link in links.all():
        address = link.evaluate("e => e.href").partition("#")[0]
        assert (html.as_uri()) in address
        assert (html / address.removeprefix(html.as_uri() + "/")).is_file()


def test_export_clear_import_and_a_broken_file_changes_nothing(drill, tmp_path):
    for answered in ("Again", "Good"):
        drill.get_by_role("button", name="Show the answer").click()
        drill.get_by_role("button", name=answered).click()
    kept, said = drill.evaluate(KEPT), drill.locator("ddp-keep .room-said")
    with drill.expect_download() as download:
        drill.get_by_role("button", name="Export").click()
    exported = tmp_path / "progress.json"
    download.value.save_as(exported)
    assert json.loads(exported.read_text()) == kept
    drill.get_by_role("button", name="Clear").click()
    assert drill.evaluate(KEPT) is None
    assert "0 answered today" in drill.locator("ddp-drill .room-said").inner_text()
    field = drill.locator("ddp-keep input")
    field.set_input_files(exported)
    drill.get_by_text(f"Imported from progress.json: {len(kept['cards'])} cards, 0 ticks.").wait_for()
    assert drill.evaluate(KEPT) == kept
    card = {"box": 2, "due": "2026-01-31", "seen": "2026-01-30"}
    broken = {
        "not JSON": "{",
        "not progress": "[1, 2]",
        "version 2, and this book reads version 1": json.dumps(kept | {"version": 2}),
        'no list "cards"': json.dumps({"version": 1, "done": {}}),
        'tick "a" has no day': json.dumps({"version": 1, "done": {"a": "soon"}, "cards": {}}),
        'card "a" needs a box': json.dumps({"version": 1, "done": {}, "cards": {"a": card | {"box": 9}}}),
        'card "__proto__" needs': '{"version": 1, "done": {}, "cards": {"__proto__": {}}}',
    }
    for says, text in broken.items():
        exported.write_text(text)
        field.set_input_files(exported)
        drill.wait_for_function(f"document.querySelector('ddp-keep .room-said').textContent.includes({says!r})")
        assert said.inner_text().startswith("progress.json was not imported: ")
        assert drill.evaluate(KEPT) == kept
    # Of a card that both have, the later answer stays.
    name = next(iter(kept["cards"]))
    exported.write_text(json.dumps({"version": 1, "done": {}, "cards": {name: card, "new-one": card}}))
    field.set_input_files(exported)
    drill.get_by_text("Imported from progress.json: 2 cards").wait_for()
    assert drill.evaluate(KEPT)["cards"] == kept["cards"] | {"new-one": card}


def test_a_card_is_the_one_of_its_chapter_with_all_its_parts(drill, read):
    shown = drill.evaluate(
        """() => ddpCards.cards.map(({ id, html }) => {
            const one = new DOMParser().parseFromString(html, "text/html").querySelector(".card");
            return [id, [...one.children].map(e => e.className), one.textContent]; })"""
    )
    pages = [read(f"{part}/practice.html") for part in ("understand", "run", "repair", "fast", "keep")]
    own = {one["id"].removeprefix("card-"): one for page in pages for one in page.select("details.interview")}
    assert {name for name, *_ in shown} == set(own)
    for name, parts, text in shown:
        assert parts == [" ".join(child["class"]) for child in own[name].find_all(recursive=False)], name
        assert text.split() == own[name].get_text().split(), name


def test_without_scripts_there_is_a_list_to_read(opened, html):
    page = opened("interviews/drill.html", java_script_enabled=False)
    links = page.locator(".room-questions a")
    assert links.count() > 100
    assert not page.get_by_role("button", name="Export").count()
    links.first.click()
    page.wait_for_url("**/practice.html#card-*")
    page.goto((html / "interviews/aloud.html").as_uri())
    assert page.locator(".aloud").count() > 100
    assert "one asynchronous all-reduce per bucket" in page.locator("#from-the-labs").inner_text()  # a lab says so


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_step_of_the_drill_is_accessible_and_fits(drill, scheme):
    drill.emulate_media(color_scheme=scheme)
    for step in ("Show the answer", "Follow-up", "Again"):
        assert not violations(drill, {*THEME, "scrollable-region-focusable"}), step
        drill.get_by_role("button", name=step).click()
    assert not [wide for width in WIDTHS for wide in too_wide(drill, width)]


def test_a_mock_interview_survives_reloads_and_runs_to_its_score(opened, read):
    page = opened("interviews/mock.html", **PHONE)
    page.get_by_role("button", name="Draw a set").click()
    kinds, weak = [], None
    for number in range(9):
        if number in (1, 8):
            asked = page.locator(".room-question").inner_text()
            page.reload()
            page.get_by_role("button", name=f"Go on with question {number + 1} of 9").click()
            assert page.locator(".room-question").inner_text() == asked
        about = page.locator(".room-about").inner_text()
        assert about.startswith(f"Question {number + 1} of 9")
        kinds.append(about.split(" · ")[1])
        weak = weak or page.locator(".room-question").inner_text()
        case = page.locator(".room-round a")
        assert case.count() == (kinds[-1] == "design")  # a whole round in place of the short question
        if case.count():
            assert case.get_attribute("target") == "_blank"  # the set waits for its score
            case_of = "#" + case.get_attribute("href").partition("cases.html#")[2]
        page.keyboard.press("Enter")
        assert page.locator(".room-main").is_disabled()
        if not number:
            assert not violations(page, {*THEME, "scrollable-region-focusable"})
        page.keyboard.press("0" if number == 0 else "3")
        if number == 0:  # the answer was shown and has its score
            page.reload()
            page.get_by_role("button", name="Go on with question 1 of 9").click()
            assert page.locator("input:checked").evaluate("e => e.parentElement.textContent").startswith(" 0: ")
        assert not page.locator(".room-main").is_disabled()
        page.locator(".room-main").click()
    assert "mock" not in page.evaluate(KEPT)
    assert read("interviews/cases.html").select_one(case_of) is not None
    assert kinds == ["core"] * 3 + ["deep"] * 3 + ["staff"] * 2 + ["design"]
    assert page.locator(".room-score").inner_text() == "Score: 24 of 27"
    (weakest,) = page.locator(".room-read > li").all()
    assert weakest.inner_text().startswith(weak)
    assert weakest.locator("a").count()
    assert not violations(page, {*THEME, "scrollable-region-focusable"})
    assert not [wide for width in WIDTHS for wide in too_wide(page, width)]
    boxes = [one for one in page.evaluate(KEPT)["cards"].values() if one["box"] == 1]
    assert boxes


def test_what_is_ticked_shows_on_the_front_page_in_the_contents_and_on_its_page(opened, html):
    page = opened("understand/idea.html", **PHONE)
    lab = "labs/idea/plot_01_replicas_drift.html"
    for name in ("understand/idea.html", lab):
        page.goto((html / name).as_uri())
        page.get_by_label("Mark as complete").check()
    page.goto((html / "understand/practice.html").as_uri())
    page.locator("#idea-exercises").get_by_label("Mark as complete").first.check()
    page.goto((html / "interviews/index.html").as_uri())
    page.get_by_label("16 minutes").check()
    page.goto((html / "index.html").as_uri())
    assert re.fullmatch(
        r"Complete: 1 of \d\d chapters, 1 of 1\d\d labs, 1 of \d\d exercises.", page.locator(".progress").inner_text()
    )
    assert page.locator(".book-map a.complete").inner_text().split() == ["1", "The", "idea", ",", "complete"]
    assert page.locator(".book-nav a.complete").count() == 1
    page.goto((html / "contents.html").as_uri())
    assert page.locator(".toctree-wrapper a.complete").count() == 1
    page.goto((html / "understand/idea.html").as_uri())
    assert page.locator(".lab-card-title a.complete").count() == 1
    page.get_by_label("Mark as complete").uncheck()
    assert not page.locator(".book-nav a.complete").count()
    page.goto((html / "interviews/index.html").as_uri())
    assert page.get_by_label("16 minutes").is_checked()
    assert page.locator(".mark input:checked").count() == 1


def test_the_times_of_the_plans_add_up_and_chapters_fit_in_theirs(read):
    room, sums = read("interviews/index.html"), []
    for section in room.select("section section:has(.mark)"):
        steps = section.select("ol > li")
        for step in steps:
            stated = int(step.select_one(".mark").get_text().split()[0])
            parts = [re.match(r"(Read|Cards|Do), (\d+) minutes: ", item.get_text()) for item in step.select("ul > li")]
            assert all(parts), step.get_text()
            assert stated == sum(int(part[2]) for part in parts), step.get_text()
            for part, item in zip(parts, step.select("ul > li"), strict=True):
                if part[1] == "Read":
                    assert int(part[2]) + 1 >= sum(minutes(read, link["href"]) for link in item.select("a"))
        sums.append(sum(int(step.select_one(".mark").get_text().split()[0]) for step in steps))
    assert sums[:2] == [45, 180]
    assert 7 * 75 <= sums[2] <= 7 * 85


def test_each_plan_asks_for_cards_that_there_are(html, read):
    script = (html / "_static/interview-cards.js").read_text(encoding="utf-8")
    cards = json.loads(script.removeprefix("const ddpCards = ").removesuffix(";\n"))["cards"]
    links = [a for a in read("interviews/index.html").select("a[href^='drill.html?']") if "due" not in a.get_text()]
    assert len(links) > 10
    for link in links:
        asked = dict(parse_qsl(link["href"].partition("?")[2]))
        fit = [one for one in cards if all(one[name] == asked[name] for name in {"chapter", "level"} & set(asked))]
        fit = [one for one in fit if one["chapter"].startswith(asked.get("part", ""))]
        assert len(fit) >= NUMBERS.index(link.get_text().split()[0]) == int(asked["stop"]), link


def minutes(read, href):
    """How long a link of the room takes to read: its page, or its section, by the words of paragraphs."""
    name, _, target = href.partition("#")
    page = read(posixpath.normpath(f"interviews/{name}"))
    section = page.find(id=target) or page.select_one("article section")
    while section.name != "section":
        section = section.find_parent("section")
    said = section.select_one(":scope > .reading-time")
    if said:
        return int(re.search(r"\d+", said.get_text())[0])
    words = sum(
        len(one.get_text().split())
        for one in section.select("p")
        if not one.find_parent(["figure", "table", "details", "pre"]) and not one.find_parent(class_="claim-panel")
    )
    return 0 if name in {"sheet.html", "mock.html"} else words / WORDS_PER_MINUTE
