"""What changed between two programs, as a page shows it."""

import os
from pathlib import Path

import pytest
from tiny_book import TinyBook

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
NEW = (
    OLD.replace("Stage 1", "Stage 2")
    .replace("import a", "import a\nimport b")
    .replace("= 1", "= 2")
    .replace("six()", "seven()")
)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    made = TinyBook(tmp_path, monkeypatch)
    made.write("gallery/old.py", OLD)
    made.write("gallery/new.py", NEW)
    return made


def shown(book: TinyBook) -> list[str]:
    pre = book.build().page("stages").find("pre")
    return pre.get_text().rstrip().splitlines()


def test_only_what_changed_stands_on_the_page_without_headers_docstrings_and_imports(book: TinyBook) -> None:
    book.chapters(stages="```{code-diff} ../gallery/old.py ../gallery/new.py\n```\n")
    assert shown(book) == [
        "-LIMIT = 1",
        "+LIMIT = 2",
        "",
        "",
        "⋯",
        "     four()",
        "     five()",
        "-    six()",
        "+    seven()",
    ]
    assert "from old.py to new.py" in book.build().page("stages").find(class_="stamp").get_text()


def test_a_changed_program_changes_the_page(book: TinyBook) -> None:
    book.chapters(stages="```{code-diff} ../gallery/old.py ../gallery/new.py\n```\n")
    assert "+    seven()" in shown(book)
    changed = book.write("gallery/new.py", NEW.replace("seven", "eight"))
    later = changed.stat().st_mtime + 10  # the page was rendered within the same tick of the file system's clock
    os.utime(changed, (later, later))
    assert "+    eight()" in shown(book)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("../gallery/nowhere.py", "../gallery/nowhere.py cannot be compared: [Errno 2]"),
        ("../gallery/old.py", "do not differ"),
        ("../gallery/broken.py", "broken.py cannot be compared: '(' was never closed"),
        ("../gallery/binary.py", "binary.py cannot be compared: 'utf-8' codec can't decode"),
    ],
)
def test_what_cannot_be_compared_is_named_with_its_line(book: TinyBook, new: str, words: str) -> None:
    book.write("gallery/broken.py", "def f(a\n")
    book.write("gallery/binary.py", "").write_bytes(b"\xff\xfe")
    book.chapters(stages=f"```{{code-diff}} ../gallery/old.py {new}\n```\n")
    complaints = book.build().complaints
    assert words in complaints
    assert "stages.md:3" in complaints
