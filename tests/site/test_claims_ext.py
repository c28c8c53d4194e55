"""Claims: each has one test, the list shows all, and nothing that does not hold together is published."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddplab.recording import items as recorded
from ddplab.recording.keys import claim_key, lab_key
from tiny_book import LAUNCH, Built, TinyBook
from tools import ROOT

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


LIST = "```{claims-list}\n```\n"
SOURCE = "source: `Reducer` in `reducer.cpp`, torch 2.13.0"
SCOPED = {  # claims of a page: their options
    "anywhere": ":holds: any backend\n:known: run",
    "known-anywhere": f":holds: any backend\n:known: {SOURCE}",
    "known-on-gloo": f":holds: gloo\n:known: {SOURCE}",
    "known-but-on-nccl": f":holds: not known on NCCL\n:known: {SOURCE}",
    "shown-on-nccl": ":holds: not known on NCCL\n:known: run",
    "shared": f":holds: any backend\n:known: {SOURCE}",
    "partly": ":holds: not known on NCCL\n:known: run",
    "alone": ":holds: not known on NCCL\n:known: run",
    "fails-there": f":holds: any backend\n:known: {SOURCE}",
    "derived": ":holds: any backend\n:known: derivation",
    "on-gloo": ":holds: gloo",
    "nowhere": "",
    "asserted": ":holds: any backend",
    "guessed": ":holds: not known on NCCL",
}
SUMS, OTHERS = ["sum-is-two", "one-is-one"], ["stale", "not-run"]
PASSED = {
    "outcome": "passed",
    "test": "…",
    "seconds": 0.1,
    "date": "2026-11-21T07:00:00+00:00",
    "launches": [LAUNCH, {**LAUNCH, "ranks": 3}],
    "read": [],
}


BY_LAB = "by-lab", "by-lab-too"
SHOWS = '''"""
Shows
=====

Does it?

