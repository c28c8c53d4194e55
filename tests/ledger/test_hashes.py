"""The hash of a file: what two builds of the same sources may differ in leaves it alone, anything else changes it."""

import io
import zipfile
from pathlib import Path

import genanki
import pytest

from ledger.hashes import digest

PAGE = """<meta name="description" content="2 ranks · gloo · AMD EPYC, 2 cores Run it: a.py, 9 s here · dow..." />
<link rel="stylesheet" href="_static/page.css?v=0a1b2c3d"><p>Since 2020-03-28 the default is 25. One host, 8 cores.</p>
<p class="stamp">2 ranks · gloo · AMD EPYC, 2 cores · torch 2.13.0 · 2026-11-21: <a href="x.html">one-lab</a></p>
<p class="stamp">2 ranks · nccl · 2 × NVIDIA H100 80GB · torch 2.13.0 · NCCL 2.28.9 · 2026-11-21</p>
<summary>Ran on 2 ranks · gloo · 2026-11-21 to 2026-11-27</summary><code>python a.py</code>, 9 s here
<span class="measured" title="lab one-lab: AMD EPYC, 2 cores · 2026-11-21">12.5 ms</span><pre>rank 0, 12 s here</pre>
<p class="lab-card-facts">core, 15 minutes · 9 s · 2 ranks · gloo</p><p>on a CPU (AMD EPYC, 2 cores); none on a GPU</p>
<p>In the edition cpu-gloo (AMD EPYC, 2 cores, torch 2.13.0, 2026-11-21): 3 passed.</p><td><p>2026-11-21</p></td>
<td><p>Commit</p></td><td><p>7c5723bc90f6</p></td><a title="5.1 MiB, 2026-11-27" href="book.pdf">book.pdf</a>"""


def packed(*entries: tuple[str, str | bytes], year: int = 2026) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in entries:
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return file.getvalue()


def book(word: str, year: int) -> bytes:
    package = f'<meta property="dcterms:modified">{year}-11-27T22:00:00Z</meta><dc:date>{year}-11-27</dc:date>'
    page = f"<p>{word}</p><p>2 ranks · gloo · {year}-11-21</p>"
    return packed(("content.opf", package), ("idea.xhtml", page), year=year)


def flashcards(answer: str, when_s: float, looks: str = "{{Answer}}") -> bytes:
    sides = [{"name": "Question"}, {"name": "Answer"}]
    model = genanki.Model(1, "model", sides, [{"name": "card", "qfmt": "{{Question}}", "afmt": looks}])
    deck = genanki.Deck(2, "deck")
    deck.add_note(genanki.Note(model, ["Why?", answer], guid="one"))
    file = io.BytesIO()
    genanki.Package(deck).write_to_file(file, timestamp=when_s)
    return file.getvalue()


def hashes(folder: Path, name: str, *contents: str | bytes) -> list[str]:
    """Of a file of that name, with one content after the other."""
    found = []
    for content in contents:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        found.append(digest(folder / name))
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2026-11-21", "2027-01-03"),
        (" to 2026-11-27", ""),
        ("MiB, 2026-11-27", "MiB, 2026-11-28"),
        ("AMD EPYC, 2 cores", "Intel(R) Xeon(R) 8480+, 64 cores"),
        ("2 × NVIDIA H100 80GB", "1 × NVIDIA H200"),
        ("a.py, 9 s here · dow", "a.py, 10 s here · do"),
        ("</code>, 9 s", "</code>, 10 s"),
        ("· 9 s ·", "· 10 s ·"),
        ("7c5723bc90f6", "0123456789ab"),
        ("0a1b2c3d", "4e5f6a7b"),
    ],
)
def test_a_page_recorded_or_built_again_keeps_its_hash(tmp_path, old, new):
    assert old in PAGE
    before, after = hashes(tmp_path, "page.html", PAGE, PAGE.replace(old, new))
    assert before == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("default", "limit"),
        ("2020-03-28", "2020-03-29"),
        ("8 cores", "9 cores"),
        ("page.css", "book.css"),
        ("12.5 ms", "12.6 ms"),
        ("rank 0, 12 s", "rank 0, 13 s"),
        ("3 passed", "2 passed"),
        ("one-lab</a>", "other-lab</a>"),
        ("core, 15 minutes", "core, 20 minutes"),
        ('class="stamp">2 ranks · gloo', 'class="stamp">3 ranks · gloo'),
        ("NCCL 2.28.9", "NCCL 2.28.8"),
        ("5.1 MiB", "5.2 MiB"),
    ],
)
def test_what_a_reader_sees_changes_the_hash_of_a_page(tmp_path, old, new):
    assert old in PAGE
    before, after = hashes(tmp_path, "page.html", PAGE, PAGE.replace(old, new))
    assert before != after


@pytest.mark.parametrize(
    ("name", "first", "again", "others"),
    [
        ("book.pdf", b"%PDF one page", b"%PDF one page", [b"%PDF another page"]),
        ("book.epub", book("idea", 2026), book("idea", 2027), [book("ideas", 2026)]),
        (
            "cards.apkg",
            flashcards("So.", 1.8e9),
            flashcards("So.", 1.9e9),
            [flashcards("No.", 1.8e9), flashcards("So.", 1.8e9, looks="<b>{{Answer}}</b>")],
        ),
        (
            "kit.zip",
            packed(("a", "1"), ("b", "2")),
            packed(("a", "1"), ("b", "2"), year=2027),
            [packed(("a", "1"), ("b", "3")), packed(("a", "1"), ("c", "2")), packed(("b", "2"), ("a", "1"))],
        ),
    ],
)
def test_any_other_file_is_known_by_what_is_in_it(tmp_path, name, first, again, others):
    before, after, *changed = hashes(tmp_path, name, first, again, *others)
    assert before == after
    assert before not in changed


def test_a_folder_is_its_names_and_what_is_not_there_is_missing(tmp_path):
    (tmp_path / "a").touch()
    before = digest(tmp_path)
    (tmp_path / "a").write_text("one")
    assert digest(tmp_path) == before
    (tmp_path / "b").touch()
    assert digest(tmp_path) != before
    assert digest(tmp_path / "c") == "missing"
