"""A PDF, read back: its words and where they stand, and where its contents, bookmarks and references lead."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pikepdf import NameTree, Pdf

from tools import need

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
    def size(self) -> tuple[float, float]:
        """Width and height of its first page, in points."""
        _, _, width, height = map(float, self.reader.pages[0].mediabox)
        return width, height

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

    def check(self, listed: int = 1, words: int = 500) -> None:
        """What holds of every PDF of the book: of contents, of which so many lines are at least listed, and of words.

        Contents and bookmarks lead to where headings are, references to the page that they name; figures are vectors.
        """
        assert len(self.contents) >= listed
        for title, page, number in self.contents:
            assert self.labels[page - 1] == number, title
            assert flat(title) in flat(self.pages[page - 1]), title
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
        width, _ = self.size
        said = [word for page in self.words for word in page]
        assert len(said) > words
        outside = [word for left, _, right, _, word in said if left < 36 or right > width - 36]
        assert not outside, outside[:10]

    def sparse(self) -> list[int]:
        """Pages (from 1) that are filled to less than a fifth, but for those before a chapter."""
        _, height = self.size
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