:Level: core, 5 minutes
:Proves: by-lab by-lab-too
"""
assert True
'''
NCCL = {**LAUNCH, "backend": "nccl", "gpu": "H200", "gpus": 1, "nccl": "2.28.9"}


def stated(name: str, options: str = "") -> str:
    return f"```{{claim}} {name}\n{options}\n\nThe `sum` is *two*.\n```\n\n"


def proved(*names: str) -> str:
    tests = (f'@proves("{name}")\ndef test_{name.replace("-", "_")}():\n    assert 1\n' for name in names)
    return "\n\n".join(["from proof import proves", *tests])


def record(book: TinyBook, *claims: str, edition: str = "base", **changes: object) -> None:
    """Write what an edition has of these claims: all passed, unless ``changes`` say otherwise."""
    for test in recorded.tests_of(book.root):
        path = f"gallery/editions/{edition}/claims/{test.path.stem}.json"
        results = json.loads((book.root / path).read_text())["results"] if (book.root / path).exists() else {}
        for claim in set(test.claims) & set(claims):
            key = changes.get("key") or claim_key(test.path, test.name)
            results[claim] = PASSED | changes | {"key": key}
        book.write(path, json.dumps({"machine": {"cpu": "Some CPU", "cores": 2}, "results": results}))


@pytest.fixture
def book(tmp_path: Path) -> TinyBook:
    """A book of two claims and their list."""
    made = TinyBook(tmp_path)
    made.write("tests/claims/test_sums.py", TESTS)
    made.chapters(first=FIRST, second=SECOND, claims=LIST)
    return made


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> TinyBook:
    """A claim for each case, each with its test and what two editions have of it."""
    made = TinyBook(tmp_path_factory.mktemp("cases"))
    made.write("tests/claims/test_sums.py", TESTS)
    scoped = "".join(stated(name, options) for name, options in SCOPED.items())
    made.chapters(
        first=FIRST,
        second=SECOND,
        scoped=scoped,
        others="".join(map(stated, [*OTHERS, *BY_LAB])),
        claims=LIST,
    )
    made.write("tests/claims/test_more.py", proved(*SCOPED, *OTHERS))
    made.write("gallery/short/plot_01_shows.py", SHOWS)
    ran = {
        "key": lab_key(made.root / "gallery/short/plot_01_shows.py"),
        "blocks": [],
        "values": {},
        "launches": [LAUNCH],
    }
    ran = {**PASSED, "machine": {"cpu": "Some CPU", "cores": 2}, **ran}
    made.write("gallery/editions/base/labs/shows.json", json.dumps(ran))
    record(made, *SUMS)
    record(made, *SCOPED)
    shared = {**NCCL, "shared": "NCCL_HOSTID"}
    record(made, "shown-on-nccl", edition="h200", launches=[{**NCCL, "ranks": 3}, {**LAUNCH, "ranks": 1}])
    record(made, "shared", edition="h200", launches=[shared])
    record(made, "partly", edition="h200", launches=[shared, LAUNCH])
    record(made, "alone", edition="h200", launches=[{**NCCL, "ranks": 1}, LAUNCH])
    record(made, "fails-there", edition="h200", launches=[shared], outcome="failed", failed="E  assert 0")
    made.write("gallery/editions/h200/manifest.json", "{}")
    record(made, "stale", key="0")
    record(made, "not-run", edition="h200")
    return made


@pytest.fixture(scope="module")
def built(cases: TinyBook) -> Built:
    """The cases as they stand on the web."""
    return cases.build()


def entry(built: Built, name: str) -> str:
    return " ".join(built.page("claims").select_one(f"#proof-{name}").get_text(" ").split())


def tick(built: Built, name: str, page: str = "scoped"):
    return built.page(page).select_one(f"#claim-{name} .claim-tick")


def test_a_tick_opens_a_panel_that_says_where_the_claim_was_shown(built: Built) -> None:
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


def test_a_claim_that_a_lab_proves_has_the_record_of_the_lab_and_leads_to_its_page(built: Built) -> None:
    for claim in BY_LAB:
        assert tick(built, claim, "others")["title"] == "shown by a lab"
        shown, see = built.page("others").select(f"#shown-{claim} p")
        assert shown.get_text() == "Shown 2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21 · edition base"
        assert (see.a["href"], see.a.get_text()) == ("labs/short/plot_01_shows.html", "the lab shows")
        assert entry(built, claim).endswith("✓ 2 ranks · gloo lab")


RAN = "NCCL 2.28.9, 2 ranks sharing one GPU (edition h200)"


@pytest.mark.parametrize(
    ("name", "label", "says"),
    [
        ("known-anywhere", "✓", "on any backend"),
        ("known-on-gloo", "✓ gloo", "on gloo"),
        ("known-but-on-nccl", "✓ NCCL?", "on gloo; not known on NCCL"),
        ("shown-on-nccl", "✓", "on gloo and on NCCL; run on NCCL 2.28.9, 3 ranks (edition h200)"),
        ("shared", "✓", f"on any backend; run on {RAN}"),
        ("partly", "✓ NCCL?", f"on gloo; not known on NCCL; run in part on {RAN}"),
        ("alone", "✓ NCCL?", "on gloo; not known on NCCL"),
        ("fails-there", "✓ gloo", f"on gloo; does not hold on {RAN}"),
    ],
)
def test_a_tick_names_the_scope_unless_the_claim_holds_everywhere(built: Built, name, label, says) -> None:
    """Its author's scope yields to what another edition ran on NCCL; a world of one shows nothing of NCCL."""
    assert tick(built, name).get_text() == label.replace(" ", "\N{NO-BREAK SPACE}")
    assert tick(built, name)["title"] == f"shown by a test; holds {says}"
    panel = built.page("scoped").select(f"#shown-{name} p")
    assert f"Holds {says}" in [line.get_text() for line in panel]
    assert says in entry(built, name)
    if name.startswith("known"):
        assert panel[2].get_text() == "Known source: Reducer in reducer.cpp, torch 2.13.0"
        assert [code.get_text() for code in panel[2].select("code")] == ["Reducer", "reducer.cpp"]
        holds = SCOPED[name].splitlines()[0].removeprefix(":holds: ")
        assert built.page("claims").select_one(f"#proof-{name}")["data-holds"] == holds
        assert f"{says} source: Reducer" in entry(built, name)


