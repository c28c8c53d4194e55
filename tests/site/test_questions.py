"""Questions of public threads: the section that answers is in the book, holds the answer's words, and is found."""

import json
import tomllib
from collections import Counter
from hashlib import sha256

import pytest

from tools import ROOT

QUESTIONS = tomllib.loads((ROOT / "handbook/questions.toml").read_text())["question"]
ANSWERED = [one for one in QUESTIONS if "section" in one]
# The first so many questions, as they were when readers could first link to them; new ones stand behind them.
KEPT, KEPT_HASH = 869, "0f4485e14352124d"
ASK = """async (asked) => {
    await ddpSearch("ring");
    const sections = window.ddpSearchData.sections, pages = {}, found = {};
    for (const { id, question, section, words } of asked) {
        const [page, anchor] = section.includes("#") ? section.split("#") : ["", section];
        const own = (one) => page ? one.at === page + ".html" && one.to === anchor : one.ids[0] === section;
        const place = sections.find(own);
        if (!place) { found[id] = `no section ${section}`; continue; }
        pages[place.at] ??= new DOMParser().parseFromString(await (await fetch(place.at)).text(), "text/html");
        const whole = pages[place.at];
        const part = place.to ? whole.getElementById(place.to)?.closest("section") : whole.querySelector("article");
        const text = (part?.textContent ?? "").toLowerCase().replace(/\\s+/g, " ");
        const lacks = words.filter((word) => !text.includes(word.toLowerCase()));
        const hits = await ddpSearch(question, 3);
        if (lacks.length) found[id] = `${section} does not hold ${lacks.join(", ")}`;
        else if (!hits.some((hit) => own(hit) || hit.ids.includes(section)))
            found[id] = `${section} is not among ${hits.map((hit) => hit.address).join(", ")}`;
    }
    return found;
}"""


@pytest.fixture
def front(browser, site):
    page = browser.new_page()
    page.goto(f"{site}/index.html")
    yield page
    page.close()


def test_each_question_finds_the_section_that_answers_it(front):
    assert front.evaluate(ASK, ANSWERED) == {}


def test_a_section_without_the_words_and_one_that_is_not_found_are_told(front):
    one = {"question": "how does Slurm requeue a job?", "section": "setup-slurm", "words": ["requeue"]}
    wrong = [
        {**one, "id": "words", "words": ["marzipan"]},
        {**one, "id": "search", "question": "find_unused_parameters"},
        {**one, "id": "place", "section": "no-such-place"},
        {**one, "id": "right"},
    ]
    told = front.evaluate(ASK, wrong)
    assert told.keys() == {"words", "search", "place"}
    assert "marzipan" in told["words"]
    assert "not among" in told["search"]
    assert "no section" in told["place"]


def test_the_page_lists_each_answered_question_once_with_its_link(front, site):
    front.goto(f"{site}/reference/questions.html")
    links = front.locator("article li a.reference").evaluate_all("all => all.map(one => [one.textContent, one.href])")
    shown = Counter(
        text.translate(str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "…": "..."})) for text, _ in links
    )  # as it was typed
    assert shown == Counter(one["question"].replace("…", "...") for one in ANSWERED)
    assert all("#" in address or "/repair/" in address for _, address in links)


def test_every_question_is_whole_and_has_its_own_thread_and_name():
    for one in ANSWERED:
        assert one["words"], one["id"]
        assert len(set(one["words"])) == len(one["words"]), one["id"]
    for one in QUESTIONS:
        assert one["thread"].startswith(("https://", "http://")), one["id"]
        assert one["question"].endswith(("?", ".")), one["id"]
    assert max(Counter(one["id"] for one in QUESTIONS).values()) == 1
    assert max(Counter(one["question"] for one in QUESTIONS).values()) == 1


def test_of_a_question_that_is_asked_only_its_section_changes():
    """Where the old one leads now, ``handbook/addresses.txt`` says."""
    kept = [{name: value for name, value in one.items() if name != "section"} for one in QUESTIONS[:KEPT]]
    assert sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16] == KEPT_HASH, "take the change back"
