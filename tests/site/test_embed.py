"""What pages show of labs, programs and the kit: a page for each case, and the answer to each wrong request."""

import json
import re

import pytest

from _ext.embed.measured import value_text
from _ext.evidence.lab_pieces import stamp_text
from tiny_book import LAUNCH, Built, TinyBook, evidence

CONF = """
extensions = ["myst_parser", "_ext.explorers.explorer_directives", "_ext.style.math_svg"]
extensions += ["_ext.embed." + name for name in ("lab_embed", "lanes", "measured", "code_diff", "kit_reference")]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["labs/*/*.json"]
labs_default_edition = "base"
html_math_renderer = "ziamath"
html_theme = "basic"
nitpicky = numfig = True
"""

# -- labs ---------------------------------------------------------------------------------------------

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
    {"code": "2", "figures": [{"file": f"bucket-xray-{number}.svg", "alt": "A figure"} for number in (1, 2)]},
    {"code": "3", "printed": ["  indented"]},
]
VALUES = {
    "best_cap": {"value": 24.5678, "unit": "MiB"},
    "count": {"value": 12, "unit": ""},
    "name": {"value": "gloo", "unit": ""},
}
SHOWN = evidence(blocks=BLOCKS, values=VALUES)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36pt" viewBox="0 0 72 36"><path d="M0 0h9"/></svg>'
CODE = [
    (
        ":function: worker",
        "@torch.no_grad()\ndef worker(x):\n    x = 1\n    def inner():\n        return x\n\n    return inner()",
    ),
    (":function: inner", "def inner():\n    return x"),
    (":function: worker\n:lines: 2,7", "def worker(x):\n    return inner()"),
    (':start-after: "return inner()"\n:end-before: "# end of caps"', "CAPS = [1,\n        2]"),
]
LABS = {  # of each lab what the build shows, if it can be read
    "bucket_xray": SHOWN,
    "silent": None,
    "again": SHOWN,
    "damaged": "{",
    "formula": evidence(blocks=[{"code": "1", "printed": ["a formula"]}], launches=[]),
    "old": evidence(blocks=BLOCKS, stale=True, borrowed=True),
}
EMBEDS = ".. lab-output:: bucket-xray 2\n\n:measured:`bucket-xray.count`\n"  # in the page of the lab "silent"

# -- programs and the kit -----------------------------------------------------------------------------

