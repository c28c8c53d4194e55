"""Pieces of labs in chapters and decks: what is shown, what it ran on, and what the answer to a wrong request is."""

import json
import re

import pytest

from _ext.evidence.lab_pieces import stamp_text
from tiny_book import LAUNCH, Built, TinyBook, evidence

CONF = """
extensions = ["myst_parser", "_ext.embed.lab_embed", "_ext.embed.lanes"]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["labs/*/*.json"]
labs_default_edition = "base"
html_theme = "basic"
numfig = True
"""
SCRIPT = '''
"""A lab"""
import torch

@torch.no_grad()
def worker(x):
    x = 1
    def inner():
        return x

    return inner()

CAPS = [1,
        2]
# end of caps
'''
BLOCKS = [
    {"code": "1", "printed": ["before", "rank 0 │ loss 1 <b>", "rank 1 │ loss 2", "", "after"]},
    {
        "code": "2",
        "figures": [{"file": "bucket-xray-1.svg", "alt": "One"}, {"file": "bucket-xray-2.svg", "alt": "Two"}],
    },
    {"code": "3", "printed": ["  indented"]},
]
PAGE = ":orphan:\n\nA bucket X-ray\n==============\n"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36pt" viewBox="0 0 72 36"><path d="M0 0h9"/></svg>'
FIGURE = """
```{lab-figure} bucket-xray 2
:alt: Boxes in rows.
:name: the-rows
What to *see*.
```
"""


CODE = [
    (
        ":function: worker",
        "@torch.no_grad()\ndef worker(x):\n    x = 1\n    def inner():\n        return x\n\n    return inner()",
    ),
    (":function: inner", "def inner():\n    return x"),
    (":function: worker\n:lines: 2,7", "def worker(x):\n    return inner()"),
    (':start-after: "return inner()"\n:end-before: "# end of caps"', "CAPS = [1,\n        2]"),
]
WRONG = [
    ("{lab-output} bucket-xry 1", "no such lab; did you mean 'bucket-xray'?"),
    ("{lab-output} other 1", "no such lab; choose one of bucket-xray, silent, again"),
    ("{lab-output} bucket-xray 3", "there is no printed block '3'; the lab has 2, counted from 1"),
    ("{lab-output} bucket-xray 0", "there is no printed block '0'"),
    ("{lab-output} bucket-xray", "say which printed block to show; the lab has 2"),
    ("{lab-output} bucket-xray one", "there is no printed block 'one'"),
    ("{lab-output} bucket-xray 2\n:lines: 4", ":lines: 4 is outside the block; its last line is 1"),
    ("{lab-output} bucket-xray 2\n:lines: a", ":lines: a is not a list of lines; write it like 1-3,7"),
    ("{lab-output} silent 1", "plot_06_silent.base.json is missing"),
    ("{lab-figure} bucket-xray 1", "add :alt: and say what the figure shows"),
    ("{lab-figure} bucket-xray 3\n:alt: x", "there is no figure '3'; the lab has 2, counted from 1"),
    ("{lab-figure} bucket-xray 1\n:alt: x\n- list", "begin with a paragraph that says what to see"),
    ("{lab-code} bucket-xray", "give either :function: or :start-after: and :end-before:"),
    (
        "{lab-code} bucket-xray\n:function: wrker",
        "plot_05_bucket_xray.py does not define 'wrker'; did you mean 'worker'?",
    ),
    ("{lab-code} bucket-xray\n:start-after: nowhere", "plot_05_bucket_xray.py has no line with 'nowhere'"),
    ("{lab-code} bucket-xray\n:start-after: torch\n:end-before: A lab", "has no line with 'A lab' below line"),
]
PAGES = {
    "figure": FIGURE + "\nSee {numref}`the-rows`.",
    "output": "```{lab-output} bucket-xray 1\n```\n\n```{lab-output} bucket-xray 2\n```\n",
    "lines": "```{lab-output} bucket-xray 1\n:lines: 1,5\n```\n",
    "follows": "```{lab-output} again 2\n```\n",
    **{f"code{n}": f"```{{lab-code}} bucket-xray\n{options}\n```\n" for n, (options, _) in enumerate(CODE)},
    **{f"wrong{n}": f"```{directive}\n```\n" for n, (directive, _) in enumerate(WRONG)},
}
AGAIN = "handbook/labs/internals/plot_07_again.base.json"


