"""The address that `ddplab diagnose` prints opens: in the published book, in the built one, or the entry's file."""

from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from ddplab.cli import main
from ddplab.cli.diagnose import plain
from ddplab.cli.handbook import address
from ddplab.diagnose import entries

PAGE = "repair/errors/gloo-timeout.html"


def opened(where: str) -> str:
    return Path(url2pathname(urlparse(where).path)).read_text(encoding="utf-8")


def test_the_published_book_comes_first_then_the_built_one_then_the_file_of_the_entry(tmp_path):
    assert address(PAGE, "https://book.test/ddp/", tmp_path) == f"https://book.test/ddp/{PAGE}"
    assert entries()["gloo-timeout"].title in opened(address(PAGE, "", tmp_path))
    assert address("repair/diagnose.html", "", tmp_path) == ""  # of an answer without an entry, nothing to open
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text("built", encoding="utf-8")
    assert opened(address(PAGE, "", tmp_path)) == "built"


def test_what_the_command_prints_opens(tmp_path, capsys):
    log = tmp_path / "a.log"
    log.write_text(entries()["gloo-timeout"].samples[0], encoding="utf-8")
    assert main(["diagnose", str(log)]) == 0
    where = capsys.readouterr().out.partition("Handbook: ")[2].strip()
    assert where.startswith("https://") or ("gloo-timeout" in where and opened(where))


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("the one *before* it, **first**", "the one before it, first"),
        ("`a * b` and `*args`, 2*3*4", "`a * b` and `*args`, 2*3*4"),
        ("*before* it, `a*b*c`, **all** of 2 * 3 * 4", "before it, `a*b*c`, all of 2 * 3 * 4"),
    ],
)
def test_emphasis_is_not_shown_raw_and_stars_of_code_are(markdown, text):
    assert plain(markdown) == text
