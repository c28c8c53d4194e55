"""Claims: each has one test, the list shows all, and nothing that does not hold together is published."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from _ext.evidence.proofs import read_proofs
from ddplab.recording.keys import claim_key
from tiny_book import LAUNCH, TinyBook

TESTS = """
from proof import proves

LIMIT = 2


def helper():
    return LIMIT


def unused():
    return 3


@proves("sum-is-two")
def test_sum():
    assert helper() == 1 + 1


@proves("one-is-one")
def test_one():
    assert 1 == 1
"""
FIRST = "```{claim} sum-is-two\nThe `sum` is *two*.\n```\n"
SECOND = ":::{claim} one-is-one\nOne is [one](#place).\n:::\n\n(place)=\n## A place\n"


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    made = TinyBook(tmp_path, monkeypatch)
    made.write("tests/claims/test_sums.py", TESTS)
    made.chapters(first=FIRST, second=SECOND, claims="```{claims-list}\n```\n")
    return made


LIST = "```{claims-list}\n```\n"


def scoped(options: str) -> str:
    return FIRST.replace("two\nThe", f"two\n{options}\n\nThe" if options else "two\nThe")


def record(book: TinyBook, edition: str = "base", **changes: object) -> Path:
    """Write an edition's results: both claims passed, unless ``changes`` say otherwise of the first."""
    passed = {
        "outcome": "passed",
        "test": "…",
        "seconds": 0.1,
        "date": "2026-11-21T07:00:00+00:00",
        "launches": [LAUNCH, {**LAUNCH, "ranks": 3}],
        "read": [],
    }
    tests = book.root / "tests/claims/test_sums.py"
    results = {
        "sum-is-two": {**passed, "key": claim_key(tests, "test_sum"), **changes},
        "one-is-one": {**passed, "key": claim_key(tests, "test_one")},
    }
    kept = {"machine": {"cpu": "Some CPU", "cores": 2}, "results": results}
    return book.write(f"gallery/editions/{edition}/claims/test_sums.json", json.dumps(kept))


def entry(built, name: str) -> str:
    return " ".join(built.page("claims").select_one(f"#proof-{name}").get_text(" ").split())


def tick(built, name: str, page: str = "first"):
    return built.page(page).select_one(f"#claim-{name} .claim-tick")


def test_a_tick_opens_a_panel_that_says_where_the_claim_was_shown(book: TinyBook) -> None:
    record(book)
    built = book.build()
    assert built.complaints == ""
    claim = built.page("first").select_one("div.claim#claim-sum-is-two")
    assert claim.select_one("code, em")
    assert claim.p.button["aria-label"] == "shown by a test"
    assert claim.p.button.get_text() == "✓"
    panel = claim.select_one(f"#{claim.p.button['popovertarget']}[popover]")
    shown, see = panel.select("p")
    where = "2 and 3 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21 · edition base"
    assert shown.get_text() == f"Shown {where}"
    test, claims = see.select("a")
    assert test["href"] == "_claims/test_sums.html#test_sum"
    assert claims["href"] == "claims.html#proof-sum-is-two"


def test_a_tick_names_the_scope_unless_the_claim_holds_everywhere(book: TinyBook) -> None:
    record(book)
    source = "source: `Reducer` in `reducer.cpp`, torch 2.13.0"
    scopes = {"any backend": ("✓", "on any backend"), "gloo": ("✓\N{NO-BREAK SPACE}gloo", "on gloo")}
    scopes["not known on NCCL"] = ("✓\N{NO-BREAK SPACE}NCCL?", "on gloo; not known on NCCL")
    for holds, (label, words) in scopes.items():
        book.chapters(first=scoped(f":holds: {holds}\n:known: {source}"), second=SECOND, claims=LIST)
        built = book.build()
        assert built.complaints == ""
        assert tick(built, "sum-is-two").get_text() == label
        assert tick(built, "sum-is-two")["title"] == f"shown by a test; holds {words}"
        _, where, known, _ = built.page("first").select("#shown-sum-is-two p")
        assert where.get_text() == f"Holds {words}"
        assert known.get_text() == "Known source: Reducer in reducer.cpp, torch 2.13.0"
        assert [code.get_text() for code in known.select("code")] == ["Reducer", "reducer.cpp"]
        row = built.page("claims").select_one("#proof-sum-is-two")
        assert row["data-holds"] == holds
        assert f"{words} source: Reducer" in entry(built, "sum-is-two")


