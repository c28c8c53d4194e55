"""The sample book, built once in each form, whichever process asks first."""

from pathlib import Path

import pytest
from sample_book import printed, sample

from tools import built_once


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
