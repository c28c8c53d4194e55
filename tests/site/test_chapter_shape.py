"""A chapter's shape: what a reader can rely on in each, counted from the built pages."""

import pickle
import re
from pathlib import Path

import pytest
import torch
from docutils import nodes
from docutils.nodes import document

from _ext.cards.card_page import card
from _ext.cards.cards import cards_of_the_book
from _ext.embed.figures import RANK_COLORS
from _ext.navigation.reading_time import prose_words

ROOT = Path(__file__).parents[2]
# "(understand|run|…)/…", as it stands in conf.py: the documents that say how long they take
CHAPTERS = re.compile(
    re.search(r'^reading_time_documents = r"(.*)"', (ROOT / "conf.py").read_text(encoding="utf-8"), re.M)[1]
)
# The house's budget, as words of prose; the one that builds DDP has a larger one.
MOST_WORDS, MORE = 4500, {"understand/from-scratch": 5000}


@pytest.fixture(scope="module")
def chapters(html: Path) -> dict[str, document]:
    """All chapters, as Sphinx has read them."""
    folder = html.parent / "doctrees" / "book"
    paths = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.glob("*/*.doctree")}
    names = [name for name in paths if CHAPTERS.fullmatch(name) and (ROOT / f"handbook/{name}.md").exists()]
    return {name: pickle.loads(paths[name].read_bytes()) for name in sorted(names)}


def test_words_of_prose(chapters):
    """Without code, output, tables, figures and cards, as the reading time counts them."""
    words = {name: prose_words(chapter) for name, chapter in chapters.items()}
    over = [
        f"{name}: {n} words, at most {MORE.get(name, MOST_WORDS)}"
        for name, n in words.items()
        if n > MORE.get(name, MOST_WORDS)
    ]
    assert len(words) > 15
    assert not over, "\n".join(over)


def outcomes(chapter: document) -> int:
    """How many lines follow "After this chapter you can"."""
    for paragraph in chapter.findall(nodes.paragraph):
        if paragraph.astext().startswith("After this chapter you can"):
            after = paragraph.next_node(nodes.bullet_list, descend=False, siblings=True)
            return len(after.children) if after else 0
    return 0


def quizzes(chapter: document) -> int:
    """How many questions stand under the last heading; the labs' cards follow by themselves."""
    sections = [one for one in chapter.findall(nodes.section) if "labs-of-this-chapter" not in one["ids"]]
    return sum(1 for _ in sections[-1].findall(card))


def test_each_chapter_says_what_it_is_for_and_ends_with_questions(chapters):
    """Three outcomes, how long it takes, and three to five questions at its end."""
    found = {}
    for name, chapter in chapters.items():
        if next(chapter.findall(nodes.title)).astext().startswith("Appendix"):
            continue  # it delights who wants it, and is asked for nothing
        times = sum("reading-time" in paragraph["classes"] for paragraph in chapter.findall(nodes.paragraph))
        shape = outcomes(chapter), times, quizzes(chapter)
        if shape[:2] != (3, 1) or not 3 <= shape[2] <= 5:
            found[name] = "{} outcomes, {} reading times, {} questions".format(*shape)
    assert not found


def test_the_right_option_of_a_quiz_is_the_longest_in_at_most_a_third(html):
    """Who always takes the longest would otherwise know half of the book."""
    quizzes = [one for one in cards_of_the_book().values() if one.kind == "quiz"]
    longest = []
    for quiz in quizzes:
        lengths = {True: 0, False: 0}
        for option in quiz.options:
            seen = len(re.sub(r"[`$*\\]", "", option.text))
            lengths[option.right] = max(lengths[option.right], seen)
        if lengths[True] > lengths[False]:
            longest.append(quiz.id)
    assert len(quizzes) > 90
    assert len(longest) <= len(quizzes) / 3, longest


def test_a_card_is_answered_in_one_breath(html):
    """At most 110 words, 45 seconds aloud; and those asked most show a weak answer, too, and what gives it away."""
    cards = [one for one in cards_of_the_book().values() if one.kind == "interview"]
    long = {one.id: words for one in cards if (words := len(one.parts["answer"].text.split())) > 110}
    assert not long
    assert len(cards) >= 180
    weak = [one for one in cards if one.weak]
    assert len(weak) >= 40
    assert [one.id for one in weak if not one.flags] == []


def test_each_chapter_opens_with_a_drawing_that_a_phone_can_show(chapters):
    """520 units wide, so that a text of 16 is 11 px on a phone; in the colours that follow light and dark."""
    drawn = {
        name
        for name, chapter in chapters.items()
        if any("opening" in figure["classes"] for figure in chapter.findall(nodes.figure))
    }
    assert {name for name in chapters if "appendix" not in name} <= drawn
    colors = {*RANK_COLORS, "#1f2328", "#8c959f", "#e4e7eb", "#7a3b8f"}
    for path in (ROOT / "handbook/openings").glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        assert 'viewBox="0 0 520 ' in svg, path
        assert min(map(float, re.findall(r'font-size="([\d.]+)"', svg))) >= 16, path
        assert set(re.findall(r"#[0-9a-f]{6}", svg)) <= colors, path


def test_the_bits_of_the_drawn_sums_are_those_of_float32():
    """0.1, 0.3 and 0.4 in the two orders that the drawing of three ranks shows."""
    svg = (ROOT / "handbook/openings/three-ranks.svg").read_text(encoding="utf-8")
    drawn = "".join(re.findall(r">([01])</text>", svg))
    a, b, c = (torch.tensor(number) for number in (0.1, 0.3, 0.4))
    sums = [(a + b) + c, (b + c) + a]
    assert drawn == "".join(f"{one.view(torch.int32).item():032b}"[-10:] for one in sums)
