"""Search in a real browser: for each query that users type, the section that must be among the first three hits."""

import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import expect

QUERIES = tomllib.loads((Path(__file__).parent / "queries.toml").read_text())["queries"]


@pytest.fixture
def front(opened):
    return opened("index.html")


def test_the_section_that_answers_is_among_the_first_three(front):
    found = front.evaluate(
        "async (queries) => Promise.all(queries.map(async (query) => (await ddpSearch(query, 3))))", list(QUERIES)
    )
    missed = {
        query: [hit["address"] for hit in hits]
        for (query, wanted), hits in zip(QUERIES.items(), found, strict=True)
        if not any(name in hit["ids"] or hit["at"] == f"{name}.html" for hit in hits for name in wanted)
    }
    assert not missed


def test_words_that_a_message_shares_with_a_question_are_not_the_message(front):
    asked = "does torch.distributed.launch read the port from an environment variable?"
    hits = front.evaluate("async (query) => await ddpSearch(query, 3)", asked)
    assert not {"error-dist-deprecated", "error-env-variable-missing"} & {name for hit in hits for name in hit["ids"]}


def test_the_overlay_opens_at_a_key_and_leads_to_the_section(front):
    front.keyboard.press("/")
    front.keyboard.type("flight recorder")
    expect(front.locator(".search-overlay li").first).to_contain_text("light recorder")
    front.keyboard.press("Enter")
    front.wait_for_url("**#*flight*")
    assert not front.locator(".search-overlay").is_visible()


def test_nonsense_finds_nothing_and_says_where_to_go(front):
    front.keyboard.press("/")
    front.keyboard.type("qwxzzkj")
    front.get_by_text("Nothing found").wait_for()
    front.keyboard.press("Escape")
    front.locator(".search-overlay").wait_for(state="hidden")
