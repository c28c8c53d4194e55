"""The sample book, built once per session in each form."""

import pytest
from sample_book import CONF, FIRST, INDEX, LAB, LABS, LICENCE, LIST, MANIFEST, PAGE, SECOND, THIRD, Book, Built, plot


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    source = tmp_path_factory.mktemp("book") / "source"
    for folder in ("labs", "more"):
        (source / folder).mkdir(parents=True)
    files = {"conf.py": CONF, "manifest.json": MANIFEST, "index.md": INDEX, "first.md": FIRST, "second.md": SECOND}
    files |= {"labs/index.md": LABS, "labs/lab_one.md": LAB, "plot.svg": plot()}
    files |= {"third.md": THIRD, "more/index.md": LIST, "more/page.md": PAGE, "licence.txt": LICENCE}
    for name, text in files.items():
        (source / name).write_text(text, encoding="utf-8")
    return Book(source)


def _build(book: Book, builder: str, folder: str) -> Built:
    out = book.source.parent / folder
    done = book.build(builder, out)
    assert done.returncode == 0, done.stderr
    return Built(out, done.stderr)


@pytest.fixture(scope="session")
def sample_pdfs(book: Book) -> Built:
    return _build(book, "bookpdf", "pdf")


@pytest.fixture(scope="session")
def sample_html(book: Book) -> Built:
    return _build(book, "html", "html")


@pytest.fixture(scope="session")
def sample_epub(book: Book) -> Built:
    return _build(book, "epub", "epub")
