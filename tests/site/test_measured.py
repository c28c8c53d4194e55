"""Measured numbers: looked up in what a lab recorded, shown with unit and origin."""

import json

import pytest

from _ext.embed.measured import value_text
from tiny_book import LAUNCH, Built, TinyBook, evidence

VALUES = {
    "best_cap": {"value": 24.5678, "unit": "MiB"},
    "count": {"value": 12, "unit": ""},
    "name": {"value": "gloo", "unit": ""},
}


WRONG = [
    ("bucket-sweep.worst", "the lab bucket-sweep did not record 'worst'; choose one of best_cap, count, name"),
    ("sweep.count", "there is no lab 'sweep'; choose one of bucket-sweep, again, damaged, missing"),
    ("bucket-sweep", "write lab-id.name"),
    ("bucket-sweep.count:.2x", "measured 'bucket-sweep.count:.2x': "),
    ("damaged.count", "is damaged"),
    ("missing.count", "is missing"),
]
PAGES = {
    "right": "{measured}`bucket-sweep.best_cap`, {measured}`bucket-sweep.best_cap:.2f`, {measured}`bucket-sweep.name`.",
    "follows": "{measured}`again.count`",
    **{f"wrong{n}": f"Text.\n\n{{measured}}`{target}`" for n, (target, _) in enumerate(WRONG)},
}
LAB = ":orphan:\n\nA lab\n=====\n\n:measured:`bucket-sweep.count`\n"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """A page for each case, built three times; before the third, a lab was run again."""
    made = TinyBook(tmp_path_factory.mktemp("book"))
    for number, lab in enumerate(("bucket_sweep", "again", "damaged", "missing"), 5):
        made.write(f"gallery/internals/plot_{number:02}_{lab}.py", "")
    kept = json.dumps(evidence(launches=[{**LAUNCH, "backend": "nccl", "gpu": "H200", "gpus": 2}], values=VALUES))
    folder = "handbook/labs/internals"
    for name, text in (("05_bucket_sweep", kept), ("06_again", kept), ("07_damaged", "{")):
        made.write(f"{folder}/plot_{name}.base.json", text)
    made.write(f"{folder}/plot_05_bucket_sweep.rst", LAB)
    made.chapters(**PAGES)
    builds = [made.build(), made.build()]
    made.rewrite(f"{folder}/plot_06_again.base.json", '"value": 12', '"value": 13')
    return [*builds, made.build()]


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


@pytest.mark.core
def test_prose_shows_the_value_and_where_it_comes_from(builds: list[Built]) -> None:
    assert not builds[0].error
    assert all("/wrong" in line for line in builds[0].warnings.splitlines())
    spans = builds[0].page("right").select("span.measured")
    assert [span.get_text() for span in spans] == ["24.6\N{NO-BREAK SPACE}MiB", "24.57\N{NO-BREAK SPACE}MiB", "gloo"]
    assert spans[0]["title"] == ("lab bucket-sweep: 2 ranks · nccl · 2 × H200 · torch 2.13.0 · 2026-11-21")


def test_it_works_in_a_lab_too(builds: list[Built]) -> None:
    assert builds[0].page("labs/internals/plot_05_bucket_sweep").select_one(".measured").get_text() == "12"


def test_the_page_follows_the_evidence(builds: list[Built]) -> None:
    assert builds[2].page("follows").select_one(".measured").get_text() == "13"
    assert "right" not in builds[2].written


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_not_there_is_reported_in_every_build(builds: list[Built], number: int) -> None:
    for built in builds[:2]:
        assert f"wrong{number}.md:5: WARNING: measured" in built.about(f"wrong{number}")
        assert WRONG[number][1] in built.about(f"wrong{number}")
