"""``postmortem`` lets every rank go to its own end, tells how each ended, and leaves no process."""

import os
import signal
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from ddplab.labs.postmortem import postmortem, report


def four_ways():
    rank = dist.get_rank()
    if rank == 0:
        print("working")
        return "done"
    if rank == 1:
        raise ValueError("label 17\nis unknown")
    if rank == 2:
        print("about to go")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return None


def test_each_rank_goes_to_its_own_end():
    returned, raised, died, hung = postmortem(four_ways, 4, timeout_s=4)
    assert (returned.how, returned.value, returned.printed) == ("returned", "done", "working\n")
    assert (raised.how, raised.error) == ("raised", "ValueError: label 17\nis unknown")
    assert "four_ways at line" in raised.where
    assert (died.how, died.error) == ("died", "was killed by SIGKILL")
    assert hung.how == "hung"
    assert hung.after_s == 4
    assert "four_ways at line" in hung.where
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]
    lines = report([returned, raised, died, hung], said=1).splitlines()
    assert lines[0] == "rank 0 │ returned 'done'"
    assert "rank 2 │   about to go" in lines
    assert lines[-1].startswith("rank 3 │ hung, in four_ways")


def waits_for_nobody():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(1))


@pytest.mark.parametrize("leave", [False, True])
def test_a_rank_that_is_done_stays_or_leaves(leave):
    waiting, done = postmortem(waits_for_nobody, 2, timeout_s=20, group_timeout_s=1, leave=leave)
    assert (waiting.how, done.how) == ("raised", "returned")
    assert ("Timed out waiting 1000ms" in waiting.error) == (not leave)
    assert ("by peer" in waiting.error) == leave
    assert "all_reduce, called by waits_for_nobody" in waiting.where


def test_reports_and_deaths_may_come_in_one_batch():
    """Once a rank's report and its death were seen together, and the second was looked up in vain."""
    for _ in range(10):
        assert {end.how for end in postmortem(lambda: 1 / dist.get_rank(), 3)} == {"raised", "returned"}