OLD = """\"\"\"Stage 1.\"\"\"

import a


LIMIT = 1


def f():
    one()
    two()
    three()
    four()
    five()
    six()
"""
NEW = OLD.replace("Stage 1", "Stage 2").replace("import a", "import a\nimport b").replace("= 1", "= 2")
NEW = NEW.replace("six()", "seven()")
KIT = '''
import a_module_that_nobody_has


class LaunchError(RuntimeError):
    """A rank failed."""


class Link:
    """A link, see :func:`ddplab.launcher.launch`.

    Attributes:
        ranks: how many.
    """

    def seconds(self, nbytes: float) -> float:
        """Return how long it takes."""


def launch(worker: Callable[..., Any], *, timeout_s: float = 1.5) -> list[Any]:
    """Run it.

    Args:
        worker: any callable.

    Raises:
        LaunchError: a rank raised.
    """
'''
# -- the book -----------------------------------------------------------------------------------------

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
PAGES = {
    "figure": "```{lab-figure} bucket-xray 2\n:alt: Boxes in rows.\n:name: the-rows\nWhat to *see*.\n```\n"
    "\nSee {numref}`the-rows`.",
    "output": "```{lab-output} bucket-xray 1\n```\n\n```{lab-output} bucket-xray 2\n```\n",
    "lines": "```{lab-output} bucket-xray 1\n:lines: 1,5\n```\n",
    "shows": "```{lab-output} again 2\n```\n",
    "measures": "{measured}`again.count`",
    **{f"code{n}": f"```{{lab-code}} bucket-xray\n{options}\n```\n" for n, (options, _) in enumerate(CODE)},
    "sections": SECTIONS,
    "old": "```{lab-output} old 1\n```\n",
    "right": ", ".join(f"{{measured}}`bucket-xray.{value}`" for value in ("best_cap", "best_cap:.2f", "name")),
    **{f"diff{name}": f"```{{code-diff}} ../gallery/old.py ../gallery/{name}.py\n```\n" for name in ("new", "later")},
    "kit": "```{eval-rst}"
    + "".join(f"\n.. kit:: ddplab.{name}" for name in ("launch", "LaunchError", "Link\n   :members: seconds\n```")),
}
WRONG = [  # what a page asks for, and the answer to it
    ("{lab-output} bucket-xry 1", "no such lab; did you mean 'bucket-xray'?"),
    ("{lab-output} other 1", "no such lab; choose one of bucket-xray, silent, again, damaged, formula, old"),
    ("{lab-output} bucket-xray 3", "there is no printed block '3'; the lab has 2, counted from 1"),
    ("{lab-output} bucket-xray 0", "there is no printed block '0'"),
    ("{lab-output} bucket-xray", "say which printed block to show; the lab has 2"),
    ("{lab-output} bucket-xray one", "there is no printed block 'one'"),
    ("{lab-output} bucket-xray 2\n:lines: 4", ":lines: 4 is outside the block; its last line is 1"),
    ("{lab-output} bucket-xray 2\n:lines: a", ":lines: a is not a list of lines; write it like 1-3,7"),
    ("{lab-output} silent 1", "plot_02_silent.base.json is missing"),
    ("{lab-figure} bucket-xray 1", "add :alt: and say what the figure shows"),
    ("{lab-figure} bucket-xray 3\n:alt: x", "there is no figure '3'; the lab has 2, counted from 1"),
    ("{lab-figure} bucket-xray 1\n:alt: x\n- list", "begin with a paragraph that says what to see"),
    ("{lab-code} bucket-xray", "give either :function: or :start-after: and :end-before:"),
    ("{lab-code} bucket-xray\n:function: wrker", "bucket_xray.py does not define 'wrker'; did you mean 'worker'?"),
    ("{lab-code} bucket-xray\n:start-after: nowhere", "plot_01_bucket_xray.py has no line with 'nowhere'"),
    ("{lab-code} bucket-xray\n:start-after: torch\n:end-before: A lab", "has no line with 'A lab' below line"),
    (
        "{measured}`bucket-xray.worst`",
        "the lab bucket-xray did not record 'worst'; choose one of best_cap, count, name",
    ),
    ("{measured}`sweep.count`", "there is no lab 'sweep'; choose one of bucket-xray, silent, again, damaged"),
    ("{measured}`bucket-xray`", "write lab-id.name"),
    ("{measured}`bucket-xray.count:.2x`", "measured 'bucket-xray.count:.2x': "),
    ("{measured}`damaged.count`", "is damaged"),
    ("{measured}`silent.count`", "is missing"),
    ("{code-diff} ../gallery/old.py ../gallery/nowhere.py", "../gallery/nowhere.py cannot be compared: [Errno 2]"),
    ("{code-diff} ../gallery/old.py ../gallery/old.py", "do not differ"),
    ("{code-diff} ../gallery/old.py ../gallery/broken.py", "broken.py cannot be compared: '(' was never closed"),
    ("{code-diff} ../gallery/old.py ../gallery/binary.py", "binary.py cannot be compared: 'utf-8' codec can't decode"),
    ("{eval-rst}\n.. kit:: ddplab.lunch", "kit: the kit has no ddplab.lunch"),
    ("{step-explorer}\n:example: moon\n\nCaption.", "there is no example 'moon'; choose one of ethernet, laptop"),
    ("{step-explorer}", "step-explorer: write below it what to see; it becomes the caption"),
    ("{step-explorer}\n- A list.", "step-explorer: begin with a paragraph that says what to see"),
    ("{ring-stepper}\n:ranks: 9\n\nCaption.", "ring-stepper: ranks must be 2 to 5; got 9"),
    ("{interval-calculator}\n:nodes: 0\n\nCaption.", "all but restart-s must be more than 0"),
    ("{interval-calculator}\n:save-s: soon\n\nCaption.", "could not convert string to float"),
    ("{math}\n\\frac{a", "mathematics cannot be drawn … \\frac{a"),
]
ONCE = [message for _, message in WRONG[-2:]]  # docutils and the writer say it, which do not see the page again
PAGES |= {f"wrong{n}": text if "}`" in text else f"```{text}\n```\n" for n, (text, _) in enumerate(WRONG)}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """The book, built three times; before the third, a lab was run again, and a program changed. Then with marks."""
    made = TinyBook(tmp_path_factory.mktemp("book"))
    made.write("conf.py", CONF)
    for number, (name, shown) in enumerate(LABS.items(), 1):
        made.write(f"gallery/internals/plot_{number:02}_{name}.py", "# runs nothing: a formula\n" * (name == "formula"))
        page = f"handbook/labs/internals/plot_{number:02}_{name}"
        made.write(f"{page}.rst", f":orphan:\n\nA lab\n=====\n\n{EMBEDS * (name == 'silent')}")
        if shown:
            made.write(f"{page}.base.json", shown if isinstance(shown, str) else json.dumps(shown))
    made.write("gallery/internals/plot_01_bucket_xray.py", SCRIPT)
    for number in (1, 2):
        made.write(f"gallery/editions/here/labs/bucket-xray-{number}.svg", SVG)
    for name, text in {"old": OLD, "new": NEW, "later": NEW, "broken": "def f(a\n"}.items():
        made.write(f"gallery/{name}.py", text)
    made.write("gallery/binary.py", "").write_bytes(b"\xff\xfe")
    made.write("gallery/ddplab/__init__.py", "from .launcher import launch, LaunchError, Link\n")
    made.write("gallery/ddplab/launcher.py", KIT)
    made.chapters(**PAGES)
    builds = [made.build(), made.build()]
    made.rewrite("handbook/labs/internals/plot_03_again.base.json", "indented", "new")
    made.rewrite("handbook/labs/internals/plot_03_again.base.json", '"value": 12', '"value": 13')
    made.rewrite("gallery/later.py", "seven", "eight")
    builds.append(made.build())
    made.rewrite("conf.py", '"lanes"', '"lanes", "section_stamps"')
    return [*builds, made.build(out="marked")]


