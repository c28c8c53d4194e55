"""A build writes what an edit concerns, and nothing without one: a small book with all extensions of conf.py."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_book import TinyBook, evidence
from tools import PATIENCE_S, ROOT

CONF = f"""
exec(open({str(ROOT / "conf.py")!r}).read(), dict(globals(), __file__=__file__), globals())
sphinx_gallery_conf |= {{"examples_dirs": ["../gallery/short"], "gallery_dirs": ["labs/short"]}}
labs_default_edition = "mine"
"""
LAB = '''"""
What two ranks hold
===================

Do they hold the same?

:Level: core, 5 minutes
"""

# %%
# Say it aloud
# ------------
#
# They do.
print("3 and 3")
'''
CHAPTER = """
(one)=
# The first chapter

There are {measured}`two-ranks.ranks`, and $a^2 + b^2$ as {cite:t}`someone`.

```{claim} sun
:holds: gloo
The sun shines.
```

```{lab-output} two-ranks 1
```

(picture)=
## A table

```{table} What there is
:name: table-one

| A |
|---|
| b |
```

```{interview} who-shines
:question: Who shines?
:level: core
:evidence: claim:sun section:one
The sun.
```

```{quiz} how-many
:question: How many?
- [x] one
- [ ] two
  : That is one more.
+++ why
There is one.
```
"""
PAGES = {
    "index": "# Book\n\n```{book-map}\n```\n\n```{downloads}\n```\n\n```{progress}\n```\n"
    "\n```{toctree}\n:caption: I. Parts\n:numbered:\n\nunderstand/one\nunderstand/two\n```\n"
    "\n```{toctree}\n:caption: Reference\n\nreference/claims\nreference/bibliography\ninterviews/drill\nrepair/errors\n"
    "repair/tools\nlabs/short/index\n```\n",
    "understand/one": CHAPTER,
    "understand/two": "(two)=\n# The second chapter\n\nSee {ref}`picture` and {numref}`table-one`.\n\n"
    "```{code-block} python\nprint(1)\n```\n",
    "reference/claims": "# Claims\n\n```{claims-list}\n```\n",
    "reference/bibliography": "# Sources\n\n```{bibliography}\n```\n",
    "interviews/drill": "# Drill\n\n```{drill}\n```\n\n```{questions} understand\n:answers:\n```\n"
    "\n```{said-in-labs}\n```\n",
    "repair/errors": "(errors)=\n# Errors\n\n```{error-index}\n```\n",
    "repair/tools": "# Tools\n\n```{diagnose}\nNothing runs.\n```\n",
}
RECORDED = {
    "values": {"ranks": {"value": 2, "unit": "ranks"}},
    "blocks": [{"code": "0", "printed": ["3 and 3"]}],
    "read": [],
    "seconds": 1.0,
}


class Book(TinyBook):
    """A copy of what builds the book, with a few pages."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for part in ("gallery/ddplab", "handbook/_ext", "handbook/_static", "handbook/_templates"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("constraints.txt", "LICENSE-TEXT", "tests/claims/proof.py"):
            shutil.copy(ROOT / part, root / part)
        for entry in (root / "gallery/ddplab/diagnose/entries").glob("*.toml"):
            if not entry.name.startswith("amp-unscale-twice"):
                entry.unlink()
        test = 'from proof import proves\n\n\n@proves("sun")\ndef test_sun():\n    assert True\n'
        self.write("tests/claims/test_sun.py", test)
        self.write("conf.py", CONF)
        self.write("gallery/short/GALLERY_HEADER.rst", "Short\n=====\n\nAll of them.\n")
        self.write("gallery/short/plot_01_two_ranks.py", LAB)
        self.write("gallery/editions/mine/labs/two-ranks.json", json.dumps(evidence(**RECORDED)))
        self.write("handbook/references.bib", "@book{someone, author={Some One}, title={All}, year={2026}}\n")
        for name, text in PAGES.items():
            self.write(f"handbook/{name}.md", text)

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text(encoding="utf-8")
        assert old in text
        self.write(path, text.replace(old, new, 1))

    def make(self, builder: str = "html") -> str:
        """Build it in a process of its own, as `make` does; return what Sphinx said."""
        options = ["-c", ".", "-d", "_build/doctrees/book", "-j", "2", "-b", builder, "handbook", f"_build/{builder}"]
        environment = {**os.environ, "PYTHONPATH": str(self.root / "gallery"), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "sphinx", *options]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def pages(self) -> dict[str, int]:
        out = self.root / "_build/html"
        return {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in out.rglob("*.html")}

    def rewritten(self, builder: str = "html") -> list[str]:
        """The pages that a build of the web book writes, by their names."""
        before = self.pages()
        said = self.make(builder)
        assert "configuration has changed" not in said
        after = self.pages()
        assert before.keys() <= after.keys()
        return sorted(name.removesuffix(".html") for name, stamp in after.items() if before.get(name) != stamp)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """The book, built once; each test leaves it built."""
    made = Book(tmp_path_factory.mktemp("book"))
    made.make()
    return made


ONE, TWO, RAN = "handbook/understand/one.md", "handbook/understand/two.md", "gallery/editions/mine/labs/two-ranks.json"


@pytest.mark.parametrize(
    ("path", "old", "new", "pages"),
    [
        (TWO, "See ", "Do see ", ["understand/two"]),
        (ONE, "There are", "One more line.\n\nThere are", ["understand/one"]),  # what only moves is the same to others
        (ONE, "The sun shines.", "The sun shines on.", ["reference/claims", "understand/one"]),
        (ONE, "Who shines?", "Who shines today?", ["interviews/drill", "understand/one"]),
        (RAN, "3 and 3", "4 and 4", ["interviews/drill", "labs/short/plot_01_two_ranks", "understand/one"]),
    ],
)
def test_what_shows_an_edit_is_written_and_nothing_else(book: Book, path: str, old: str, new: str, pages: list) -> None:
    """Nor what an edit before this one concerned."""
    book.edit(path, old, new)
    assert book.rewritten() == pages
    for page in pages[path == RAN :]:  # the drill takes other words of a lab
        assert new.splitlines()[0].strip() in (book.root / f"_build/html/{page}.html").read_text()


def test_nothing_changed_writes_no_page(book: Book) -> None:
    assert book.rewritten() == []


def test_a_new_title_is_on_every_page(book: Book) -> None:
    book.edit("handbook/understand/two.md", "# The second chapter", "# The last chapter")
    assert set(PAGES) <= {*book.rewritten()}
    assert "The last chapter" in (book.root / "_build/html/understand/one.html").read_text()
    assert book.rewritten() == []


def test_another_form_in_between_changes_nothing(book: Book) -> None:
    assert book.rewritten("epub") == []
    assert book.rewritten() == ["index"]  # which offers the EPUB from now on
    assert book.rewritten() == []


def test_pages_that_a_stopped_build_has_not_written_are_written_by_the_next(book: Book) -> None:
    page = book.root / "_build/html/understand/one.html"
    (page.parents[1] / ".unfinished").write_text("understand/one")
    assert book.rewritten() == ["understand/one"]
    assert book.rewritten() == []
