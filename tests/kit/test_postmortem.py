"""``postmortem`` lets every rank go to its own end, tells how each ended, and leaves no process."""

import datetime
import os
import signal
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from bounds import time_is_up_when
from ddplab.apparatus.postmortem import postmortem, report
from tools import PATIENCE_S


def four_ways(hangs):
    rank = dist.get_rank()
    if rank == 0:
        print("working")
        return "done"
    if rank == 1:
        raise ValueError("label 17\nis unknown")
    if rank == 2:
        print("about to go")
        os.kill(os.getpid(), signal.SIGKILL)
    hangs.touch()
    time.sleep(4321)
    return None


def test_each_rank_goes_to_its_own_end(tmp_path, monkeypatch):
    def each_has(there):
        return (tmp_path / "hangs").exists() and all(rank.reported or rank.failure for rank in there[:3])

    time_is_up_when(monkeypatch, each_has)
    returned, raised, died, hung = postmortem(four_ways, 4, tmp_path / "hangs", timeout_s=PATIENCE_S)
    assert (returned.how, returned.value, returned.printed) == ("returned", "done", "working\n")
    assert (raised.how, raised.error) == ("raised", "ValueError: label 17\nis unknown")
    assert "four_ways at line" in raised.where
    assert (died.how, died.error) == ("died", "was killed by SIGKILL")
    assert hung.how == "hung"
    assert hung.after_s == PATIENCE_S
    assert "four_ways at line" in hung.where
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]
    lines = report([returned, raised, died, hung], said=1).splitlines()
    assert lines[0] == "rank 0 │ returned 'done'"
    assert "rank 2 │   about to go" in lines
    assert lines[-1].startswith("rank 3 │ hung, in four_ways")


def waits_for_nobody(limit_s):
    if dist.get_rank() == 0:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=limit_s))
    return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()


@pytest.mark.parametrize(("leave", "limit_s", "error"), [(False, 0.5, "in 500 ms"), (True, PATIENCE_S, "by peer")])
def test_a_rank_that_is_done_stays_or_leaves(leave, limit_s, error):
    waiting, done = postmortem(waits_for_nobody, 2, limit_s, timeout_s=PATIENCE_S, group_timeout_s=777, leave=leave)
    assert (waiting.how, done.how, done.value) == ("raised", "returned", 777)
    assert error in waiting.error
    assert "monitored_barrier, called by waits_for_nobody" in waiting.where


def test_reports_and_deaths_may_come_in_one_batch():
    """Once a rank's report and its death were seen together, and the second was looked up in vain."""
    for _ in range(10):
        assert {end.how for end in postmortem(lambda: 1 / dist.get_rank(), 3, timeout_s=PATIENCE_S)} == {
            "raised",
            "returned",
        }