@pytest.fixture(scope="module")
def built(builds: list[Built]) -> Built:
    return builds[0]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_request_is_told_where_and_what_there_is(builds: list[Built], number: int) -> None:
    text, message = WRONG[number]
    line = 4 if "kit::" in text or "soon" in text else 3
    subject = "{} '{}': ".format(*re.findall("[a-z-]+", text)[:2]) if text.startswith("{lab-") else ""
    for built in builds[: 1 if message in ONCE else 2]:  # the second build would find the document up to date
        about = built.about(f"wrong{number}")
        assert f"/wrong{number}.md:{line}: WARNING: {subject}" in about
        assert all(part in about for part in message.split(" … "))


def test_nothing_else_is_complained_about_and_what_was_run_again_is_read_again(builds: list[Built]) -> None:
    for built in builds:
        assert not built.error
        assert all("/wrong" in line for line in built.warnings.splitlines()), built.warnings
    _, again, changed, _ = builds
    assert {name for name in again.written if "wrong" not in name} == {"index"}
    assert {name for name in changed.written if "wrong" not in name} == {"index", "shows", "measures", "difflater"}
    assert changed.page("shows").select_one(".lab-output pre").get_text().strip() == "new"
    assert changed.page("measures").select_one(".measured").get_text() == "13"
    assert "+    eight()" in changed.text("difflater")


def test_a_figure_has_its_number_caption_alternative_text_and_a_stamp_that_leads_to_the_lab(built: Built) -> None:
    figure = built.page("figure").figure
    assert figure.img["alt"] == "Boxes in rows."
    assert (built.folder / figure.img["src"]).read_text() == SVG
    assert figure.figcaption.em.get_text() == "see"
    assert built.page("figure").select_one("a.reference.internal:has(.std-numref)").get_text() == "Fig. 1"
    stamp = figure.select_one("p.stamp")
    assert stamp.get_text() == "2 ranks · gloo · Some CPU, 2 cores · torch 2.13.0 · 2026-11-21"
    assert stamp.a["href"] == "labs/internals/plot_01_bucket_xray.html"


def test_an_output_is_the_block_as_printed_with_lanes_coloured(built: Built) -> None:
    first, second = built.page("output").select(".lab-output")
    lanes = [(lane["class"][1], lane.pre.get_text()) for lane in first.select(".lane")]
    assert lanes == [("r0", "loss 1 <b>"), ("r1", "loss 2")]
    assert [block.get_text().strip() for block in first.select(".highlight pre")] == ["before", "after"]
    assert second.select_one("pre").get_text().startswith("  indented")
    assert "2 ranks" in first.select_one("p.stamp").get_text()
    assert built.page("lines").select_one(".lab-output pre").get_text().split() == ["before", "after"]


@pytest.mark.parametrize("number", range(len(CODE)))
def test_code_comes_from_the_script(built: Built, number: int) -> None:
    shown = built.page(f"code{number}").select_one(".lab-code")
    assert shown.pre.get_text().rstrip("\n") == CODE[number][1]
    assert shown.select_one(".stamp a")["href"] == "labs/internals/plot_01_bucket_xray.html"


@pytest.mark.core
def test_prose_shows_the_value_and_where_it_comes_from(built: Built) -> None:
    spans = built.page("right").select("span.measured")
    assert [span.get_text() for span in spans] == ["24.6\N{NO-BREAK SPACE}MiB", "24.57\N{NO-BREAK SPACE}MiB", "gloo"]
    assert spans[0]["title"] == f"lab bucket-xray: {stamp_text(SHOWN)}"
    lab = built.page("labs/internals/plot_02_silent")
    assert lab.select_one(".measured").get_text() == "12", "it works in a lab, too"
    assert "indented" in lab.get_text()