def with_labs(made: TinyBook) -> TinyBook:
    made.write("conf.py", CONF)
    made.write("gallery/internals/plot_05_bucket_xray.py", SCRIPT)
    made.write("handbook/labs/internals/plot_05_bucket_xray.rst", PAGE)
    made.write("handbook/labs/internals/plot_05_bucket_xray.base.json", json.dumps(evidence(blocks=BLOCKS)))
    for number in (1, 2):
        made.write(f"gallery/editions/here/labs/bucket-xray-{number}.svg", SVG)
    return made


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """A page for each case, built three times; before the third, a lab was run again."""
    made = with_labs(TinyBook(tmp_path_factory.mktemp("book")))
    made.write("gallery/internals/plot_06_silent.py", "")
    made.write("handbook/labs/internals/plot_06_silent.rst", ":orphan:\n\nX\n=\n\n.. lab-output:: bucket-xray 2\n")
    made.write("gallery/internals/plot_07_again.py", "")
    made.write(AGAIN, json.dumps(evidence(blocks=BLOCKS)))
    made.chapters(**PAGES)
    builds = [made.build(), made.build()]
    made.rewrite(AGAIN, "indented", "new")
    return [*builds, made.build()]


@pytest.fixture(scope="module")
def built(builds: list[Built]) -> Built:
    return builds[0]


def test_a_figure_has_its_number_caption_alternative_text_and_a_stamp_that_leads_to_the_lab(built: Built) -> None:
    figure = built.page("figure").figure
    assert figure.img["alt"] == "Boxes in rows."
    assert (built.folder / figure.img["src"]).read_text() == SVG
    assert figure.figcaption.em.get_text() == "see"
    assert built.page("figure").select_one("a.reference.internal:has(.std-numref)").get_text() == "Fig. 1"
    stamp = figure.select_one("p.stamp")
    assert stamp.get_text() == "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21"
    assert stamp.a["href"] == "labs/internals/plot_05_bucket_xray.html"


def test_an_output_is_the_block_as_printed_with_lanes_coloured(built: Built) -> None:
    first, second = built.page("output").select(".lab-output")
    lanes = [(lane["class"][1], lane.pre.get_text()) for lane in first.select(".lane")]
    assert lanes == [("r0", "loss 1 <b>"), ("r1", "loss 2")]
    assert [block.get_text().strip() for block in first.select(".highlight pre")] == ["before", "after"]
    assert second.select_one("pre").get_text().startswith("  indented")
    assert "2 ranks" in first.select_one("p.stamp").get_text()


def test_lines_take_a_range(built: Built) -> None:
    assert built.page("lines").select_one(".lab-output pre").get_text().split() == ["before", "after"]


def test_rst_labs_can_embed_too(built: Built) -> None:
    assert "indented" in built.page("labs/internals/plot_06_silent").get_text()


@pytest.mark.parametrize("number", range(len(CODE)))
def test_code_comes_from_the_script(built: Built, number: int) -> None:
    shown = built.page(f"code{number}").select_one(".lab-code")
    assert shown.pre.get_text().rstrip("\n") == CODE[number][1]
    assert shown.select_one(".stamp a")["href"] == "labs/internals/plot_05_bucket_xray.html"


def test_a_document_is_read_again_when_the_lab_was_run_again(builds: list[Built]) -> None:
    _, again, changed = builds
    known = {"index", *(name for name in PAGES if name.startswith("wrong"))}  # read in each build, which says it again
    assert set(again.written) == known
    assert set(changed.written) == {"follows", *known}
    assert changed.page("follows").select_one(".lab-output pre").get_text().strip() == "new"


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_request_is_told_where_and_what_there_is(builds: list[Built], number: int) -> None:
    directive, message = WRONG[number]
    for built in builds[:2]:  # also in the second build, which would find the document up to date
        name, lab = re.findall(r"[a-z-]+", directive)[:2]
        about = built.about(f"wrong{number}")
        assert message in about
        assert f"wrong{number}.md:3: WARNING: {name} {lab!r}: " in about


