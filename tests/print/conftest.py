"""The sample book, built once in each form, whichever process asks first."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_book import printed, sample

from _ext.forms import weasy
from tools import built_once


@pytest.fixture(scope="session", autouse=True)
def _fonts_end_with_the_tests() -> Iterator[None]:
    """Fonts that are freed as Python itself ends crash the process, behind tests that all passed."""
    yield
    weasy._styles.cache_clear()


@pytest.fixture(scope="session")
def sample_pdfs() -> Path:
    """The folder of the PDFs; what the build warned of is in ``warnings`` beside it."""

    def build(folder: Path) -> None:
        done = printed(sample(folder))
        assert done.returncode == 0, done.stderr
        (folder / "_build" / "warnings").write_text(done.stderr, encoding="utf-8")

    return built_once("sample-pdf", build) / "_build" / "pdf"


@pytest.fixture(scope="session")
def sample_html() -> Path:
    """The folder of the web pages."""
    return _built("html")


@pytest.fixture(scope="session")
def sample_epub() -> Path:
    """The folder of the EPUB."""
    return _built("epub")


def _built(form: str) -> Path:
    def build(folder: Path) -> None:
        built = sample(folder).build(form)
        assert not built.error, built.complaints

    return built_once(f"sample-{form}", build) / "_build" / form
