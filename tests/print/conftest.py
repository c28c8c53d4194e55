"""The sample book, built once in each form, whichever process asks first."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_book import sample

from _ext.print import weasy
from tools import PATIENCE_S, built_once


@pytest.fixture(scope="session", autouse=True)
def _fonts_end_with_the_tests() -> Iterator[None]:
    """Fonts that are freed as Python itself ends crash the process, behind tests that all passed."""
    yield
    weasy._styles.cache_clear()


@pytest.fixture(scope="session")
def sample_pdfs() -> Path:
    """The folder of the PDFs, made in a process of its own; what it warned of is in ``warnings`` beside it."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "sphinx", "-q", "-c", ".", "-d", "_build/doctrees", "-b", "bookpdf"]
        command += ["handbook", "_build/pdf"]
        where = sample(folder).root
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=PATIENCE_S)
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
