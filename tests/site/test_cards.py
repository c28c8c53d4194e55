"""Interview cards and quizzes: one source, and how it looks on the web, in print, and in a deck."""

import re
from collections import Counter
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from tiny_book import TinyBook

from _ext.cards.cards import cards_of_the_book

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


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyBook:
    made = TinyBook(tmp_path, monkeypatch)
    made.write("gallery/internals/plot_05_bucket_xray.py", "")
    made.write("handbook/labs/internals/plot_05_bucket_xray.rst", ":orphan:\n\nBucket X-ray\n============\n")
    return made


REASONS = ["It comes too late, whatever you write.", "It sends nothing."]


def good(book: TinyBook) -> None:
    book.chapters(first=f"(some-section)=\n## A section\n{INTERVIEW}\n{QUIZ}")


def test_on_the_web_a_card_is_a_fold(book: TinyBook) -> None:
    good(book)
    built = book.build()
    assert built.complaints == ""
    card = built.page("first").select_one("details.interview#card-bucket-order")
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


def test_on_the_web_a_quiz_has_one_choice_and_a_folded_answer(book: TinyBook) -> None:
    good(book)
    quiz = book.build().page("first").select_one("fieldset.quiz")
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


def test_a_card_gives_its_weak_answer_and_its_red_flags(book: TinyBook) -> None:
    good(book)
    book.build()
    card = cards_of_the_book()["bucket-order"]
    assert card.weak == "Because it is *faster*."
    assert card.flags == ['Says "asynchronous", and stops there.', "Knows no bucket."]
    assert (cards_of_the_book()["no-sync-where"].weak, cards_of_the_book()["no-sync-where"].flags) == ("", [])


def test_options_stand_in_an_order_that_only_the_id_decides(book: TinyBook) -> None:
    free = QUIZ.replace(":ordered:\n", "")
    book.chapters(**{f"c{n}": free.replace("no-sync-where", f"no-sync-{n}") for n in range(24)})
    book.build()
    first = cards_of_the_book()
    right = Counter(card.right_letters for card in first.values())
    assert min(right[letter] for letter in "ABC") >= 3, right
    for card in first.values():
        reasons = {option.text: option.why for option in card.options}
        assert reasons["around `optimizer.step()`"] == "It sends nothing.", "a reason stays with its option"
    book.chapters(c1=free.replace("no-sync-where", "no-sync-1").replace("The forward decides.", "Other words."))
    book.build()
    assert cards_of_the_book()["no-sync-1"].options == first["no-sync-1"].options


def test_several_right_options_are_boxes_to_tick(book: TinyBook) -> None:
    book.chapters(first=QUIZ.replace("[ ] around `opt", "[x] around `opt").replace("  : It sends nothing.\n", ""))
    quiz = book.build().page("first").select_one("fieldset.quiz")
    assert [box["type"] for box in quiz.select("input")] == ["checkbox"] * 3
    assert quiz.select_one(".card-label").get_text() == "Answer: B, C"


def test_the_epub_has_neither_folds_nor_inputs(book: TinyBook) -> None:
    good(book)
    built = book.build("epub")
    page = BeautifulSoup((built.folder / "first.xhtml").read_text(), "html.parser")
    assert not page.select("details, input, fieldset, summary, legend")
    assert [item.get_text() for item in page.select("ol.quiz-options[type=A] > li")][1] == "around both"
    assert "Answer: B" in page.select_one(".quiz").get_text()
    assert page.select_one(".quiz-reasons").get_text().split() == f"A: {REASONS[0]} C: {REASONS[1]}".split()
    assert "Spoken answer" in page.select_one(".interview").get_text()


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


def test_a_wrong_card_is_named_with_file_and_line(book: TinyBook) -> None:
    book.chapters(**{f"wrong{n}": text.lstrip("\n") for n, (text, _, _) in enumerate(WRONG_CARDS)})
    first, second = book.build().warnings, book.build().warnings  # an incremental build must not forget it
    for n, (_, line, says) in enumerate(WRONG_CARDS):
        for warnings in (first, second):
            assert re.search(rf"wrong{n}.md:{line}: WARNING: .*{re.escape(says)}", warnings), warnings


def test_two_cards_of_one_id_end_every_build(book: TinyBook) -> None:
    book.chapters(first=QUIZ, second=f"Text.\n{QUIZ}")
    for _ in range(2):
        built = book.build()
        assert built.error == "cards: 1 problem, named above"
        says = f"the card id 'no-sync-where' is taken by {book.root}/handbook/first.md:3; rename one"
        assert f"second.md:5: WARNING: {says}" in built.warnings
    book.chapters(first=QUIZ.lstrip(), second="Nothing.")
    assert book.build().complaints == ""


