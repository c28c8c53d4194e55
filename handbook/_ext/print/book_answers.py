"""In print the answers of a chapter's quizzes stand at its end, each with the number of its question."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from .print_tree import anchor, classes, parents

TITLE = "Answers"


def answers_last(article: ET.Element, docname: str) -> None:
    """Number the quizzes of a document, and move what each says below its options to the document's end."""
    quizzes = [element for element in article.iter() if "quiz" in classes(element)]
    parent = parents(article)
    answers = ET.Element("section", {"class": "quiz-answers"})
    place = anchor(docname, "answers")
    ET.SubElement(answers, "p", {"class": "rubric", "id": place}).text = TITLE
    for number, quiz in enumerate(quizzes, 1):
        question = next(element for element in quiz.iter() if "card-question" in classes(element))
        question.set("data-question", str(number))
        for part in [element for element in quiz if "card-why" in classes(element)]:
            quiz.remove(part)
            for label in [element for element in part if "card-label" in classes(element)][:1]:
                label.set("data-question", str(number))
            answers.append(part)
    if len(answers) == 1:
        return
    lead = ET.Element("p", {"class": "quiz-lead"})
    link = ET.SubElement(lead, "a", {"href": f"#{place}", "class": "page-reference"})
    link.text = TITLE
    first = quizzes[0]
    owner = parent[first]
    owner.insert(list(owner).index(first), lead)
    (article.find("section") or article).append(answers)
