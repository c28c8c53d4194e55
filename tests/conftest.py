"""The built forms of the book, each brought up to date once for all tests that read it."""

from pathlib import Path

import pytest

from tools import ROOT, make, need_pango


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built web pages."""
    make("html")
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def pdf() -> Path:
    """The folder of the built PDFs."""
    need_pango()
    make("pdf")
    return ROOT / "_build" / "pdf"


@pytest.fixture(scope="session")
def epub() -> Path:
    """The built EPUB."""
    make("epub")
    return ROOT / "_build" / "epub" / "ddp-handbook.epub"


@pytest.fixture(scope="session")
def slides() -> Path:
    """The folder of the built decks."""
    need_pango()
    make("slides")
    return ROOT / "_build" / "slides"