def test_evidence_that_is_not_there_is_reported(book: TinyBook) -> None:
    missing = {
        "lab:no-lab": "evidence lab:no-lab is not a lab; choose one of bucket-xray",
        "claim:no-claim": "there is no claim 'no-claim'",
        "section:no-label": "no-label",
    }
    card = INTERVIEW.lstrip().replace("lab:bucket-xray section:some-section", " ".join(missing))
    book.chapters(first=card)
    warnings = book.build().warnings
    for says in missing.values():
        assert re.search(rf"first.md:3: WARNING: .*{re.escape(says)}", warnings), warnings


def test_cards_are_found_inside_boxes_and_not_inside_code(book: TinyBook) -> None:
    book.chapters(first=f"::::{{note}}\n{QUIZ}\n::::\n\n````md\n{INTERVIEW}\n````\n")
    book.build()
    (found,) = cards_of_the_book().values()
    assert (found.id, found.line, found.path.name, found.right_letters) == ("no-sync-where", 5, "first.md", "B")


def test_a_deck_takes_a_card_as_two_slides_with_notes(book: TinyBook) -> None:
    book.chapters(first=INTERVIEW.replace("Spoken", "Spoken [link](#some-section)") + QUIZ)
    book.write("slides/index.md", "# Deck\n\n```{deck-card} bucket-order\n```\n\n```{deck-card} no-sync-where\n```\n")
    book.write("conf.py", (book.root / "conf.py").read_text() + "extensions.append('sphinx_revealjs')\n")
    book.build()
    built = book.build("revealjs", source="slides")
    assert built.complaints == ""
    slides = [slide for slide in built.page("index").select("section") if not slide.select("section")]
    titles = [slide.h2.get_text() for slide in slides[1:]]
    assert titles[0].startswith("Why does DDP fill")
    assert titles[1::2] == [f"Answer: {title}" for title in titles[::2]], "a slide that is seen alone"
    assert slides[1].select_one(".deck-from").get_text() == "The first chapter · core"
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


def asked(name: str, level: str, weak: str = "") -> str:
    weak = f"\n+++ weak\n{weak}\n" if weak else ""
    options = f":question: What about {name}?\n:level: {level}\n:evidence: cite:one\n"
    return f"\n:::{{interview}} {name}\n{options}\nThis.\n{weak}:::\n"


CHOICES = {
    "": "alpha beta gamma delta epsilon",
    ":level: core": "alpha delta",
    ":level: deep staff\n:chapter: first": "beta gamma",
    ":part: second": "delta epsilon",
    ":count: 2": "gamma delta",  # of each chapter one; gamma has a weak answer
    ":count: 3": "alpha gamma delta",
    ":ids: epsilon no-sync-where alpha": "epsilon no-sync-where alpha",
}
WRONG = {
    ":level: hard": "no interview card has the level 'hard'; choose one of core, deep, staff",
    ":chapter: firstt": "no interview card has the chapter 'firstt'; did you mean 'first'?",
    ":count: 9": "9 cards are asked for, and there are 5",
    ":ids: alpha\n:level: core": "with :ids: no other option chooses",
    ":ids: alpa": "there is no card 'alpa'; did you mean 'alpha'?",
}


def test_a_deck_asks_for_cards_by_chapter_level_count_or_ids(book: TinyBook) -> None:
    book.chapters(
        first=asked("alpha", "core") + asked("beta", "deep") + asked("gamma", "staff", "That.") + QUIZ,
        second=asked("delta", "core") + asked("epsilon", "deep"),
    )
    book.build()
    choices = [*CHOICES, *WRONG]
    decks = [f"# Deck\n\n```{{deck-cards}}\n{options}\n```\n" for options in choices]
    for number, deck in enumerate(decks):
        book.write(f"slides/deck{number}.md", deck)
    book.write("slides/index.md", "# Decks\n\n```{toctree}\n:glob:\n\ndeck*\n```\n")
    built = book.build(source="slides", out="deck")
    for number, names in enumerate(CHOICES.values()):
        ids = [section["id"] for section in built.page(f"deck{number}").select("section.deck-question")]
        assert ids == [f"card-{name}" for name in names.split()], choices[number]
    for number, said in enumerate(WRONG.values(), len(CHOICES)):
        assert re.search(rf"deck{number}.md:3: WARNING: .*{re.escape(said)}", built.warnings), said


def test_for_an_unknown_card_a_deck_names_those_that_are_near(book: TinyBook) -> None:
    good(book)
    book.write("slides/index.md", "# Deck\n\n```{deck-card} bucket-orders\n```\n")
    assert re.search(r"cards of the book are not in .*; run: make html", book.build(source="slides").error)
    book.build()
    warnings = book.build(source="slides", out="deck").warnings
    assert "index.md:3: WARNING: there is no card 'bucket-orders'; did you mean 'bucket-order'?" in warnings
