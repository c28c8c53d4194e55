"""Measured numbers: looked up in what a lab recorded, shown with unit and origin."""

import json
import os
from pathlib import Path

import pytest
from tiny_book import LAUNCH, TinyBook, evidence

from _ext.embed.measured import value_text

VALUES = {
    "best_cap": {"value": 24.5678, "unit": "MiB"},
    "count": {"value": 12, "unit": ""},
    "name": {"value": "gloo", "unit": ""},
}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    made = TinyBook(tmp_path, monkeypatch)
    made.write("gallery/internals/plot_05_bucket_sweep.py", "")
    record(made, VALUES)
    return made


def record(book: TinyBook, values: dict) -> Path:
    kept = evidence(launches=[{**LAUNCH, "backend": "nccl", "gpu": "H200", "gpus": 2}], values=values)
    return book.write("handbook/labs/internals/plot_05_bucket_sweep.base.json", json.dumps(kept))


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


def test_prose_shows_the_value_and_where_it_comes_from(book: TinyBook) -> None:
    book.chapters(
        first="{measured}`bucket-sweep.best_cap`, {measured}`bucket-sweep.best_cap:.2f`, {measured}`bucket-sweep.name`."
    )
    built = book.build()
    assert built.complaints == ""
    spans = built.page("first").select("span.measured")
    assert [span.get_text() for span in spans] == ["24.6\N{NO-BREAK SPACE}MiB", "24.57\N{NO-BREAK SPACE}MiB", "gloo"]
    assert spans[0]["title"] == ("lab bucket-sweep: 2 ranks · nccl · 2 × H200 · torch 2.13.0 · 2026-11-21")


def test_it_works_in_a_lab_too(book: TinyBook) -> None:
    book.write(
        "handbook/labs/internals/plot_05_bucket_sweep.rst",
        ":orphan:\n\nA lab\n=====\n\n:measured:`bucket-sweep.count`\n",
    )
    book.chapters(first="Text.")
    assert book.build().page("labs/internals/plot_05_bucket_sweep").select_one(".measured").get_text() == "12"


def test_the_page_follows_the_evidence(book: TinyBook) -> None:
    book.chapters(first="{measured}`bucket-sweep.count`", second="Text.")
    book.build()
    path = record(book, {"count": {"value": 13, "unit": ""}})
    later = path.stat().st_mtime + 10
    os.utime(path, (later, later))
    built = book.build()
    assert built.page("first").select_one(".measured").get_text() == "13"
    assert "second" not in built.written


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("bucket-sweep.worst", "the lab bucket-sweep did not record 'worst'; choose one of best_cap, count, name"),
        ("sweep.count", "there is no lab 'sweep'; choose one of bucket-sweep"),
        ("bucket-sweep", "write lab-id.name"),
        ("bucket-sweep.count:.2x", "measured 'bucket-sweep.count:.2x': "),
    ],
)
def test_what_is_not_there_is_reported_in_every_build(book: TinyBook, target: str, says: str) -> None:
    book.chapters(first=f"Text.\n\n{{measured}}`{target}`")
    for _ in range(2):
        warnings = book.build().warnings
        assert "first.md:5: WARNING: measured" in warnings
        assert says in warnings


def test_evidence_that_is_missing_or_damaged_is_reported(book: TinyBook) -> None:
    book.chapters(first="{measured}`bucket-sweep.count`")
    path = book.write("handbook/labs/internals/plot_05_bucket_sweep.base.json", "{")
    assert "is damaged" in book.build().warnings
    path.unlink()
    assert "is missing" in book.build().warnings
