"""The real book, printed and read back: nothing of the chapters and labs is lost or clipped on the way."""

import ast
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from pikepdf import NameTree, Pdf

from _ext.cards.cards import cards_of_the_book
from _ext.forms.card_copies import kept_chapters
from ddplab.recording.edition import Edition
from ddplab.recording.script import lab_id
from ledger import watch
from tools import PATIENCE_S, ROOT, need, need_pango

pytestmark = pytest.mark.apart

PARTS = ("understand", "run", "repair", "fast", "keep", "interviews")
QUOTES = str.maketrans("“”‘’", "\"\"''")
FLAT = re.compile(r"[\s\N{SOFT HYPHEN}]+")


def flat(text: str) -> str:
    """Text without white space and typographer's quotes: where a line breaks does not matter here."""
    return FLAT.sub("", text.translate(QUOTES))


@dataclass(frozen=True)
class Printed:
    """A PDF of the real book."""

    path: Path

    @cached_property
    def reader(self) -> Pdf:
        return Pdf.open(self.path)

    @cached_property
    def pages(self) -> list[str]:
        """The text of each page, in the order in which it is read."""
        return self._ask("pdftotext", "-raw").split("\f")

    @cached_property
    def text(self) -> str:
        """The whole text, with running heads and page numbers, and without: they may stand inside of a listing."""
        running = "".join("\n".join(text.splitlines()[2:]) for text in self.pages)
        return flat(running) + flat("".join(self.pages))

    @cached_property
    def words(self) -> list[list[tuple[float, float, float, float, str]]]:
        """Of each page the boxes (left, top, right, bottom in points) and texts of its words."""
        one = re.compile(r'<word xMin="(-?[\d.]+)" yMin="([^"]*)" xMax="([\d.]+)" yMax="([^"]*)">([^<]*)<')
        pages = self._ask("pdftotext", "-bbox").split("<page ")[1:]
        return [[(*map(float, box), text) for *box, text in one.findall(page)] for page in pages]

    @cached_property
    def labels(self) -> list[str]:
        """The number that stands on each page."""
        return [page.label for page in self.reader.pages]

    @cached_property
    def places(self) -> dict[str, int]:
        """The page (from 0) of each place that a link can lead to."""
        return {name: self.place(to) for name, to in NameTree(self.reader.Root.Names.Dests).items()}

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {page.obj.objgen: number for number, page in enumerate(self.reader.pages)}

    def place(self, destination) -> int:
        """The page (from 0) of what a link or a bookmark leads to."""
        return self._numbers[destination[0].objgen]

    @cached_property
    def contents(self) -> list[tuple[str, int, str]]:
        """Of each line of the contents the title, the page (from 1) that its link leads to, and its number."""
        found = []
        for page, text in zip(self.reader.pages[1:20], self.pages[1:20], strict=False):
            if "·····" not in flat(text):
                continue
            names = list(dict.fromkeys(str(link.Dest) for link in _links(page)))
            lines = re.findall(r"^(.+?)[\s·]{4,}(\d+)$", text, re.MULTILINE)
            assert len(lines) == len(names)
            for (title, number), name in zip(lines, names, strict=True):
                found.append((re.sub(r"^Lab\s\d+\s*", "", title), self.places[name] + 1, number))
        return found

    def bookmarks(self) -> Iterator[tuple[int, str, int]]:
        """Depth, title and page (from 1) of each bookmark."""

        def walk(items: list, depth: int) -> Iterator[tuple[int, str, int]]:
            for item in items:
                yield depth, item.title, self.place(item.destination) + 1
                yield from walk(item.children, depth + 1)

        return walk(self.reader.open_outline().root, 0)

    def references(self) -> Iterator[tuple[int, str, str]]:
        """Of each "(p. N)" that is a link: its page (from 1), N, and the number on the page that it leads to."""
        for number, page in enumerate(self.reader.pages, 1):
            height = float(page.mediabox[3])
            for link in _links(page):
                left, top, right, bottom = (float(edge) for edge in link.Rect)
                top, bottom = sorted((height - top, height - bottom))
                inside = [
                    text
                    for x, y, end, foot, text in self.words[number - 1]
                    if x >= left - 1 and end <= right + 1 and top < (y + foot) / 2 < bottom
                ]
                if said := re.fullmatch(r"\(?(?:· lab on )?p\.\s?(\d+)\)?", " ".join(inside)):
                    yield number, said[1], self.labels[self.places[str(link.Dest)]]

    def _ask(self, tool: str, *options: str) -> str:
        command = [need(tool, "poppler-utils"), *options, str(self.path), *(["-"] if tool == "pdftotext" else [])]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def check(self) -> None:
        """What holds of every PDF of the book."""
        listed = 0
        for title, page, number in self.contents:
            assert self.labels[page - 1] == number, title
            assert flat(title) in flat(self.pages[page - 1]), title
            listed += 1
        assert listed >= 1
        marks = list(self.bookmarks())
        assert {depth for depth, _, _ in marks} <= {0, 1}
        for title, page, _ in self.contents:  # in the order of the bookmarks, which lead to the headings themselves
            while marks and flat(marks[0][1]) != flat(title):
                marks.pop(0)
            assert not marks or marks[0][2] == page, title
            marks = marks or list(self.bookmarks())
        wrong = [(page, said, leads) for page, said, leads in self.references() if said != leads]
        assert not wrong, wrong[:10]
        images = self._ask("pdfimages", "-list")
        assert len(images.splitlines()) == 2, images  # the two lines of its heading: all figures are vectors
        width = float(self.reader.pages[0].mediabox[2])
        words = [word for page in self.words for word in page]
        assert len(words) > 500
        outside = [word for left, _, right, _, word in words if left < 36 or right > width - 36]
        assert not outside, outside[:10]

    def sparse(self) -> list[int]:
        """Pages (from 1) that are filled to less than a fifth, but for those before a chapter."""
        height = float(self.reader.pages[0].mediabox[3])
        starts = {page for depth, _, page in self.bookmarks() if depth == 0}
        found = []
        for number, words in enumerate(self.words, 1):
            lowest = max((foot for _, _, _, foot, _ in words if foot < height - 50), default=0.0)
            if lowest < 0.2 * height and not {number + 1, number + 2} & starts and number < len(self.words):
                found.append(number)
        return found


