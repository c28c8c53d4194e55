"""Every message that a user of DDP can meet, in any release that was looked at, has an entry of the error index.

The list is made from the sources of the releases by ``tests/messages/collect.py``.
What this shows is that an entry's pattern fits the text; whether the entry is right is for its author to say.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

from ddplab.diagnose import entries
from ddplab.diagnose.tables import read_toml
from diagnose_logs import OWN

sys.path.insert(0, str(Path(__file__).parents[1] / "messages"))
from sample import fill, sample

LIST = read_toml(OWN / "messages.toml")
MATCHES = [match for entry in entries().values() for match in entry.matches]
BY_THE_ENGINE = ("failed (exitcode: ",)  # torchrun's line of how a rank ended, which needs no entry


def has_entry(line: str, matches=MATCHES) -> bool:
    if any(text in line for text in BY_THE_ENGINE):
        return True
    return any(
        match.needle in line
        and match.nearby in line
        and (not match.regex or any(match.regex.search(part) for part in line.split("\n") if match.needle in part))
        for match in matches
    )


def messages():
    for project, releases in LIST["releases"].items():
        for file, rows in LIST[project].items():
            for kind, span, text in rows:
                first, _, last = span.partition("-")
                covered = releases[releases.index(first) : releases.index(last or first) + 1]
                yield project, covered, file, kind, text


def shares(matches=MATCHES):
    """By project and release: the share of messages with an entry; and the messages without one."""
    total, known, missing = Counter(), Counter(), []
    for project, releases, file, kind, text in messages():
        found = has_entry(sample(file, kind, text), matches)
        missing += [] if found else [f"{file}: {text}"]
        for release in releases:
            total[project, release] += 1
            known[project, release] += found
    return {key: known[key] / total[key] for key in total}, missing


def test_every_message_of_every_release_has_an_entry():
    measured, missing = shares()
    assert not missing, "\n".join(missing)
    assert len(measured) > 45
    assert set(measured.values()) == {1.0}


def test_an_entry_that_is_gone_is_noticed():
    others = [match for entry in entries().values() if entry.id != "nccl-topology-file" for match in entry.matches]
    measured, missing = shares(others)
    assert any("XML Parse" in one for one in missing)
    assert measured["nccl", "2.27"] < 1.0


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Connect to {} failed : {}", "Connect to 10.0.0.7<40113> failed : Cannot assign requested address"),
        ("Process {} got signal: {}", "Process 7 got signal: 15"),
        ("{} of {}", "7 of 7"),
    ],
)
def test_what_only_a_run_knows_is_filled_in(text, filled):
    assert fill(text) == filled
