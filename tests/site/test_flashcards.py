"""The package of flashcards."""

import json
import sqlite3
import zipfile
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from test_cards import INTERVIEW, QUIZ, with_a_lab

from tiny_book import Built, TinyBook

FIELD_SEPARATOR = "\x1f"


DECKS = {"core": 1752034813, "deep": 1752034814, "staff": 1752034815, "quiz": 1752034816, "errors": 1752034817}


def notes(folder: Path) -> dict[str, tuple[str, list[str], list[str]]]:
    """GUID, fields and tags of each note of the package, by card id."""
    with zipfile.ZipFile(folder / "ddp-handbook.apkg") as package:
        package.extract("collection.anki2", folder)
    with sqlite3.connect(folder / "collection.anki2") as base:
        rows = base.execute("select guid, flds, tags from notes").fetchall()
    split = [(guid, fields.split(FIELD_SEPARATOR), tags.split()) for guid, fields, tags in rows]
    return {fields[0]: (guid, fields, tags) for guid, fields, tags in split}


def decks(folder: Path) -> dict[str, list[str]]:
    """The cards of each deck, by card id."""
    notes(folder)
    with sqlite3.connect(folder / "collection.anki2") as base:
        (known,) = base.execute("select decks from col").fetchone()
        rows = base.execute("select cards.did, notes.flds from cards join notes on notes.id = cards.nid").fetchall()
    names = {int(number): deck["name"] for number, deck in json.loads(known).items()}
    held: dict[str, list[str]] = {}
    for number, fields in rows:
        held.setdefault(names[number], []).append(fields.split(FIELD_SEPARATOR)[0])
    numbers = {name.partition("::")[2]: number for number, name in names.items() if name.startswith("The DDP Handbook")}
    assert {name: number for name, number in numbers.items() if name} == DECKS, "else a reader has them twice"
    return held


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, dict, dict]:
    """A built package and its notes, and the notes of the one built after a card's words had changed."""
    made = with_a_lab(TinyBook(tmp_path_factory.mktemp("book")))
    made.write("handbook/dot.svg", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    linked = INTERVIEW.replace("Spoken", "Spoken [link](#some-section) ![A dot](dot.svg)")
    made.chapters(
        first=f"(some-section)=\n## A section\n{linked}",
        second=QUIZ,
        third=INTERVIEW.replace("bucket-order", "bucket-size").replace(": core", ": staff"),
    )
    built = made.build("anki")
    before = notes(built.folder)
    made.rewrite("handbook/second.md", "The forward decides.", "Other words.")
    return built, before, notes(made.build("anki").folder)


def test_each_card_and_quiz_is_one_note(packages: tuple[Built, dict, dict]) -> None:
    built, found, _ = packages
    assert built.complaints == ""
    assert [path.name for path in built.folder.iterdir() if path.suffix == ".html"] == []
    assert list(found) == ["bucket-order", "bucket-size", "no-sync-where"]
    _, (_, question, answer, source), tags = found["bucket-order"]
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
    assert source == "The first chapter"
    assert sorted(tags) == ["core", "first", "interview"]
    _, (_, question, answer, _), tags = found["no-sync-where"]
    assert len(BeautifulSoup(question, "html.parser").select("ol li")) == 3
    assert "<input" not in question
    assert "Answer: B" in answer
    assert "It sends nothing." in answer
    assert "It sends nothing." not in question
    assert sorted(tags) == ["quiz", "second"]
    with zipfile.ZipFile(built.folder / "ddp-handbook.apkg") as package:
        assert list(json.loads(package.read("media")).values()) == ["dot.svg"]


def test_a_card_keeps_its_guid_when_its_words_change(packages: tuple[Built, dict, dict]) -> None:
    _, before, after = packages
    assert {name: note[0] for name, note in before.items()} == {name: note[0] for name, note in after.items()}
    assert "Other words" in after["no-sync-where"][1][2]


def test_levels_quizzes_and_errors_are_decks_of_their_own_and_keep_their_numbers(packages) -> None:
    assert decks(packages[0].folder) == {
        "The DDP Handbook::core": ["bucket-order"],
        "The DDP Handbook::staff": ["bucket-size"],
        "The DDP Handbook::quiz": ["no-sync-where"],
    }