def _links(page) -> list:
    """The links of a page that lead to another one."""
    return [link for link in page.get("/Annots", []) if "/Dest" in link]


def printed_alone(docname: str, out: Path) -> Printed:
    """One chapter alone; it is rendered from what was read for the web pages."""
    need_pango()
    watch.note({f"_build/html/{docname}.html"})  # which says what the program prints
    command = [sys.executable, "-m", "sphinx", "-c", ".", "-d", "_build/doctrees/book", "-q", "-W"]
    command += ["-D", f"bookpdf_only={docname}", "-b", "bookpdf", "handbook", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in out.iterdir()] == [f"{docname.replace('/', '-')}.pdf"]
    return Printed(next(out.iterdir()))


@pytest.fixture(scope="module")
def handbook(pdf) -> Printed:
    return Printed(pdf / "ddp-handbook.pdf")


@pytest.fixture(scope="module")
def companion(pdf) -> Printed:
    return Printed(pdf / "ddp-labs.pdf")


def code_lines(script: Path) -> list[str]:
    """The lines of a gallery script that its page shows as code: not those of blocks that only draw."""
    text = script.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    lines = text.splitlines()[docstring.end_lineno :]
    shown, prose, draws = [], False, False
    for line in lines:
        prose = line.startswith("# %%") or (prose and line.startswith("#"))
        draws = not prose and (draws or line == "# drawing")
        if not prose and not draws and line.strip():
            shown.append(line)
    return shown


def without_imports(lines: list[str]) -> Iterator[str]:
    """What the companion prints of them: it leaves out the imports of a script, not those inside of functions."""
    inside = False
    for line in lines:
        if inside or re.match(r"(import|from) \S", line):
            inside = not line.endswith(")") and (inside or line.endswith("("))
        else:
            yield line


