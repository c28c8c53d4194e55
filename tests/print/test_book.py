"""The real book, printed and read back: nothing of the chapters and labs is lost or clipped on the way."""

import ast
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from printed import Printed, flat

from _ext.cards.card_copies import kept_chapters
from _ext.cards.cards import cards_of_the_book
from ddplab.recording.edition_folder import Edition
from ddplab.recording.script import lab_id
from ledger import watch
from tools import PATIENCE_S, ROOT, need_pango

pytestmark = pytest.mark.apart

PARTS = ("understand", "run", "repair", "fast", "keep", "interviews")


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
