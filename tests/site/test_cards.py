"""Interview cards and quizzes: one source, and how it looks on the web, in print, in a deck, and as flashcards."""

import json
import re
import sqlite3
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from _ext.cards.card_source import Card, Passage, parse_card
from _ext.cards.cards import cards_of_the_book
from tiny_book import Built, TinyBook, evidence

INTERVIEW = """
:::{interview} bucket-order
:question: Why does DDP fill its buckets in *reverse* order: because of `backward`?
:level: core
:evidence: lab:bucket-xray lab:waits section:some-section

Spoken [link](#some-section) **answer**.

+++ weak
Because it is *faster*.

+++ flags
- Says "asynchronous",
  and stops there.
- Knows no bucket.

+++ depth
Deeper ![A dot](dot.svg), with code:

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
    "lab:no-lab": "evidence lab:no-lab is not a lab; choose one of bucket-xray, waits",
    "claim:no-claim": "there is no claim 'no-claim'",
    "section:no-label": "no-label",
}
UNSHOWN = INTERVIEW.lstrip().replace("lab:bucket-xray lab:waits section:some-section", " ".join(MISSING))
REASONS = ["It comes too late, whatever you write.", "It sends nothing."]
WRONG_CARDS = [
    (re.sub("Spoken.*", "", INTERVIEW), 3, "has no answer"),
    (INTERVIEW.replace(":level: core\n", ""), 3, "unknown level ''"),
    (INTERVIEW.replace("core", "expert"), 3, "unknown level 'expert'; take one of core, deep, staff"),
    (re.sub(":question: .*", ":question:", INTERVIEW), 3, "has no question"),
    (INTERVIEW.replace("+++ follow-ups", "+++ followups"), 25, "unknown or repeated part '+++ followups'"),
    (INTERVIEW.replace("- Says", "Says"), 14, "'+++ flags' that are not a list"),
    (
        INTERVIEW.replace("lab:bucket-xray lab:waits ", ""),
        3,
        "has nothing that shows it; add a lab:ID, claim:ID or cite:KEY",
    ),
    (INTERVIEW.replace("bucket-order", "Bucket_order"), 3, "needs an id of small letters"),
    (INTERVIEW.replace("lab:bucket-xray", "bucket-xray"), 3, "evidence 'bucket-xray'; write lab:ID"),
    (QUIZ.replace("[x]", "[ ]"), 3, "has no right option"),
    (QUIZ[: QUIZ.index("- [x]")] + QUIZ[QUIZ.index("\n+++") :], 3, "at least two options"),
    (QUIZ.replace("+++ why\nThe forward decides.\n", ""), 3, "does not say why"),
    (QUIZ.replace("The forward decides.\n", ""), 15, "nothing below '+++ why'"),
    (QUIZ.replace("- [x] around", "- around"), 11, "a line that is not an option: '- around both'"),
    (QUIZ.replace("  : It sends nothing.\n", ""), 12, "why 'around `optimizer.step()`' is wrong; add"),
]


def asked(name: str, level: str, weak: str = "") -> str:
    weak = f"\n+++ weak\n{weak}\n" if weak else ""
    options = f":question: What about {name}?\n:level: {level}\n:evidence: lab:bucket-xray\n"
    return f"\n:::{{interview}} {name}\n{options}\nThis.\n{weak}:::\n"


PAGES = {
    "first": asked("alpha", "core") + asked("beta", "deep") + asked("gamma", "staff", "That."),
    "second": asked("delta", "core") + asked("epsilon", "deep"),
    "good": f"(some-section)=\n## A section\n{INTERVIEW}\n{QUIZ}",
    "several": SEVERAL,
    "boxes": f"::::{{note}}\n{QUIZ}\n::::\n\n````md\n{INTERVIEW}\n````\n".replace("no-sync-where", "in-a-box"),
    "missing": UNSHOWN.replace("bucket-order", "unshown"),
    **{f"wrong{n}": text.lstrip("\n") for n, (text, _, _) in enumerate(WRONG_CARDS)},
}
CHOICES = {
    "": "alpha beta gamma delta epsilon bucket-order unshown",
    ":level: core": "alpha delta bucket-order unshown",
    ":level: deep staff\n:chapter: first": "beta gamma",
    ":part: second": "delta epsilon",
    ":count: 4": "gamma delta bucket-order unshown",  # of each chapter one; gamma has a weak answer
    ":count: 5": "alpha gamma delta bucket-order unshown",
    ":ids: epsilon no-sync-where alpha": "epsilon no-sync-where alpha",
}
WRONG_DECKS = {
    ":level: hard": "no interview card has the level 'hard'; choose one of core, deep, staff",
    ":chapter: firstt": "no interview card has the chapter 'firstt'; did you mean 'first'?",
    ":count: 9": "9 cards are asked for, and there are 7",
    ":ids: alpha\n:level: core": "with :ids: no other option chooses",
    ":ids: alpa": "there is no card 'alpa'; did you mean 'alpha'?",
}
DECKS = [*CHOICES, *WRONG_DECKS]
QUESTIONS = {"no-sync-where": "Where must no_sync be entered?"}
QUESTIONS["bucket-order"] = "Why does DDP fill its buckets in reverse order: because of backward?"
QUESTIONS["unshown"] = QUESTIONS["bucket-order"]
NUMBERS = {"core": 1752034813, "deep": 1752034814, "staff": 1752034815, "quiz": 1752034816, "errors": 1752034817}


def notes(folder: Path) -> dict[str, tuple[str, list[str], list[str], str]]:
    """GUID, fields, tags and deck of each note of the package, by card id."""
    with zipfile.ZipFile(folder / "ddp-handbook.apkg") as package:
        package.extract("collection.anki2", folder)
    with sqlite3.connect(folder / "collection.anki2") as base:
        (known,) = base.execute("select decks from col").fetchone()
        rows = base.execute("select guid, flds, tags, did from notes join cards on notes.id = cards.nid").fetchall()
    decks = {int(number): deck["name"].removeprefix("The DDP Handbook::") for number, deck in json.loads(known).items()}
    assert NUMBERS.items() <= {name: number for number, name in decks.items()}.items(), "else a reader has them twice"
    split = [(guid, fields.split("\x1f"), tags.split(), decks[deck]) for guid, fields, tags, deck in rows]
    return {note[1][0]: note for note in split}


@dataclass
class Forms:
    """The book in each form."""

    book: TinyBook
    early: Built  # decks before the book
    web: list[Built]  # twice
    epub: Built
    decks: Built
    anki: Built
    notes: list[dict[str, tuple[str, list[str], list[str], str]]]  # of the package; and again, after a card had changed

    def cards(self) -> dict[str, Card]:
        """The cards of the book."""
        with self.book.taken_for_the_repository():
            return cards_of_the_book()


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    """A page for each case; decks that take cards from them; a lab, and one that no edition has run."""
    made = TinyBook(tmp_path_factory.mktemp("book"))
    made.rewrite("conf.py", '"myst_parser"', '"myst_parser", "sphinx_revealjs"')
    for name, title in (("05_bucket_xray", "Bucket X-ray"), ("06_waits", "It waits")):
        made.write(f"gallery/internals/plot_{name}.py", "")
        made.write(f"handbook/labs/internals/plot_{name}.rst", f":orphan:\n\n{title}\n============\n")
    waits = json.dumps(evidence(waiting=True, needs="needs a GPU"))
    made.write("handbook/labs/internals/plot_06_waits.base.json", waits)
    for folder in ("handbook", "slides"):
        made.write(f"{folder}/dot.svg", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    made.chapters(**PAGES)
    made.write("slides/pair.md", "# Deck\n\n```{deck-card} bucket-order\n```\n\n```{deck-card} no-sync-where\n```\n")
    made.write("slides/unknown.md", "# Deck\n\n```{deck-card} bucket-orders\n```\n")
    for number, options in enumerate(DECKS):
        made.write(f"slides/deck{number}.md", f"# Deck\n\n```{{deck-cards}}\n{options}\n```\n")
    made.write("slides/index.md", "# Decks\n\n```{toctree}\n:glob:\n\n*\n```\n")
    early = made.build("dummy", source="slides", out="early")
    web, epub = [made.build(), made.build()], made.build("epub")
    decks, anki = made.build("revealjs", source="slides"), made.build("anki")
    before = notes(anki.folder)
    made.rewrite("handbook/good.md", "The forward decides.", "Other words.")
    return Forms(made, early, web, epub, decks, anki, [before, notes(made.build("anki").folder)])


def test_on_the_web_a_card_is_a_fold(forms: Forms) -> None:
    built = forms.web[0]
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
    # nor to a lab that no edition has run
    assert links == {"Bucket X-ray": "labs/internals/plot_05_bucket_xray.html", "A section": "#some-section"}


def test_on_the_web_a_quiz_has_one_choice_and_a_folded_answer(forms: Forms) -> None:
    quiz = forms.web[0].page("good").select_one("fieldset.quiz")
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


def test_a_card_gives_its_weak_answer_and_its_red_flags(forms: Forms) -> None:
    card, quiz = (forms.cards()[name] for name in ("bucket-order", "no-sync-where"))
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


def test_several_right_options_are_boxes_to_tick(forms: Forms) -> None:
    quiz = forms.web[0].page("several").select_one("fieldset.quiz")
    assert [box["type"] for box in quiz.select("input")] == ["checkbox"] * 3
    assert quiz.select_one(".card-label").get_text() == "Answer: B, C"


def test_the_epub_has_neither_folds_nor_inputs(forms: Forms) -> None:
    page = forms.epub.page("good", "xhtml")
    assert not page.select("details, input, fieldset, summary, legend")
    assert [item.get_text() for item in page.select("ol.quiz-options[type=A] > li")][1] == "around both"
    assert "Answer: B" in page.select_one(".quiz").get_text()
    assert page.select_one(".quiz-reasons").get_text().split() == f"A: {REASONS[0]} C: {REASONS[1]}".split()
    assert "Spoken link answer" in page.select_one(".interview").get_text()


@pytest.mark.parametrize(
    ("page", "line", "says"),
    [
        *((f"wrong{number}", line, says) for number, (_, line, says) in enumerate(WRONG_CARDS)),
        *(("missing", 3, says) for says in MISSING.values()),
    ],
)
def test_a_wrong_card_and_evidence_that_is_not_there_are_named_with_file_and_line(forms, page, line, says) -> None:
    for built in forms.web:  # an incremental build must not forget it
        assert re.search(rf"{page}.md:{line}: WARNING: .*{re.escape(says)}", built.warnings), built.warnings


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


def test_cards_are_found_inside_boxes_and_not_inside_code(forms: Forms) -> None:
    (found,) = (card for card in forms.cards().values() if card.path.name == "boxes.md")
    assert (found.id, found.line, found.right_letters) == ("in-a-box", 5, "B")


def test_what_is_kept_for_the_decks_does_not_say_in_which_folder_the_book_is(forms: Forms) -> None:
    root = forms.book.root
    assert all(card.path.is_relative_to(root / "handbook") for card in forms.cards().values())
    assert root.name.encode() not in (root / "_build/cards.pickle").read_bytes()


# -- decks ------------------------------------------------------------------------------------------


def test_a_deck_takes_a_card_as_two_slides_with_notes(forms: Forms) -> None:
    built = forms.decks
    assert not built.error
    assert all(re.search("/(deck|unknown)", line) for line in built.warnings.splitlines()), built.warnings
    slides = [slide for slide in built.page("pair").select("section") if not slide.select("section")]
    titles = [slide.h2.get_text() for slide in slides[1:]]
    assert titles[0].startswith("Why does DDP fill")
    assert titles[1::2] == [f"Answer: {title}" for title in titles[::2]], "a slide that is seen alone"
    assert slides[1].select_one(".deck-from").get_text() == "The good chapter · core"
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
def test_a_deck_asks_for_cards_by_chapter_level_count_or_ids(forms: Forms, number: int) -> None:
    if asked := CHOICES.get(DECKS[number]):
        titles = [title.get_text() for title in forms.decks.page(f"deck{number}").select("h2")]
        assert titles[::2] == [QUESTIONS.get(name, f"What about {name}?") for name in asked.split()]
        assert not forms.decks.about(f"deck{number}")
    else:
        said = re.escape(WRONG_DECKS[DECKS[number]])
        assert re.search(rf"deck{number}.md:3: WARNING: .*{said}", forms.decks.warnings), forms.decks.warnings


def test_for_an_unknown_card_a_deck_names_those_that_are_near(forms: Forms) -> None:
    assert re.search(r"cards of the book are not in .*; run: make html", forms.early.error)
    says = "unknown.md:3: WARNING: there is no card 'bucket-orders'; did you mean 'bucket-order'?"
    assert says in forms.decks.warnings


# -- flashcards -------------------------------------------------------------------------------------


def test_each_card_and_quiz_is_one_note(forms: Forms) -> None:
    found = forms.notes[0]
    assert not forms.anki.error
    assert [path.name for path in forms.anki.folder.iterdir() if path.suffix == ".html"] == []
    assert found.keys() == forms.cards().keys()
    _, (_, question, answer, source), tags, _ = found["bucket-order"]
    assert "<em>reverse</em>" in question
    assert "core" in question
    page = BeautifulSoup(answer, "html.parser")
    assert not page.select("a")
    assert page.select_one("img")["src"] == "dot.svg"
    assert [label.get_text() for label in page.select(".card-label")] == [
        "A weak answer",
        "Red flags",
        "In depth",
        "Likely follow-ups",
    ]
    assert source == "The good chapter"
    assert sorted(tags) == ["core", "good", "interview"]
    _, (_, question, answer, _), tags, _ = found["no-sync-where"]
    assert len(BeautifulSoup(question, "html.parser").select("ol li")) == 3
    assert "<input" not in question
    assert "Answer: B" in answer
    assert "It sends nothing." in answer
    assert "It sends nothing." not in question
    assert sorted(tags) == ["good", "quiz"]
    with zipfile.ZipFile(forms.anki.folder / "ddp-handbook.apkg") as package:
        assert list(json.loads(package.read("media")).values()) == ["dot.svg"]


def test_a_card_keeps_its_guid_when_its_words_change(forms: Forms) -> None:
    before, after = forms.notes
    assert {name: note[0] for name, note in before.items()} == {name: note[0] for name, note in after.items()}
    assert "Other words" in after["no-sync-where"][1][2]


def test_levels_and_quizzes_are_decks_of_their_own_and_keep_their_numbers(forms: Forms) -> None:
    held = {deck: [name for name, note in forms.notes[0].items() if note[3] == deck] for deck in NUMBERS}
    assert {deck: sorted(names) for deck, names in held.items()} == {
        "core": ["alpha", "bucket-order", "delta", "unshown"],
        "deep": ["beta", "epsilon"],
        "staff": ["gamma"],
        "quiz": ["in-a-box", "no-sync-where", "several"],
        "errors": [],
    }