def check_cards(cards, text: str) -> None:
    """Each card's question, and the first words of its answer or of why, are printed."""
    for card in cards:
        answer = card.parts["answer" if card.kind == "interview" else "why"].text
        for passage in (card.question, answer):
            words = itertools.takewhile(str.isalpha, passage.split())
            assert flat(" ".join(list(words)[:6])) in text, card.id


def test_a_chapter_has_its_cards_its_figures_and_right_page_numbers(html, tmp_path):
    chapter = printed_alone("understand/idea", tmp_path)
    chapter.check()
    cards = [card for card in cards_of_the_book().values() if card.path.stem == "idea"]
    assert len(cards) >= 5
    check_cards(cards, chapter.text)
    assert str(chapter.reader.docinfo["/Title"]).endswith("The DDP Handbook")


def test_the_handbook_has_every_card_and_right_page_numbers(handbook):
    handbook.check()
    cards = cards_of_the_book()
    assert len([card for card in cards.values() if card.kind == "interview"]) >= 12
    assert len([card for card in cards.values() if card.kind == "quiz"]) >= 5
    check_cards(cards.values(), handbook.text)
    assert handbook.sparse() == []


def test_what_the_handbook_prints_of_a_lab_is_not_printed_twice(handbook, companion):
    said = flat("mlp               24  12.0      default         2   1 11")
    assert said in handbook.text
    assert said not in companion.text
    assert "".join(companion.pages).count("What it printed is in the handbook") > 100


def test_the_companion_has_every_line_of_every_lab_that_teaches_and_right_page_numbers(companion):
    companion.check()
    default = Edition(ROOT / "gallery" / "editions" / "cpu-gloo")
    for script in sorted(ROOT.glob("gallery/*/plot_*.py")):
        text = script.read_text(encoding="utf-8")
        if default.lab(lab_id(script)).get("needs"):  # it waits for a GPU: print has no code of it
            assert flat(f"Drawing code: {script.relative_to(ROOT)}") not in companion.text, script.name
            continue
        missing = [line for line in without_imports(code_lines(script)) if flat(line) not in companion.text]
        if ":Level: evidence" in text:  # the code of such a lab stays on the web
            missing = [] if flat(str(script.relative_to(ROOT))) in companion.text else ["its path"]
        assert not missing, f"{script.name}: {missing[:3]}"
        drawings = text.count("\n# drawing\n")
        named = flat(f"Drawing code: {script.relative_to(ROOT)}")
        assert flat("".join(companion.pages)).count(named) == drawings, script.name


@pytest.mark.parametrize("part", PARTS)
def test_each_chapter_alone_has_the_page_numbers_of_the_handbook(pdf, part):
    chapters = [*pdf.glob(f"{part}-*.pdf")]
    assert len(chapters) > 2
    for path in chapters:
        Printed(path).check()


def test_each_chapter_alone_has_its_drill(pdf):
    stems = {path.stem for path in pdf.glob("*.pdf")}
    assert {"understand-idea", "run-launch", "keep-save"} <= stems
    assert {stem.partition("-")[0] for stem in stems} == {"ddp", *PARTS}
    asked = json.loads(kept_chapters().read_text(encoding="utf-8"))
    drill = [card for card in cards_of_the_book().values() if asked[card.id][0] == "fast/buckets"]
    assert {card.path.stem for card in drill} == {"buckets", "practice"}
    alone = Printed(pdf / "fast-buckets.pdf")
    check_cards(drill, alone.text)
    assert any("The DDP Handbook" in page and "16. Buckets" in page for page in alone.pages)


def test_the_sheet_of_formulas_is_two_pages(html, tmp_path):
    sheet = printed_alone("interviews/sheet", tmp_path)
    numbered = [label for label in sheet.labels if label.isdigit()]
    assert len(numbered) == 2
    assert flat("FSDP, ZeRO") in flat(sheet.pages[-2])  # its last words
