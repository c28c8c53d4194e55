"""A library or a data file that is not as the book's code assumes ends the build with one line that says what to do."""

import json
import re
from importlib import metadata
from pathlib import Path

import pydyf
import pytest
from sphinx.errors import SphinxParallelError
from sphinx.highlighting import PygmentsBridge
from sphinx.util.parallel import ParallelTasks
from tinyhtml5 import inputstream

from _ext.building.patches import (
    drop_links_out_of,
    end_on_failed_pages,
    expressions_are_kept,
    page_references_listed_once,
)
from _ext.print.print_tree import parse
from _ext.problems import BuildError, read_toml
from tiny_book import TinyBook, evidence


def refusal(library: str, assumption: str) -> str:
    """The message as a pattern."""
    version = metadata.version(library)
    return rf"^{library} {version} is not supported: {assumption}[^\n]*; run: pip install {library}=={version}$"


def test_highlighting_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PygmentsBridge, "html_formatter", object)
    book = TinyBook(tmp_path)
    book.write("conf.py", "extensions = ['myst_parser', '_ext.building.patches']\n")
    book.chapters(first="Text.")
    assert re.search(refusal("Sphinx", r"PygmentsBridge\.html_formatter is not"), book.build().error)


def test_a_data_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text('[sections]\nhang = "stuck"\nhang = "waits"\n')
    with pytest.raises(BuildError, match=r"^search\.toml: .*line 3"):
        read_toml(file)
    file.write_bytes(b'hang = "\xff"\n')
    with pytest.raises(BuildError, match=r"^search\.toml: .*byte 0xff"):
        read_toml(file)


def broken(number: int) -> None:
    """What a process does that writes pages; all but the first end well."""
    if number == 0:
        raise ValueError("no such page")


def test_a_page_that_fails_while_others_are_started_ends_the_build() -> None:
    end_on_failed_pages()
    tasks = ParallelTasks(2)
    with pytest.raises(SphinxParallelError, match="no such page"):  # noqa: PT012  wherever Sphinx learns of it first
        for number in range(200):
            tasks.add_task(broken, number)
        tasks.join()


def test_the_expressions_with_which_a_page_is_read_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputstream, "characters_until_regex", {})
    expressions_are_kept()
    (paragraph,) = parse('<p class="a-b">x &amp; y</p>')
    assert (paragraph.attrib, paragraph.text) == ({"class": "a-b"}, "x & y")
    kept = inputstream.characters_until_regex
    assert len(kept) > 3
    assert not any(isinstance(characters, re.Pattern) for characters, _ in kept)
    monkeypatch.setattr(inputstream, "characters_until_regex", None)
    with pytest.raises(
        BuildError, match=refusal("tinyhtml5", r"inputstream\.characters_until_regex is not a dictionary")
    ):
        expressions_are_kept()


def test_lab_pages_without_the_marks_of_sphinx_gallery(tmp_path: Path) -> None:
    book = TinyBook(tmp_path)
    book.write("conf.py", (tmp_path / "conf.py").read_text() + "extensions.append('_ext.embed.lab_page')\n")
    book.write("gallery/internals/plot_05_bucket_xray.py", '"""Title\n\n:Level: core, 5 minutes\n"""\n')
    page = ":orphan:\n\nA lab\n=====\n\n.. code-block:: Python\n\n    print(1)\n"
    book.write("handbook/labs/internals/plot_05_bucket_xray.rst", page)
    book.write("handbook/labs/internals/plot_05_bucket_xray.base.json", json.dumps(evidence(blocks=[{"code": "1"}])))
    book.chapters(first="Text.")
    assert re.search(refusal("sphinx-gallery", "no comment 'GENERATED FROM"), book.build().error)


def test_pdfs_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydyf.PDF, "page_references", lambda self: [])
    with (
        pytest.raises(BuildError, match=refusal("pydyf", r"PDF\.page_references is not")),
        page_references_listed_once(),
    ):
        pass

    class Page:
        anchors, links = (), [("internal", "somewhere")]

    with pytest.raises(BuildError, match=refusal("weasyprint", "a link of a page is not")):
        drop_links_out_of([Page()])