def test_an_edition_on_nccl_answers_what_was_not_known(book: TinyBook) -> None:
    record(book, launches=[{**LAUNCH, "backend": "nccl"}])
    book.chapters(first=scoped(":holds: not known on NCCL\n:known: run"), second=SECOND, claims=LIST)
    built = book.build()
    assert tick(built, "sum-is-two").get_text() == "✓"
    assert "on NCCL, as this edition shows" in entry(built, "sum-is-two")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "does not say where it holds; add :holds: with one of any backend, gloo, not known on NCCL"),
        (":holds: any backend", "holds 'any backend', and does not say how that is known; add :known:"),
        (":holds: not known on NCCL", "holds 'not known on NCCL', and does not say how that is known"),
        (":holds: any backend\n:known: derivation", ""),
        (":holds: gloo", ""),
    ],
)
def test_a_scope_and_how_it_is_known_are_demanded_where_the_configuration_says_so(
    book: TinyBook, options: str, says: str
) -> None:
    record(book)
    book.chapters(first=scoped(options), second=SECOND.replace("is-one\n", "is-one\n:holds: gloo\n\n"), claims=LIST)
    assert book.build().complaints == ""
    built = book.build(claims_need_scope=True)
    assert built.error == ("claims: 1 problem, named above" if says else "")
    assert f"first.md:3: WARNING: the claim 'sum-is-two' {says}" in built.warnings if says else not built.warnings


def test_the_list_shows_statement_result_and_place_and_counts(book: TinyBook) -> None:
    record(book)
    book.chapters(first=scoped(":holds: any backend\n:known: run"), second=SECOND, claims=LIST)
    page = book.build().page("claims")
    assert [title.get_text() for title in page.select("th[scope=rowgroup]")] == [
        "The first chapter",
        "The second chapter",
    ]
    counts = [line.get_text() for line in page.select(".claims-count")]
    assert counts == [
        "2 claims: 1 hold on any backend, 1 do not say yet where they hold.",
        "In the edition base (Some CPU, 2 cores, torch 2.13.0, 2026-11-21): 2 passed.",
    ]
    statement, holds, shown = page.select("#proof-sum-is-two td")
    assert statement.get_text() == "The sum is two. in the text"
    assert statement.a["href"] == "first.html#claim-sum-is-two"
    assert holds.get_text() == "on any backendrun"
    assert shown.get_text() == "✓\N{NO-BREAK SPACE}2 and 3 ranks · gloo test"
    assert shown.a["href"] == "_claims/test_sums.html#test_sum"
    assert page.select_one("#proof-one-is-one td").get_text() == "One is one. in the text"
    assert len(page.select("#proof-one-is-one td:first-child a")) == 1
    assert page.select("script[src*='list-filter.js']")


def test_the_source_of_a_test_is_a_page_of_its_own(book: TinyBook) -> None:
    record(book)
    page = book.build().page("_claims/test_sums")
    assert page.select_one("#test_sum").get_text() == (
        '@proves("sum-is-two")\ndef test_sum():\n    assert helper() == 1 + 1'
    )
    assert page.select_one(".claim-test pre").get_text().split() == TESTS.split()
    links = [link["href"] for link in page.select(".claim-tests li a:first-child")]
    assert links == ["../first.html#claim-sum-is-two", "../second.html#claim-one-is-one"]


def test_on_paper_the_list_has_scope_and_no_source_and_ticks_their_labels(book: TinyBook) -> None:
    record(book)
    book.chapters(first=scoped(":holds: gloo\n:known: run"), second=SECOND, claims=LIST)
    built = book.build("epub")
    text = (built.folder / "claims.xhtml").read_text()
    assert "on gloo" in text
    assert "helper" not in text
    assert "test_sum" not in text
    chapter = (built.folder / "first.xhtml").read_text()
    assert "✓\N{NO-BREAK SPACE}gloo</span></a>" in chapter
    assert "popover" not in chapter


