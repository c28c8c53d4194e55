"""Interview cards and quizzes: one source, and how it looks on the web, in print, and in a deck."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from _ext.cards.card_source import Card, Passage, parse_card
from _ext.cards.cards import cards_of_the_book
from tiny_book import Built, TinyBook, evidence

INTERVIEW = """
:::{interview} bucket-order
:question: Why does DDP fill its buckets in *reverse* order: because of `backward`?
:level: core
:evidence: lab:bucket-xray section:some-section

Spoken **answer**.

+++ weak
Because it is *faster*.

+++ flags
- Says "asynchronous",
  and stops there.
- Knows no bucket.

+++ depth
Deeper, with code:

```python
+++ not a part
```

+++ follow-ups
- **And then?** This.
:::
"""
QUIZ = """
:::{quiz} no-sync-where
:question: Where must `no_sync` be entered?
:ordered:

- [ ] around `backward()` only,
  and nowhere else
  : It comes *too late*,
  whatever you write.
- [x] around both
- [ ] around `optimizer.step()`
  : It sends nothing.

+++ why
The forward decides.
:::
"""


# A quiz with two right options, and what a card names that is not there.
SEVERAL = QUIZ.replace("no-sync-where", "several").replace("[ ] around `opt", "[x] around `opt")
SEVERAL = SEVERAL.replace("  : It sends nothing.\n", "")
MISSING = {
    "lab:no-lab": "evidence lab:no-lab is not a lab; choose one of bucket-xray",
    "claim:no-claim": "there is no claim 'no-claim'",
    "section:no-label": "no-label",
}
UNSHOWN = INTERVIEW.lstrip().replace("lab:bucket-xray section:some-section", " ".join(MISSING))
REASONS = ["It comes too late, whatever you write.", "It sends nothing."]
WRONG_CARDS = [
    (INTERVIEW.replace("Spoken **answer**.", ""), 3, "has no answer"),
    (INTERVIEW.replace(":level: core\n", ""), 3, "unknown level ''"),
    (INTERVIEW.replace("core", "expert"), 3, "unknown level 'expert'; take one of core, deep, staff"),
    (re.sub(":question: .*", ":question:", INTERVIEW), 3, "has no question"),
    (INTERVIEW.replace("+++ follow-ups", "+++ followups"), 25, "unknown or repeated part '+++ followups'"),
    (INTERVIEW.replace("- Says", "Says"), 14, "'+++ flags' that are not a list"),
    (INTERVIEW.replace("lab:bucket-xray ", ""), 3, "has nothing that shows it; add a lab:ID, claim:ID or cite:KEY"),
    (INTERVIEW.replace("bucket-order", "Bucket_order"), 3, "needs an id of small letters"),
    (INTERVIEW.replace("lab:bucket-xray", "bucket-xray"), 3, "evidence 'bucket-xray'; write lab:ID"),
    (QUIZ.replace("[x]", "[ ]"), 3, "has no right option"),
    (QUIZ[: QUIZ.index("- [x]")] + QUIZ[QUIZ.index("\n+++") :], 3, "at least two options"),
    (QUIZ.replace("+++ why\nThe forward decides.\n", ""), 3, "does not say why"),
    (QUIZ.replace("The forward decides.\n", ""), 15, "nothing below '+++ why'"),
    (QUIZ.replace("- [x] around", "- around"), 11, "a line that is not an option: '- around both'"),
    (QUIZ.replace("  : It sends nothing.\n", ""), 12, "why 'around `optimizer.step()`' is wrong; add"),
]
PAGES = {
    "good": f"(some-section)=\n## A section\n{INTERVIEW}\n{QUIZ}",
    "several": SEVERAL,
    "boxes": f"::::{{note}}\n{QUIZ}\n::::\n\n````md\n{INTERVIEW}\n````\n".replace("no-sync-where", "in-a-box"),
    "missing": UNSHOWN.replace("bucket-order", "unshown"),
    **{f"wrong{n}": text.lstrip("\n") for n, (text, _, _) in enumerate(WRONG_CARDS)},
}


def with_a_lab(made: TinyBook) -> TinyBook:
    made.write("gallery/internals/plot_05_bucket_xray.py", "")
    made.write("handbook/labs/internals/plot_05_bucket_xray.rst", ":orphan:\n\nBucket X-ray\n============\n")
    return made


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> TinyBook:
    """A page for each case."""
    made = with_a_lab(TinyBook(tmp_path_factory.mktemp("book")))
    made.chapters(**PAGES)
    return made


@pytest.fixture(scope="module")
def builds(book: TinyBook) -> list[Built]:
    """The book, built twice for the web, and for an EPUB."""
    return [book.build(), book.build(), book.build("epub")]


@pytest.fixture(scope="module")
def cards(book: TinyBook, builds: list[Built]) -> dict[str, Card]:
    """The cards of the book."""
    with book.taken_for_the_repository():
        return cards_of_the_book()


def test_on_the_web_a_card_is_a_fold(builds: list[Built]) -> None:
    built = builds[0]
    assert not built.error
    assert all(re.search("/(wrong|missing)", line) for line in built.warnings.splitlines()), built.warnings
    card = built.page("good").select_one("details.interview#card-bucket-order")
    assert card["data-level"] == "core"
    assert card.summary.get_text() == "Why does DDP fill its buckets in reverse order: because of backward? core"
    assert card.summary.select_one("em, code")
    assert card.select_one(".card-answer strong")
    assert card.select_one(".card-weak em").get_text() == "faster"
    assert len(card.select(".card-flags li")) == 2
    assert "+++ not a part" in card.select_one(".card-depth pre").get_text()
    assert card.select_one(".card-follow-ups li strong").get_text() == "And then?"
    links = {link.get_text(): link["href"] for link in card.select(".card-evidence a")}
    assert links == {"Bucket X-ray": "labs/internals/plot_05_bucket_xray.html", "A section": "#some-section"}


def test_a_card_does_not_point_to_a_lab_that_no_edition_has_run(tmp_path: Path) -> None:
    made = with_a_lab(TinyBook(tmp_path))
    made.chapters(one=PAGES["good"])
    shown = evidence(waiting=True, needs="needs a GPU")
    made.write("handbook/labs/internals/plot_05_bucket_xray.base.json", json.dumps(shown))
    built = made.build()
    assert built.complaints == ""
    assert [link.get_text() for link in built.page("one").select(".card-evidence a")] == ["A section"]


def test_on_the_web_a_quiz_has_one_choice_and_a_folded_answer(builds: list[Built]) -> None:
    quiz = builds[0].page("good").select_one("fieldset.quiz")
    assert [box["type"] for box in quiz.select("input")] == ["radio"] * 3
    assert {box["name"] for box in quiz.select("input")} == {"card-no-sync-where"}
    assert [label["class"] for label in quiz.select("label")] == [["quiz-wrong"], ["quiz-right"], ["quiz-wrong"]]
    assert quiz.select_one("label").get_text().strip() == "around backward() only, and nowhere else"
    assert quiz.legend.get_text() == "Where must no_sync be entered?"
    assert quiz.select_one("details .card-label").get_text() == "Answer: B"
    assert "The forward decides" in quiz.select_one("details").get_text()
    assert [reason.get_text() for reason in quiz.select("li > .quiz-reason")] == REASONS
    assert quiz.select_one("li:nth-of-type(2) > .quiz-reason") is None, "the right option needs none"
    assert not quiz.select(".quiz-reasons"), "the web shows each reason at its option"


def test_a_card_gives_its_weak_answer_and_its_red_flags(cards: dict[str, Card]) -> None:
    card, quiz = cards["bucket-order"], cards["no-sync-where"]
    assert card.weak == "Because it is *faster*."
    assert card.flags == ['Says "asynchronous", and stops there.', "Knows no bucket."]
    assert (quiz.weak, quiz.flags) == ("", [])


def test_options_stand_in_an_order_that_only_the_id_decides() -> None:
    body = QUIZ[QUIZ.index("- [") : QUIZ.rindex(":::")]

    def quiz(number: int, body: str = body) -> Card:
        return parse_card("quiz", f"no-sync-{number}", {"question": "Where?"}, Passage(body, 1), Path("page.md"), 1)

    found = [quiz(number) for number in range(24)]
    right = Counter(card.right_letters for card in found)
    assert min(right[letter] for letter in "ABC") >= 3, right
    for card in found:
        reasons = {option.text: option.why for option in card.options}
        assert reasons["around `optimizer.step()`"] == "It sends nothing.", "a reason stays with its option"
    assert quiz(1, body.replace("The forward decides.", "Other words.")).options == found[1].options


def test_several_right_options_are_boxes_to_tick(builds: list[Built]) -> None:
    quiz = builds[0].page("several").select_one("fieldset.quiz")
    assert [box["type"] for box in quiz.select("input")] == ["checkbox"] * 3
    assert quiz.select_one(".card-label").get_text() == "Answer: B, C"


def test_the_epub_has_neither_folds_nor_inputs(builds: list[Built]) -> None:
    page = builds[2].page("good", "xhtml")
    assert not page.select("details, input, fieldset, summary, legend")
    assert [item.get_text() for item in page.select("ol.quiz-options[type=A] > li")][1] == "around both"
    assert "Answer: B" in page.select_one(".quiz").get_text()
    assert page.select_one(".quiz-reasons").get_text().split() == f"A: {REASONS[0]} C: {REASONS[1]}".split()
    assert "Spoken answer" in page.select_one(".interview").get_text()


@pytest.mark.parametrize("number", range(len(WRONG_CARDS)))
def test_a_wrong_card_is_named_with_file_and_line(builds: list[Built], number: int) -> None:
    _, line, says = WRONG_CARDS[number]
    for built in builds[:2]:  # an incremental build must not forget it
        assert re.search(rf"wrong{number}.md:{line}: WARNING: .*{re.escape(says)}", built.warnings), built.warnings


def test_two_cards_of_one_id_end_every_build(tmp_path: Path) -> None:
    book = TinyBook(tmp_path)
    book.chapters(first=QUIZ, second=f"Text.\n{QUIZ}")
    for _ in range(2):
        built = book.build("dummy")
        assert built.error == "cards: 1 problem, named above"
        says = f"the card id 'no-sync-where' is taken by {book.root}/handbook/first.md:3; rename one"
        assert f"second.md:5: WARNING: {says}" in built.warnings
    book.chapters(first=QUIZ.lstrip(), second="Nothing.")
    assert book.build("dummy").complaints == ""


@pytest.mark.parametrize("says", MISSING.values())
def test_evidence_that_is_not_there_is_reported(builds: list[Built], says: str) -> None:
    assert re.search(rf"missing.md:3: WARNING: .*{re.escape(says)}", builds[0].warnings), builds[0].warnings


def test_cards_are_found_inside_boxes_and_not_inside_code(cards: dict[str, Card]) -> None:
    (found,) = (card for card in cards.values() if card.path.name == "boxes.md")
    assert (found.id, found.line, found.right_letters) == ("in-a-box", 5, "B")


def test_what_is_kept_for_the_decks_does_not_say_in_which_folder_the_book_is(
    book: TinyBook, cards: dict[str, Card]
) -> None:
    assert all(card.path.is_relative_to(book.root / "handbook") for card in cards.values())
    assert book.root.name.encode() not in (book.root / "_build/cards.pickle").read_bytes()


# -- decks ------------------------------------------------------------------------------------------


def asked(name: str, level: str, weak: str = "") -> str:
    weak = f"\n+++ weak\n{weak}\n" if weak else ""
    options = f":question: What about {name}?\n:level: {level}\n:evidence: cite:one\n"
    return f"\n:::{{interview}} {name}\n{options}\nThis.\n{weak}:::\n"


CHOICES = {
    "": "alpha beta gamma delta epsilon bucket-order",
    ":level: core": "alpha delta bucket-order",
    ":level: deep staff\n:chapter: first": "beta gamma",
    ":part: second": "delta epsilon",
    ":count: 3": "gamma delta bucket-order",  # of each chapter one; gamma has a weak answer
    ":count: 4": "alpha gamma delta bucket-order",
    ":ids: epsilon no-sync-where alpha": "epsilon no-sync-where alpha",
}
WRONG = {
    ":level: hard": "no interview card has the level 'hard'; choose one of core, deep, staff",
    ":chapter: firstt": "no interview card has the chapter 'firstt'; did you mean 'first'?",
    ":count: 9": "9 cards are asked for, and there are 6",
    ":ids: alpha\n:level: core": "with :ids: no other option chooses",
    ":ids: alpa": "there is no card 'alpa'; did you mean 'alpha'?",
}
DECKS = [*CHOICES, *WRONG]
QUESTIONS = {
    "bucket-order": "Why does DDP fill its buckets in reverse order: because of backward?",
    "no-sync-where": "Where must no_sync be entered?",
}


@pytest.fixture(scope="module")
def decks(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """Decks built before their book was, and after it."""
    made = with_a_lab(TinyBook(tmp_path_factory.mktemp("decks")))
    made.chapters(
        first=asked("alpha", "core") + asked("beta", "deep") + asked("gamma", "staff", "That."),
        second=asked("delta", "core") + asked("epsilon", "deep"),
        third=f"(some-section)=\n## A section\n{INTERVIEW}\n{QUIZ}".replace("Spoken", "Spoken [link](#some-section)"),
    )
    made.rewrite("conf.py", '"myst_parser"', '"myst_parser", "sphinx_revealjs"')
    made.write("slides/pair.md", "# Deck\n\n```{deck-card} bucket-order\n```\n\n```{deck-card} no-sync-where\n```\n")
    made.write("slides/unknown.md", "# Deck\n\n```{deck-card} bucket-orders\n```\n")
    for number, options in enumerate(DECKS):
        made.write(f"slides/deck{number}.md", f"# Deck\n\n```{{deck-cards}}\n{options}\n```\n")
    made.write("slides/index.md", "# Decks\n\n```{toctree}\n:glob:\n\n*\n```\n")
    early = made.build("dummy", source="slides", out="early")
    made.build("dummy")
    return [early, made.build("revealjs", source="slides")]


def test_a_deck_takes_a_card_as_two_slides_with_notes(decks: list[Built]) -> None:
    built = decks[1]
    assert not built.error
    assert all(re.search("/(deck|unknown)", line) for line in built.warnings.splitlines()), built.warnings
    slides = [slide for slide in built.page("pair").select("section") if not slide.select("section")]
    titles = [slide.h2.get_text() for slide in slides[1:]]
    assert titles[0].startswith("Why does DDP fill")
    assert titles[1::2] == [f"Answer: {title}" for title in titles[::2]], "a slide that is seen alone"
    assert slides[1].select_one(".deck-from").get_text() == "The third chapter · core"
    assert "Spoken link answer" in slides[2].get_text()
    notes = slides[2].select_one("aside.notes")
    assert notes.select_one("li strong").get_text() == "And then?"
    assert "A weak answer: Because it is faster." in notes.get_text()
    assert "Knows no bucket." in notes.get_text()
    assert [item.get_text().strip() for item in slides[3].select("li")][1] == "around both"
    assert [item.get_text().strip() for item in slides[4].select("li.deck-right")] == ["around both"]
    assert len(slides[4].select("li")) == len(slides[3].select("li")), "beside what is wrong"
    notes = slides[4].select_one("aside.notes").extract().get_text()
    assert "The forward decides" in notes
    assert REASONS[1] in notes
    assert "The forward decides." in slides[4].get_text(), "with the answer, one sentence says why"


@pytest.mark.parametrize("number", range(len(DECKS)))
def test_a_deck_asks_for_cards_by_chapter_level_count_or_ids(decks: list[Built], number: int) -> None:
    if asked := CHOICES.get(DECKS[number]):
        titles = [title.get_text() for title in decks[1].page(f"deck{number}").select("h2")]
        assert titles[::2] == [QUESTIONS.get(name, f"What about {name}?") for name in asked.split()]
        assert not decks[1].about(f"deck{number}")
    else:
        said = re.escape(WRONG[DECKS[number]])
        assert re.search(rf"deck{number}.md:3: WARNING: .*{said}", decks[1].warnings), decks[1].warnings


def test_for_an_unknown_card_a_deck_names_those_that_are_near(decks: list[Built]) -> None:
    early, built = decks
    assert re.search(r"cards of the book are not in .*; run: make html", early.error)
    says = "unknown.md:3: WARNING: there is no card 'bucket-orders'; did you mean 'bucket-order'?"
    assert says in built.warnings
