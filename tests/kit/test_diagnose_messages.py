"""Every message that a user of DDP can meet, in any release that was looked at, has an entry of the error index.

The list is made from the sources of the releases by ``tests/messages/collect.py``.
What this shows is that an entry's pattern fits the text; whether the entry is right is for its author to say.
"""

from collections import Counter

import pytest

from ddplab.diagnose import entries
from ddplab.diagnose.tables import read_toml
from diagnose_logs import OWN
from messages.sample import fill, sample

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


@pytest.mark.parametrize(
    "line",
    [
        "node1:931:1103 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        "node1:931:1103 [0] NCCL INFO [Proxy Progress] Device 0 CPU core 3",
        "node1:931:1103 [0] NCCL INFO NET/IB : No device found.",
        "node1:931:1103 [0] NCCL INFO NCCL_OOB_NET_IFNAME set by environment to eth0",
        "node1:931:1103 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE",
        "node1:931:1103 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "NCCL_OOB_NET_IFNAME=eth0",
        "NCCL_IB_SUBNET_PREFIX_LEN=16",
        "I1121 20:25:10.615000 28203 torch/distributed/elastic/agent/server/local_elastic_agent.py:200] "
        "Starting a FileTimerServer with /tmp/watchdog_timer ...",
        "I1121 20:25:10.615000 28203 torch/distributed/elastic/agent/server/api.py:525] [default] worker group started",
        "epoch 3: loss 0.31, 412 samples per s, no new best; error rate 0.08, failed batches: 0",
        "WARNING: the config file does not match: using defaults",
        "connect to the tracker failed, tracking is off",
        "port number missing in the config of the logger, taking 8080",
    ],
)
def test_lines_of_a_good_run_have_no_entry(line):
    assert not has_entry(line), [m.needle for m in MATCHES if has_entry(line, [m])]