def test_a_claim_without_result_is_shown_as_not_run(book: TinyBook) -> None:
    built = book.build()
    assert built.complaints == ""
    assert "○ not run" in entry(built, "sum-is-two")
    assert tick(built, "sum-is-two")["aria-label"] == "has a test, not run in this edition"
    assert "Shown not run in this edition" in built.page("first").select_one("#shown-sum-is-two").get_text()


def test_a_result_of_another_test_is_stale(book: TinyBook) -> None:
    record(book, key="0")
    built = book.build()
    assert built.complaints == ""
    assert "stale: the test changed since" in entry(built, "sum-is-two")
    assert "stale" not in entry(built, "one-is-one")


def test_the_edition_can_be_chosen(book: TinyBook) -> None:
    record(book, edition="h200")
    assert "not run" in entry(book.build(), "sum-is-two")
    assert "✓" in entry(book.build(labs_edition="h200"), "sum-is-two")


SUMS, RESULTS = "tests/claims/test_sums.py", "gallery/editions/base/claims/test_sums.json"
SPOILED = {
    "repeated": ({"handbook/first.md": f"# One\n\n{FIRST}\n{FIRST}"}, "first.md:7", "is taken by .*first.md:3"),
    "no claim": (
        {"handbook/first.md": "# One\n"},
        "test_sums.py:15",
        "test_sum proves 'sum-is-two', which is not a claim",
    ),
    "no test": ({SUMS: TESTS.split("@")[0]}, "first.md:3", "the claim 'sum-is-two' has no test; mark one"),
    "two tests": ({"tests/claims/test_zero.py": TESTS}, "test_zero.py:15", "as test_sum .*test_sums.py:15. does"),
    "no Python": ({SUMS: "x = (\n"}, "test_sums.py:1", "not valid Python"),
    "no JSON": ({RESULTS: "{\n,"}, "base", "test_sums.json is damaged .*line 2"),
    "no results": ({RESULTS: "{}"}, "base", "machine, results is missing"),
    "no such name": ({SUMS: "from ddplab import nil\n" + TESTS}, "test_sums.py:17", "ddplab has no 'nil'"),
}


@pytest.mark.parametrize(("files", "place", "says"), SPOILED.values(), ids=SPOILED)
def test_what_does_not_hold_together_ends_every_build(book: TinyBook, files: dict, place: str, says: str) -> None:
    record(book)
    assert book.build().complaints == ""
    for path, text in files.items():
        book.write(path, text)
    for _ in range(2):  # an incremental build must not forget it
        built = book.build()
        assert built.error.startswith("claims: ")
        line = next(line for line in built.warnings.splitlines() if place in line.split(" WARNING: ")[0])
        assert re.search(says, line), line


def test_a_claim_that_failed_ends_the_build(book: TinyBook) -> None:
    record(book, outcome="failed")
    built = book.build()
    assert built.error == "claims: 1 problem, named above"
    says = "the claim 'sum-is-two' failed in the edition base: test_sum on 2 and 3 ranks · gloo · Some CPU"
    assert f"first.md:3: WARNING: {says}" in built.warnings


def test_an_empty_claim_is_reported(book: TinyBook) -> None:
    book.write("handbook/first.md", "# One\n\n```{claim} sum-is-two\n```\n")
    assert "first.md:3: WARNING: the claim 'sum-is-two' is empty; write the sentence" in book.build().warnings


def test_only_pages_with_claims_are_written_again_when_a_result_changes(book: TinyBook) -> None:
    book.chapters(first=FIRST, second=SECOND, third="No claim.", claims="```{claims-list}\n```\n")
    book.build()
    assert book.build().written == []
    record(book)
    built = book.build()
    assert {"claims", "first", "second"} <= set(built.written)
    assert "third" not in built.written
    assert "✓" in entry(built, "one-is-one")
    book.write("tests/claims/test_sums.py", TESTS.replace("1 + 1", "3 - 1"))
    built = book.build()
    assert "stale" in entry(built, "sum-is-two")
    assert "stale" not in entry(built, "one-is-one")
    assert "3 - 1" in built.page("_claims/test_sums").get_text()


