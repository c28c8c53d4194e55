"""The real book, printed and read back: nothing of the chapters and labs is lost or clipped on the way."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from pypdf import PdfReader

from tools import need

ROOT = Path(__file__).parents[2]
QUOTES = str.maketrans("“”‘’", "\"\"''")
FLAT = re.compile(r"[\s\N{SOFT HYPHEN}]+")


def flat(text: str) -> str:
    """Text without white space and typographer's quotes: where a line breaks does not matter here."""
    return FLAT.sub("", text.translate(QUOTES))


@pytest.fixture(scope="module")
def book(pdf) -> PdfReader:
    return PdfReader(pdf / "ddp-handbook.pdf")


@pytest.fixture(scope="module")
def texts(pdf) -> list[str]:
    """The text of each page, in the order in which it is read."""
    pdftotext = need("pdftotext", "poppler-utils")
    command = [pdftotext, "-raw", str(pdf / "ddp-handbook.pdf"), "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\f")


@pytest.fixture(scope="module")
def printed(texts) -> str:
    """The whole text, without running heads and page numbers, which may stand in the middle of a listing."""
    return flat("".join("\n".join(text.splitlines()[2:]) for text in texts))


def code_lines(script: Path) -> list[str]:
    """The lines of a gallery script that its page shows as code."""
    text = script.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    lines = text.splitlines()[docstring.end_lineno :]
    shown, prose = [], False
    for line in lines:
        prose = line.startswith("# %%") or (prose and line.startswith("#"))
        if not prose and line.strip():
            shown.append(line)
    return shown


def test_every_line_of_every_lab_is_printed(printed, texts):
    everything = printed + flat("".join(texts))
    for script in sorted(ROOT.glob("gallery/*/plot_*.py")):
        missing = [line for line in code_lines(script) if flat(line) not in everything]
        assert not missing, f"{script.name}: {missing[:3]}"


def test_every_card_is_printed_with_its_answer(texts):
    import sys

    sys.path.insert(0, str(ROOT / "handbook" / "_ext"))
    from card_source import read_cards

    everything = flat("".join(texts))
    cards = read_cards(ROOT / "handbook")
    assert len([card for card in cards.values() if card.kind == "interview"]) >= 12
    assert len([card for card in cards.values() if card.kind == "quiz"]) >= 5
    for card in cards.values():
        words = re.sub(r"[`*]|\{\w+\}|\$[^$]*\$", "", card.question).split()
        assert flat("".join(words[:6])) in everything, card.id


def test_contents_and_bookmarks_agree_on_pages(book, texts):
    contents = flat("".join(texts[1:4]))
    seen = 0
    for item in book.outline:
        if isinstance(item, list) or item.title == "Contents":
            continue
        page = book.get_destination_page_number(item) + 1
        assert flat(item.title) in flat(texts[page - 1])
        seen += re.search(rf"{re.escape(flat(item.title))}[·.]*{page}", contents) is not None
    assert seen >= 4


def test_figures_are_vectors(pdf):
    pdfimages = need("pdfimages", "poppler-utils")  # pypdf takes minutes over as many pages
    listed = subprocess.run(
        [pdfimages, "-list", str(pdf / "ddp-handbook.pdf")], capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 2, listed.stdout  # the two lines of its heading


def test_no_word_leaves_its_page(pdf):
    pdftotext = need("pdftotext", "poppler-utils")
    text = subprocess.run(
        [pdftotext, "-bbox", str(pdf / "ddp-handbook.pdf"), "-"], capture_output=True, text=True, check=True
    ).stdout
    width = float(re.search(r'<page width="([\d.]+)"', text)[1])
    words = re.findall(r'<word xMin="(-?[\d.]+)" yMin="[^"]*" xMax="([\d.]+)" yMax="[^"]*">([^<]*)<', text)
    assert len(words) > 20_000
    outside = [word for left, right, word in words if float(left) < 36 or float(right) > width - 36]
    assert not outside, outside[:10]


def test_the_chapter_alone_is_printed_too(pdf):
    reader = PdfReader(pdf / "internals.pdf")
    assert flat("How DDP works internally") in flat(reader.pages[0].extract_text())
    assert reader.outline