@pytest.mark.parametrize(
    ("value", "unit", "spec", "text"),
    [
        (24.5678, "ms", None, "24.6 ms"),
        (2.0, "ms", None, "2.00 ms"),
        (9.999, "ms", None, "10.0 ms"),
        (123.4, "", None, "123"),
        (123456.7, "B", None, "123,457 B"),
        (0.01234, "s", None, "0.0123 s"),
        (1.234e-7, "", None, "1.23 × 10⁻⁷"),
        (0.0, "", None, "0"),
        (-2.5, "ms", None, "−2.50 ms"),
        (12, "", None, "12"),
        (2097152, "B", None, "2,097,152 B"),
        ("two-fold", "", None, "two-fold"),
        (24.5678, "MiB", ".1f", "24.6 MiB"),
    ],
)
def test_three_significant_digits_and_a_unit_that_stays_with_them(value, unit, spec, text) -> None:
    assert value_text(value, unit, spec) == text.replace(" ", "\N{NO-BREAK SPACE}")


CPU, DAY = "Some CPU, 2 cores", "torch 2.13.0 · 2026-11-21"
ON_NCCL = {**LAUNCH, "backend": "nccl", "gpu": "H200", "gpus": 8, "nccl": "2.29.7"}


@pytest.mark.parametrize(
    ("changes", "stamp"),
    [
        ({}, f"2 ranks · gloo · {CPU} · {DAY}"),
        ({"stale": True}, f"2 ranks · gloo · {CPU} · {DAY} · stale: the code changed since"),
        ({"launches": []}, f"{CPU} · 2026-11-21"),
        ({"launches": [{**LAUNCH, "ranks": 1}]}, f"1 rank · gloo · {CPU} · {DAY}"),
        ({"launches": [{**LAUNCH, "ranks": n} for n in (4, 2, 3, 2)]}, f"2, 3 and 4 ranks · gloo · {CPU} · {DAY}"),
        ({"launches": [ON_NCCL]}, "2 ranks · nccl · 8 × H200 · torch 2.13.0 · NCCL 2.29.7 · 2026-11-21"),
        ({"borrowed": True}, f"2 ranks · gloo · {CPU} · {DAY} · from the edition base"),
    ],
)
def test_the_stamp_says_ranks_backend_hardware_versions_and_date(changes: dict, stamp: str) -> None:
    assert stamp_text(evidence(**changes)) == stamp


def test_the_book_has_one_mark_for_a_section_with_all_that_it_shows(builds: list[Built]) -> None:
    page = builds[3].page("sections")
    found = {mark.parent["id"]: mark for mark in page.select(".section-stamp")}
    assert list(found) == ["the-sections-chapter", "one", "three", "four"]
    for name in ("the-sections-chapter", "one"):
        mark = found[name]
        assert mark.summary.get_text() == "Ran on 2 ranks · gloo · 2026-11-21"
        assert mark.p.get_text() == f"2 ranks · gloo · {CPU} · {DAY}: bucket-xray"
        assert mark.a["href"] == "labs/internals/plot_01_bucket_xray.html"
    assert not found["one"].find_next_sibling()  # behind all that the section has
    assert found["three"].get_text().strip() == "Code: bucket-xray"
    assert found["four"].get_text().strip() == "Nothing ran, a formula: formula"
    assert not page.select(".lab-output .stamp, figure .stamp, .lab-code .stamp")
    says = builds[3].page("old").select_one(".section-stamp summary").get_text()
    assert says == "Ran on 2 ranks · gloo · 2026-11-21 · from the edition base · stale: the code changed since"


def test_of_two_programs_only_what_changed_is_shown_without_headers_docstrings_and_imports(built: Built) -> None:
    shown = built.page("diffnew").find("pre").get_text().rstrip()
    assert shown == "-LIMIT = 1\n+LIMIT = 2\n\n\n⋯\n     four()\n     five()\n-    six()\n+    seven()"
    assert "from old.py to new.py" in built.page("diffnew").find(class_="stamp").get_text()


def test_what_the_kit_exports_is_shown_with_its_types_and_what_it_raises(built: Built) -> None:
    page = built.page("kit")
    (launch,) = page.select("dt#ddplab\\.launch")
    assert "launch(worker: Callable[..., Any], *, timeout_s: float = 1.5) → list[Any]" in launch.get_text()
    text = launch.find_next("dd")
    assert "worker – any callable." in text.get_text()
    assert text.select_one("a[href='#ddplab.LaunchError']"), "what it raises is a link"
    assert "ranks – how many." in page.select_one("dt#ddplab\\.Link").find_next("dd").get_text()
    assert page.select_one("dt#ddplab\\.Link\\.seconds")
