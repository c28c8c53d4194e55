"""Grade a text as a learner's file: by ``grade``, in ranks of its own, or many texts in the same ranks."""

import itertools
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from bounds import time_is_up_when
from ddplab import launch
from ddplab.grading import calls, checks, explain, run
from ddplab.grading.exercises import EXERCISES, find_exercise, read_source
from tools import PATIENCE_S

OUT_OF_STEP = "The ranks are out of step|was done. Every rank must make the same collective calls"


def outcomes(exercise: str, path: Path, timeout_s: float = PATIENCE_S) -> list[checks.Outcome]:
    """All checks of the file at ``path``, by ``grade`` in this process: its fork server is warm already."""
    found = find_exercise(exercise)
    return list(run.grade(found, read_source(path, found), timeout_s))


def first_failure(exercise: str, folder: Path, text: str, timeout_s: float = PATIENCE_S) -> str:
    """The message of the check that rejects ``text``, which must be wrong."""
    path = folder / "mine.py"
    path.write_text(text)
    failed = [outcome for outcome in outcomes(exercise, path, timeout_s) if outcome.status == "failed"]
    assert failed, "a wrong solution passed every check"
    return failed[0].message


def message_to_a_hang(
    exercise: str, folder: Path, text: str, hangs: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> str:
    """The same for a text that hangs; its time is up once it does."""
    time_is_up_when(monkeypatch, lambda _: hangs())
    return first_failure(exercise, folder, text)


def passes_all(exercise: str, path: Path) -> bool:
    """Whether every check passes; what the first that does not says is in pytest's report."""
    failed = [outcome for outcome in outcomes(exercise, path) if outcome.status != "passed"]
    print(*failed[:1])
    return not failed


def first_messages(exercise: str, texts: Mapping[Any, str], folder: Path) -> dict[Any, str]:
    """What the first check that rejects each text says, "" if all pass: all texts are tried in the same ranks.

    A text whose ranks end, hang or diverge needs ranks of its own: see :func:`first_failure`.
    """
    messages = dict.fromkeys(texts, "")
    numbered = enumerate(checks.checks_of(find_exercise(exercise)))
    for ranks, group in itertools.groupby(numbered, key=lambda pair: pair[1].ranks):
        left = {tried: text for tried, text in texts.items() if not messages[tried]}
        numbers = [number for number, _ in group]
        messages |= launch(_try_all, ranks, exercise, left, numbers, folder, timeout_s=PATIENCE_S, quiet=True)[0]
    return messages


# The tests of a file that imports them, by its tables. Their keys are what was tried in the exercise NAME, or the
# exercise and what was tried: WRONG (edits, words of the message), RIGHT (edits), and ALONE, those keys of WRONG whose
# ranks end, raise or diverge. `written(key, edits)` is the learner's file.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tables = vars(metafunc.module)
    wrong, alone = tables.get("WRONG", {}), tables.get("ALONE", ())
    keys = {
        test_a_wrong_file_gets_the_reason: [key for key in wrong if key not in alone],
        test_one_that_needs_ranks_of_its_own_gets_the_reason: alone,
        test_a_right_file_passes: [*tables.get("RIGHT", ())],
    }
    if metafunc.function in keys:
        metafunc.parametrize("key", keys[metafunc.function], ids=str)


@pytest.fixture(scope="module")
def messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, str]:
    """The message to each file that keeps its ranks together, as far as the tests that are run now ask for it."""
    tables, texts = vars(request.module), {}
    edits = {**tables.get("RIGHT", {}), **{key: edits for key, (edits, _) in tables["WRONG"].items()}}
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {item.callspec.params.get("key") for item in items} - {*tables["ALONE"]}
    for key in (key for key in edits if key in asked):
        texts.setdefault(_exercise(tables, key), {})[key] = tables["written"](key, edits[key])
    folder, found = tmp_path_factory.mktemp("messages"), {}
    for exercise, each in texts.items():
        found |= first_messages(exercise, each, folder)
    return found


def test_a_wrong_file_gets_the_reason(key: Any, messages: dict[Any, str], request: pytest.FixtureRequest) -> None:
    mentions(messages[key], request.module.WRONG[key][1])


def test_one_that_needs_ranks_of_its_own_gets_the_reason(
    key: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tables = vars(request.module)
    edits, words = tables["WRONG"][key]
    mentions(first_failure(_exercise(tables, key), tmp_path, tables["written"](key, edits)), words)


def test_a_right_file_passes(key: Any, messages: dict[Any, str]) -> None:
    assert messages[key] == ""


def _exercise(tables: Mapping[str, Any], key: Any) -> str:
    return key[0] if isinstance(key, tuple) else tables["NAME"]


def _try_all(exercise: str, texts: Mapping[str, str], numbers: list[int], folder: Path) -> dict[str, str]:
    """On each rank: the first message of these checks for each text."""
    messages, found = dict.fromkeys(texts, ""), checks.checks_of(find_exercise(exercise))
    for at, (tried, number) in enumerate(itertools.product(texts, numbers)):
        if messages[tried]:
            continue
        place = folder / f"{exercise}-{numbers[0]}-{at}"
        place.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        seen, wrong = None, ""
        with calls.Recorder(place / f"{dist.get_rank()}.calls") as own:
            try:
                seen = found[number].observe(checks.load_module("learner", place / "mine.py", texts[tried]), own)
            except checks.Wrong as error:
                wrong = error.message
        of_all = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, (seen, wrong, own.calls))
        messages[tried] = _verdict(found[number], *zip(*of_all, strict=True))
    return messages


def _verdict(check, seen, wrong, calls):
    """What ``grade`` would say."""
    try:
        if any(wrong):
            return next(filter(None, wrong))
        if diverged := explain.diverged(list(calls), check.read):
            raise diverged
        check.judge(list(seen))
    except checks.Wrong as error:
        return error.message
    return ""


def text_of(exercise: str, *edits: tuple[str, str], file: str = "solution") -> str:
    """The solution, or another file of the exercise, with other lines."""
    return but((EXERCISES / exercise / f"{file}.py").read_text(), *edits)


def but(text: str, *edits: tuple[str, str]) -> str:
    """The text with other lines."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def overriding(exercise: str, name: str, methods: str) -> str:
    """The solution, and below it its class ``name`` again, with other ``methods``."""
    solution = (EXERCISES / exercise / "solution.py").read_text()
    body = textwrap.indent(textwrap.dedent(methods).strip(), "    ")
    return f"{solution}\n\nclass {name}({name}):\n{body}\n"


def mentions(message: str, words: str) -> None:
    """The message holds each of the words, split at `|`."""
    assert message, "a wrong solution passed every check"
    for word in words.split("|"):
        assert word in message, message