def test_nothing_else_is_complained_about(built: Built) -> None:
    assert not built.error
    assert all("/wrong" in line for line in built.warnings.splitlines()), built.warnings


SECTIONS = """
```{lab-output} bucket-xray 1
```

## One

```{lab-figure} bucket-xray 1
:alt: A figure.
```

### Below it

```{lab-output} bucket-xray 2
```

```{lab-code} bucket-xray
:function: worker
```

## Two

No lab.

## Three

```{lab-code} bucket-xray
:function: worker
```

## Four

```{lab-output} formula 1
```
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A book with marks of its sections."""
    made = with_labs(TinyBook(tmp_path_factory.mktemp("marks")))
    made.rewrite("conf.py", '"_ext.embed.lanes"', '"_ext.embed.lanes", "_ext.embed.section_stamps"')
    made.write("gallery/internals/plot_07_formula.py", "# runs nothing: a formula\n")
    made.write("handbook/labs/internals/plot_07_formula.rst", PAGE)
    text = evidence(blocks=[{"code": "1", "printed": ["a formula"]}], launches=[])
    made.write("handbook/labs/internals/plot_07_formula.base.json", json.dumps(text))
    made.write("gallery/internals/plot_08_old.py", "")
    old = json.dumps(evidence(blocks=BLOCKS, stale=True, borrowed=True))
    made.write("handbook/labs/internals/plot_08_old.base.json", old)
    made.chapters(first=SECTIONS, old="```{lab-output} old 1\n```\n")
    return made.build()


def test_the_book_has_one_mark_for_a_section_with_all_that_it_shows(marked: Built) -> None:
    assert marked.complaints == ""
    page = marked.page("first")
    found = {mark.parent["id"]: mark for mark in page.select(".section-stamp")}
    assert list(found) == ["the-first-chapter", "one", "three", "four"]
    for name in ("the-first-chapter", "one"):
        mark = found[name]
        assert mark.summary.get_text() == "Ran on 2 ranks · gloo · 2026-11-21"
        assert mark.p.get_text() == "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21: bucket-xray"
        assert mark.a["href"] == "labs/internals/plot_05_bucket_xray.html"
    assert not found["one"].find_next_sibling()  # behind all that the section has
    assert found["three"].get_text().strip() == "Code: bucket-xray"
    assert found["four"].get_text().strip() == "Nothing ran, a formula: formula"
    assert not page.select(".lab-output .stamp, figure .stamp, .lab-code .stamp")


def test_a_mark_says_what_a_reader_must_not_miss(marked: Built) -> None:
    says = marked.page("old").select_one(".section-stamp summary").get_text()
    assert says == "Ran on 2 ranks · gloo · 2026-11-21 · from the edition base · stale: the code changed since"


@pytest.mark.parametrize(
    ("changes", "stamp"),
    [
        ({}, "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21"),
        (
            {"stale": True},
            "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21 · stale: the code changed since",
        ),
        ({"launches": []}, "Some CPU, 2 cores · 2026-11-21"),
        ({"launches": [{**LAUNCH, "ranks": 1}]}, "1 rank · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21"),
        (
            {"launches": [{**LAUNCH, "ranks": count} for count in (4, 2, 3, 2)]},
            "2, 3 and 4 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21",
        ),
        (
            {"launches": [{**LAUNCH, "backend": "nccl", "gpu": "H200", "gpus": 8, "nccl": "2.29.7"}]},
            "2 ranks · nccl · 8 × H200 · torch 2.13.0 · NCCL 2.29.7 · 2026-11-21",
        ),
        (
            {"borrowed": True},
            "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21 · from the edition base",
        ),
    ],
)
def test_the_stamp_says_ranks_backend_hardware_versions_and_date(changes: dict, stamp: str) -> None:
    assert stamp_text(evidence(**changes)) == stamp