def test_a_scope_and_how_it_is_known_are_demanded_where_the_configuration_says_so(cases: TinyBook) -> None:
    strict = cases.build("dummy", claims_need_scope=True)
    nothing = "does not say where it holds; add :holds: with one of any backend, gloo, not known on NCCL"
    says = {
        "asserted": "holds 'any backend', and does not say how that is known; add :known:",
        "guessed": "holds 'not known on NCCL', and does not say how that is known; add :known:",
        **dict.fromkeys([*SUMS, "nowhere", *OTHERS, *BY_LAB], nothing),
    }
    assert strict.error == f"claims: {len(says)} problems, named above"
    lines = strict.warnings.splitlines()
    assert len(lines) == len(says)
    for name, said in says.items():
        assert any(line.endswith(f" WARNING: the claim '{name}' {said}") for line in lines), name
    assert "first.md:3: " in lines[0]


def test_the_list_shows_statement_result_and_place_and_counts(built: Built) -> None:
    page = built.page("claims")
    chapters = [title.get_text() for title in page.select("th[scope=rowgroup]")]
    assert chapters == [f"The {name} chapter" for name in ("first", "second", "scoped", "others")]
    counts = [line.get_text() for line in page.select(".claims-count")]
    assert counts == [
        "20 claims: 5 hold on any backend, 3 hold on gloo, 4 are not known on NCCL, 1 hold on gloo and on NCCL, "
        "7 do not say yet where they hold.",
        "In the edition base (Some CPU, 2 cores, torch 2.13.0, 2026-11-21): 19 passed, 1 not run.",
        "Run on NCCL: 4; 1 of them failed there.",
    ]
    statement, holds, shown = page.select("#proof-anywhere td")
    assert statement.get_text() == "The sum is two. in the text"
    assert statement.a["href"] == "scoped.html#claim-anywhere"
    assert holds.get_text() == "on any backendrun"
    assert shown.get_text() == "✓\N{NO-BREAK SPACE}2 and 3 ranks · gloo test"
    assert shown.a["href"] == "_claims/test_more.html#test_anywhere"
    assert page.select_one("#proof-one-is-one td").get_text() == "One is one. in the text"
    assert len(page.select("#proof-one-is-one td:first-child a")) == 1
    assert page.select("script[src*='list-filter.js']")


def test_the_source_of_a_test_is_a_page_of_its_own(built: Built) -> None:
    page = built.page("_claims/test_sums")
    assert page.select_one("#test_sum").get_text() == (
        '@proves("sum-is-two")\ndef test_sum():\n    assert helper() == 1 + 1'
    )
    assert page.select_one(".claim-test pre").get_text().split() == TESTS.split()
    links = [link["href"] for link in page.select(".claim-tests li a:first-child")]
    assert links == ["../first.html#claim-sum-is-two", "../second.html#claim-one-is-one"]


def test_on_paper_the_list_has_scope_and_no_source_and_ticks_their_labels(cases: TinyBook) -> None:
    built = cases.build("epub")
    text = (built.folder / "claims.xhtml").read_text()
    assert "on gloo" in text
    assert "helper" not in text
    assert "test_sum" not in text
    chapter = (built.folder / "scoped.xhtml").read_text()
    assert "✓\N{NO-BREAK SPACE}gloo</span></a>" in chapter
    assert "popover" not in chapter


def test_a_claim_without_result_is_not_run_and_a_result_of_another_test_is_stale(cases: TinyBook, built: Built) -> None:
    assert "○ not run" in entry(built, "not-run")
    assert tick(built, "not-run", "others")["aria-label"] == "has a test, not run in this edition"
    assert "Shown not run in this edition" in built.page("others").select_one("#shown-not-run").get_text()
    assert "stale: the test changed since" in entry(built, "stale")
    assert "stale" not in entry(built, "one-is-one")
    assert "✓" in entry(cases.build(labs_edition="h200", out="h200"), "not-run"), "the edition can be chosen"


