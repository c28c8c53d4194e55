"""The entries of the error index: their format, and that their regexes take linear time."""

import json
import re
from importlib import import_module

import pytest
from jsonschema import Draft202012Validator

from ddplab.diagnose import EntryError, entries
from ddplab.diagnose.entry import FOLDER
from ddplab.diagnose.tables import read_toml
from diagnose_logs import OWN

SCHEMA = Draft202012Validator(json.loads((FOLDER.parent / "entry.schema.json").read_text()))
FILES = sorted([*FOLDER.glob("*.toml"), *(OWN / "entries").glob("*.toml")])
GOOD = (OWN / "entries" / "memory-cuda.toml").read_text()
parser = import_module("re._parser")  # the standard library's, which takes regexes apart


def problems(entry: dict) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(entry)]


def slow(source: str) -> str:
    """Why a regex can take more than linear time on a line: repeats in repeats, or three unbounded wildcards."""
    wild = 0

    def holds_repeat(items) -> bool:
        nonlocal wild
        found = False
        for kind, argument in items:
            if str(kind) in ("MAX_REPEAT", "MIN_REPEAT"):
                _, most, inner = argument
                if holds_repeat(inner) and most != 1:
                    raise RecursionError
                found = found or most != 1
                wild += most == parser.MAXREPEAT and str(inner[0][0]) in ("ANY", "NOT_LITERAL")
                wild += most == parser.MAXREPEAT and str(inner[0][0]) == "IN" and str(inner[0][1][0][0]) == "NEGATE"
            elif str(kind) == "BRANCH":
                found = sum(holds_repeat(one) for one in argument[1]) > 0 or found
            elif str(kind) in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
                found = holds_repeat(argument[-1]) or found
        return found

    try:
        holds_repeat(parser.parse(source))
    except RecursionError:
        return "a repeat of a group that repeats; take one of the two out"
    return "more than two unbounded wildcards; bound them, such as .{0,80}" if wild > 2 else ""


@pytest.mark.parametrize(
    "source", [r"(a+)+", r"(?:\d*x)*", r"(a|b+){2,}", r"((a{1,3}))+", r".*a.*b.*c", r"[^a]*b.*c.*"]
)
def test_a_regex_that_can_be_slow_is_noticed(source):
    assert slow(source)


@pytest.mark.parametrize("source", [r"\d+ vs \d+", r"(?:a|b)+", r"(?:\d+)?x", r"[^\]]*\]", r"a(?=b)(?!c)", r"\[(x+)\]"])
def test_a_regex_that_is_fine(source):
    assert slow(source) == ""


def test_every_entry_follows_the_schema_and_its_regexes_are_fast():
    found = []
    for path in FILES:
        raw = read_toml(path)
        found += [f"{path.name}: {problem}" for problem in problems(raw)]
        found += [f"{path.name}: {r}: {slow(r)}" for one in raw["match"] if (r := one.get("regex", "")) and slow(r)]
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", path.stem):
            found.append(f"{path.name}: the name of the file is the id: lower case, digits, single hyphens")
    assert len(FILES) > 150
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('role = "cause"', 'role = "reason"', "$.role: 'reason' is not one of"),
        ('title = "A GPU', 'titles = "A GPU', "'titles' was unexpected"),
        ('memory"', 'memory."', "$.title"),
        ("CUDA out of memory'''", "CUDA'''", "$.match[0].needle: 'CUDA' is too short"),
        ('lab = "x"', "", "is not valid under any of the given schemas"),
        ('lab = "x"', 'not_run = "needs a GPU"', "is not valid under any of the given schemas"),
        ('cause = "Because', 'cause = ""\ncollect = "Because', "$.cause: '' does not match"),
        ("[[sample]]\ntext", "[[sample]]\ntxt", "$.sample[0]"),
    ],
)
def test_the_schema_refuses(tmp_path, old, new, problem):
    path = tmp_path / "a.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    assert any(problem in one for one in problems(read_toml(path)))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('area = "memory"', "area = memory", "Invalid value"),
        ("[[match]]", "[[matches]]", "'match' is missing"),
        ('title = "A GPU', 'titles = "A GPU', "unexpected keyword argument 'titles'"),
        ("Tried to allocate \\d+", "(", "missing ), unterminated subpattern"),
        ('explains = ["peer"', 'explains = ["no-such"', "there is no other entry or family 'no-such'"),
        ('explains = ["peer"', 'explains = ["memory-cuda"', "there is no other entry or family 'memory-cuda'"),
    ],
)
def test_an_entry_that_cannot_be_loaded_is_named_in_one_line(tmp_path, old, new, problem):
    assert old in GOOD
    (tmp_path / "memory-cuda.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(EntryError) as raised:
        entries(tmp_path)
    assert "memory-cuda.toml: " in str(raised.value)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cause_explains_the_families_that_it_names_and_what_launchers_print():
    known = entries(OWN / "entries")
    assert known["memory-cuda"].explains == ("nccl-watchdog", "torchrun-child-failed")
    assert known["address-in-use"].explains == ("torchrun-child-failed",)
    assert known["nccl-watchdog"].explains == ()
