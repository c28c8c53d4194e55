"""A lab's shape: what a reader can rely on in each, read from its script."""

import ast
import re

import pytest

from _ext.evidence.lab_source import Lab, all_labs
from _ext.problems import BuildError
from tools import ROOT

TEACHING = [lab for lab in all_labs().values() if lab.told[1].name != "evidence"]
CHANGE, ALOUD = "Change it: predict, then run", "Say it aloud"


def said_under(heading: str, script: str) -> str:
    """What a lab says under a heading, without the signs of comments; empty if it has no such heading."""
    found = re.search(rf"^# {re.escape(heading)}\n# -+\n(.*?)(?=\n# \S[^\n]*\n# --+\n|\n(?!#)|\Z)", script, re.M | re.S)
    return re.sub(r"^# ?", "", found[1], flags=re.M).strip() if found else ""


def wrong_with(script: str) -> str:
    """What a teaching lab lacks, as one line; empty if nothing."""
    docstring = ast.get_docstring(ast.parse(script)) or ""
    change, aloud = said_under(CHANGE, script), said_under(ALOUD, script)
    paragraphs = docstring.partition("\n\n")[2].split("\n\n")  # without the title
    if "Mental model" not in docstring and not any(re.search(r"\S[.?]\n\S", one) for one in paragraphs[1:-1]):
        return "needs a paragraph of two sentences below its question: the concept, and what to keep in mind"
    unseen = re.search(
        "needs_(gpus|nccl_ranks)", script
    )  # what to expect is what was seen, and nobody has run the change
    if not re.search(r"\?" if unseen else r"\?.*\nExpect: \S", change, re.S):
        return f"needs a section {CHANGE!r} that asks a question and ends with 'Expect: …'"
    if not re.fullmatch(r'".*[.?!]"', aloud, re.S):
        return f"needs a section {ALOUD!r} that is one quotation"
    return ""


@pytest.mark.parametrize("lab", TEACHING, ids=lambda lab: lab.id)
def test_a_lab_that_teaches_asks_for_a_prediction_and_says_the_answer_aloud(lab):
    assert not wrong_with(lab.script.read_text(encoding="utf-8"))


def test_a_lab_without_them_is_named():
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(\"\"\"\nThe sum of ranks.*?)```", contributing, re.S)[1]
    ast.parse(script)
    assert not wrong_with(script)
    assert "two sentences" in wrong_with(
        script.replace("Keep in mind that it ends", "It ends").replace("each of them.\n", "")
    )
    assert CHANGE in wrong_with(script.replace("Expect: ", ""))
    assert CHANGE in wrong_with(script.replace("predict, then run", "run"))
    assert ALOUD in wrong_with(script.replace("Say it aloud", "In short"))


def test_a_lab_without_a_level_is_named(tmp_path):
    lab = Lab(tmp_path / "plot_01_x.py", tmp_path)
    lab.script.write_text('"""\nX\n=\n\nWhat?\n\n:Level: core, 15 minutes\n"""\n')
    assert str(lab.told[1]) == "core, 15 minutes"
    assert ":Level:" not in lab.told[0]
    for wrong in ("And so on.", ":Level: hard, 15 minutes", ":Level: core", ":Level: core, 15 minutes\n\nAnd so on."):
        lab.script.write_text(f'"""\nX\n=\n\nWhat?\n\n{wrong}\n"""\n')
        with pytest.raises(BuildError, match=r"plot_01_x.py: the docstring ends with .* its last line must be such as"):
            _ = lab.told


@pytest.mark.parametrize("page", sorted(ROOT.glob("handbook/*/practice.md")), ids=lambda page: page.parent.name)
def test_an_exercise_in_a_list_says_how_long_it_takes(page):
    for section in re.findall(r"^\([\w-]+-exercises\)=\n(.*?)(?=^\()", page.read_text(encoding="utf-8"), re.M | re.S):
        for item in re.findall(r"^\d+\. .*", section, re.M):
            assert re.match(r"\d+\. \*[^*]+\* \((core|deep), \d+ minutes\)\. ", item), item
