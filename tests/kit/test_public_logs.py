"""The hash under which the answers to public logs are kept: what decides an answer is in it, better words are not."""

from dataclasses import replace

import pytest

from ddplab.apparatus.public_logs import by_frozen, engine_now
from ddplab.diagnose import entries

KNOWN = entries()
NAME = "gloo-timeout"
MATCH = KNOWN[NAME].matches[0]


def changed(**fields: object) -> str:
    return engine_now({**KNOWN, NAME: replace(KNOWN[NAME], **fields)})


@pytest.mark.parametrize("field", ["title", "cause", "fix", "ranks", "versions", "collect", "links", "see", "samples"])
def test_words_of_an_entry_leave_the_answers_valid(field):
    assert changed(**{field: "other words"}) == engine_now()


@pytest.mark.parametrize(
    "fields",
    [
        {"matches": (replace(MATCH, needle="another needle"),)},
        {"matches": (replace(MATCH, nearby="another line"),)},
        {"matches": ()},
        {"role": "cause"},
        {"explains": ("exit-killed",)},
    ],
    ids=["needle", "nearby", "no match", "role", "explains"],
)
def test_what_the_engine_reads_makes_them_stale(fields):
    assert changed(**fields) != engine_now()


def test_a_further_entry_and_another_limit_make_them_stale(monkeypatch):
    before = engine_now()
    assert engine_now({**KNOWN, "another": KNOWN[NAME]}) != before
    monkeypatch.setattr("ddplab.apparatus.public_logs.tables", {"limits": {}})
    assert engine_now() != before


def test_the_frozen_answer_is_kept_beside_todays():
    logs = [{"answer": "b", "frozen": {"answer": "a", "answer_exception": None}}, {"answer": "c"}]
    assert [log["answer"] for log in by_frozen(logs)] == ["a", "c"]
