"""The worked design cases: each is a round of 45 minutes, and every number of an estimate comes from its lab."""

import re

import pytest

from tools import ROOT

PAGE = ROOT / "handbook" / "interviews" / "cases.md"
STEPS = ["Clarify", "Estimate", "Design", "Bottleneck", "Failure", "Trade-off"]
ENDS = ["Weak answer", "Red flags", "A staff answer adds", "Read on"]
CASES = {
    part.partition(")=")[0]: part
    for part in re.split(r"^\((?=case-)", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
}
FROM_A_LAB = re.compile(r"\{measured\}`([a-z0-9-]+)\.\w+(?::[^`]*)?`")


def steps(case):
    """Name, minutes and text of each step."""
    parts = re.split(r"^```\{rubric\} ([\w-]+): (\d+) minutes\n:heading-level: 3\n```\n", case, flags=re.M)[1:]
    return list(zip(parts[::3], map(int, parts[1::3]), parts[2::3], strict=True))


def typed_numbers(text, lab):
    """Numbers of an estimate that its lab did not compute; figures and outputs are its own."""
    foreign = [m[0] for m in FROM_A_LAB.finditer(text) if m[1] != lab]
    text = re.sub(
        r"^```\{lab-(figure|output)\} (\S+) .*?^```$", lambda m: "" if m[2] == lab else m[0], text, flags=re.M | re.S
    )
    text = re.sub(r"\{(ref|doc|cite:p)\}`[^`]*`", "", FROM_A_LAB.sub("", text))
    return foreign + re.findall(r"(?<![A-Za-z\d.,-])\d[\d.,]*", text)


def test_there_are_six_cases_and_a_lab_for_each():
    assert len(CASES) == 6
    for name in CASES:
        (script,) = ROOT.glob(f"gallery/*/plot_*_{name.replace('-', '_')}.py")
        assert f":ref:`{name}`" in script.read_text(encoding="utf-8")
        assert f"/labs/{script.parent.name}/{script.stem}`" in CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_six_steps_of_45_minutes_and_says_what_is_weak(name):
    case = CASES[name]
    assert re.search(r"^> \S.*[.?]$", case, flags=re.M), "the interviewer's prompt"
    assert [step for step, *_ in steps(case)] == STEPS
    assert sum(minutes for _, minutes, _ in steps(case)) == 45
    assert re.findall(r"^(\S.*)\n: ", case, flags=re.M) == ENDS
    said = re.search(r'^> "(.+)"$', steps(case)[-1][2], flags=re.M)[1]
    assert len(re.findall(r"[.?](?: |$)", said)) == 3, "the trade-off, in three sentences"


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_an_estimate_comes_from_the_lab_of_its_case(name):
    estimate = next(text for step, _, text in steps(CASES[name]) if step == "Estimate")
    assert len(FROM_A_LAB.findall(estimate)) >= 5
    assert not typed_numbers(estimate, name)


def test_a_typed_number_and_one_of_another_lab_are_found():
    typed = typed_numbers("In 30 s, {measured}`case-hangs.now` and {measured}`bucket-sweep.count`; bf16.", "case-hangs")
    assert typed == ["{measured}`bucket-sweep.count`", "30"]


def test_the_page_keeps_its_budget():
    words = re.sub(r"```\{lab-.*?```|\{\w+(?::p)?\}`[^`]*`", "x", PAGE.read_text(encoding="utf-8"), flags=re.S).split()
    assert len(words) <= 4500