def test_a_claim_that_is_gone_leaves_the_list(book: TinyBook) -> None:
    book.build()
    book.write("handbook/first.md", "# The first chapter\n")
    book.write("tests/claims/test_sums.py", TESTS.replace('@proves("sum-is-two")', ""))
    built = book.build()
    assert built.complaints == ""
    assert built.page("claims").select_one("#proof-sum-is-two") is None


def test_every_claim_of_this_book_is_found_by_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_proofs()
    assert len(found) >= 10
    assert len({proof.claim for proof in found}) == len(found)


# -- the pytest side ----------------------------------------------------------------------------------


def run_pytest(book: TinyBook, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the claims' tests of the book with the real conftest."""
    real = Path(__file__).parents[1] / "claims"
    for name in ("conftest.py", "proof.py"):
        book.write(f"tests/claims/{name}", (real / name).read_text())
    book.write("pytest.ini", "[pytest]\nmarkers = proves(id): shows it\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/claims", *arguments]
    return subprocess.run(command, cwd=book.root, capture_output=True, text=True, env={**os.environ, **environment})


def test_results_are_recorded_with_ranks_and_shown(book: TinyBook) -> None:
    launching = TESTS.replace("def helper():\n    return LIMIT", "def helper():\n    return sum(launch(lambda: 1, 2))")
    book.write(
        "tests/claims/test_sums.py", "from ddplab import launch\n" + launching.replace("assert 1 == 1", "assert 0")
    )
    path = book.root / "gallery/editions/base/claims/test_sums.json"
    done = run_pytest(book, DDPLAB_CLAIMS_RESULTS=str(path.parent))
    assert done.returncode == 1, done.stdout + done.stderr
    kept = json.loads(path.read_text())["results"]
    assert kept["sum-is-two"]["outcome"] == "passed"
    assert kept["sum-is-two"]["test"] == "tests/claims/test_sums.py::test_sum"
    assert [launch["ranks"] for launch in kept["sum-is-two"]["launches"]] == [2]
    assert kept["one-is-one"]["outcome"] == "failed"
    assert "the claim 'one-is-one' failed" in book.build().warnings
    book.write("handbook/second.md", "# Two\n")
    book.write("tests/claims/test_sums.py", launching.split('@proves("one')[0])
    assert "✓ 2 ranks · gloo" in entry(book.build(), "sum-is-two")


def test_a_partial_run_keeps_the_results_of_the_other_tests_that_are_still_there(book: TinyBook) -> None:
    book.write("tests/claims/test_sums.py", TESTS)
    path = book.root / "claims/test_sums.json"
    run_pytest(book, DDPLAB_CLAIMS_RESULTS=str(path.parent))
    kept = json.loads(path.read_text())
    kept["results"]["gone"] = {**kept["results"]["one-is-one"], "test": "tests/claims/test_sums.py::test_gone"}
    path.write_text(json.dumps(kept))
    run_pytest(book, "-k", "test_sum", DDPLAB_CLAIMS_RESULTS=str(path.parent), DDPLAB_CLAIMS_FRESH="1")
    assert set(json.loads(path.read_text())["results"]) == {"sum-is-two", "one-is-one"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("\n\ndef test_more():\n    pass\n", "test_sums.py::test_more proves nothing"),
        ('\n\n@proves("one-is-one")\ndef test_more():\n    pass\n', "test_more proves 'one-is-one', and so does"),
    ],
)
def test_tests_and_claims_must_pair_up_in_pytest_too(book: TinyBook, more: str, says: str) -> None:
    book.write("tests/claims/test_sums.py", TESTS + more)
    done = run_pytest(book, DDPLAB_CLAIMS_RESULTS=str(book.root / "claims"))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert says in done.stdout + done.stderr
    assert not (book.root / "claims").exists()