def test_what_does_not_hold_together_ends_every_build(book: TinyBook) -> None:
    book.write("tests/claims/test_more.py", proved("failed", "nil"))
    book.chapters(first=FIRST, second=SECOND, more=stated("failed") + stated("nil"), claims=LIST)
    record(book, "failed", "nil")
    assert book.build("dummy").complaints == ""
    book.chapters(first=FIRST + "\n" + FIRST, second=SECOND, more=stated("failed") + stated("nil"), claims=LIST)
    book.write("handbook/second.md", "# Two\n\n```{claim} untested\nIt is.\n```\n\n```{claim} empty\n```\n")
    book.write("tests/claims/test_zero.py", proved("failed"))
    book.write("tests/claims/test_nil.py", "from ddplab import nil\n" + proved("nil"))
    book.write("tests/claims/test_more.py", proved("failed"))
    record(book, "failed", outcome="failed")
    record(book, "nil", key="0")
    for _ in range(2):  # an incremental build must not forget it
        built = book.build("dummy")
        assert built.error == "claims: 6 problems, named above"
        for place, says in (
            ("first.md:7", "is taken by .*first.md:3"),
            ("test_sums.py:20", "test_one proves 'one-is-one', which is not a claim"),
            ("second.md:3", "the claim 'untested' has no test; mark one"),
            ("second.md:7", "the claim 'empty' is empty; write the sentence"),
            ("test_zero.py:4", "test_failed proves 'failed', as test_failed .*test_more.py:4. does"),
            ("test_nil.py:5", "ddplab has no 'nil'"),
            (
                "more.md:3",
                "the claim 'failed' failed in the edition base: test_failed on 2 and 3 ranks · gloo · Some CPU",
            ),
        ):
            assert re.search(f"{place}: WARNING: .*{says}", built.warnings), (place, built.warnings)


FILE, RESULTS = "tests/claims/test_sums.py", "gallery/editions/base/claims/test_sums.json"


@pytest.mark.parametrize(
    ("path", "text", "place", "says"),
    [
        (FILE, "x = (\n", "test_sums.py:1", "not valid Python"),
        (RESULTS, "{\n,", "base.rst", "test_sums.json is damaged .*line 2"),
        (RESULTS, "{}", "base.rst", "machine, results is missing"),
    ],
)
def test_what_cannot_be_read_ends_every_build(book: TinyBook, path: str, text: str, place: str, says: str) -> None:
    record(book, *SUMS)
    assert book.build("dummy").complaints == ""
    book.write(path, text)
    for _ in range(2):  # an incremental build must not forget it
        built = book.build("dummy")
        assert built.error == "claims: 1 problem, named above"
        assert re.search(f"{place}: WARNING: .*{says}", built.warnings), built.warnings


def test_only_pages_with_claims_are_written_again_when_a_result_changes(book: TinyBook) -> None:
    book.chapters(first=FIRST, second=SECOND, third="No claim.", claims=LIST)
    book.build()
    assert book.build().written == []
    record(book, *SUMS)
    built = book.build()
    assert {"claims", "first", "second"} <= set(built.written)
    assert "third" not in built.written
    assert "✓" in entry(built, "one-is-one")
    book.write("gallery/editions/h200/manifest.json", "{}")
    record(book, "one-is-one", edition="h200", launches=[NCCL], key="0")
    assert "run on NCCL 2.28.9, 2 ranks (edition h200; the test changed since)" in entry(book.build(), "one-is-one")
    record(book, "one-is-one", edition="h200", launches=[NCCL])
    assert "run on NCCL 2.28.9, 2 ranks (edition h200)" in entry(book.build(), "one-is-one"), "also a page that is kept"
    book.write("tests/claims/test_sums.py", TESTS.replace("1 + 1", "3 - 1"))
    built = book.build()
    assert "stale" in entry(built, "sum-is-two")
    assert "stale" not in entry(built, "one-is-one")
    assert "3 - 1" in built.page("_claims/test_sums").get_text()
    book.write("handbook/first.md", "# The first chapter\n")
    book.write("tests/claims/test_sums.py", TESTS.replace('@proves("sum-is-two")', ""))
    built = book.build()
    assert built.complaints == ""
    assert built.page("claims").select_one("#proof-sum-is-two") is None, "a claim that is gone leaves the list"


# -- the pytest side ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("\n\ndef test_more():\n    pass\n", "test_sums.py::test_more proves nothing"),
        ('\n\n@proves("one-is-one")\ndef test_more():\n    pass\n', "test_more proves 'one-is-one', and so does"),
    ],
)
def test_tests_and_claims_must_pair_up_in_pytest_too(book: TinyBook, more: str, says: str) -> None:
    for name in ("conftest.py", "proof.py"):
        book.write(f"tests/claims/{name}", (ROOT / "tests/claims" / name).read_text())
    book.write("pytest.ini", "[pytest]\nmarkers = proves(id): shows it\n")
    book.write("tests/claims/test_sums.py", TESTS + more)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/claims"]
    done = subprocess.run(command, cwd=book.root, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert says in done.stdout + done.stderr
