"""Who is left when a launcher is interrupted or killed: ranks of torchrun, and those of mp.spawn.

All jobs run side by side, each in a thread; a rank that has lost its launcher says so and ends.
"""

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from proof import proves
from started import CLEAN, shutdown_timeout

from ddplab.apparatus.machines import Fork, Program
from ddplab.runtime.needs import needs
from tools import PATIENCE_S, gone, wait_until

# Without torch. Signals do not end it, but for a rank 0 whose fate it is to leave.
BUSY = """
import ctypes, os, signal, sys, time
rank, fate, launcher = os.environ["RANK"], sys.argv[1], os.getppid()
PRCTL

def say(text):  # also in a handler that another signal interrupts, where print would raise
    os.write(1, f"rank {rank}: {text}\\n".encode())

def got(number, _):
    say(f"got {signal.Signals(number).name}")
    if (fate, rank) == ("rank 0 leaves", "0"):
        say("left by itself")
        os._exit(0)

signal.signal(signal.SIGINT, got)
signal.signal(signal.SIGTERM, got)
say(f"pid {os.getpid()} session {os.getsid(0)}")
end_s = time.monotonic() + PATIENCE_S
while os.getppid() == launcher and time.monotonic() < end_s:
    time.sleep(0.1)
time.sleep(0.5)
say("has no launcher now")
""".replace("PATIENCE_S", str(PATIENCE_S))
TIED = BUSY.replace("PRCTL", "ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG")

# Rank 2 waits in C++; a thread of each rank tells what becomes of it.
SPAWNING = """
import datetime, os, sys, threading, time
import torch.distributed as dist
import torch.multiprocessing as mp

# Who is to be interrupted has all the time that it needs; who is not, cannot be, however long one waits.
patience_s = [PATIENCE_S, PATIENCE_S, 2] if sys.argv[1] == "alone" else [0.5, 0.5]

def say(rank, text):
    print(f"rank {rank}: {text}\\n", end="", flush=True)

def watch(rank, launcher):
    say(rank, f"pid {os.getpid()}")
    end_s = time.monotonic() + PATIENCE_S
    while os.getppid() == launcher and time.monotonic() < end_s:
        time.sleep(0.1)
    time.sleep(patience_s[rank])
    say(rank, "has no launcher now")
    os._exit(1)

def train(rank):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True) if rank == 2 else None
    threading.Thread(target=watch, args=(rank, os.getppid()), daemon=True).start()
    try:
        if store:
            store.wait(["never"], datetime.timedelta(seconds=PATIENCE_S))
        time.sleep(PATIENCE_S)
    except KeyboardInterrupt:
        say(rank, "was interrupted")
        raise

if __name__ == "__main__":
    print(f"launcher {os.getpid()}", flush=True)
    mp.spawn(train, nprocs=len(patience_s))
""".replace("PATIENCE_S", str(PATIENCE_S))


def pids(output):
    return [int(pid) for pid in re.findall(r"rank \d: pid (\d+)", output)]


def told(program, text, ranks):
    """Wait until so many ranks have said it; where all have ended, they will not."""

    def said():
        return len(re.findall(rf"rank \d: {text}", program.output)) == ranks

    def ended():
        return program.returncode is not None and all(map(gone, pids(program.output)))

    wait_until(lambda: said() or ended())
    if not said():
        program.wait(PATIENCE_S)  # all that they have said is read
    assert said(), program.output


@contextmanager
def torchrun(fate, *options, text=BUSY):
    """An agent of two ranks that are there; when the block ends, so do agent and ranks."""
    command = ["torchrun", "--standalone", "--nproc-per-node=2", *options]
    command += ["--no-python", sys.executable, "-c", text.replace("PRCTL", ""), fate]
    agent = Program(command, start=lambda command, _: Fork(command, CLEAN))
    try:
        told(agent, "pid", 2)
        yield agent
    finally:
        agent.kill()


def press_ctrl_c(agent):
    """What a terminal does: SIGINT for all processes of the group in its foreground."""
    os.killpg(agent.pid, signal.SIGINT)


# -- the jobs -------------------------------------------------------------------------------------


def once():
    """One rank leaves at the signal, the other does not."""
    with torchrun("rank 0 leaves", *shutdown_timeout(5)) as agent:
        ranks = pids(agent.output)
        press_ctrl_c(agent)
        agent.wait(PATIENCE_S)
        return agent.output, list(map(gone, ranks))


def thrice():
    """Each time when both ranks have got what came of the time before."""
    with torchrun("stay", *shutdown_timeout(100)) as agent:
        press_ctrl_c(agent)
        told(agent, "got SIGINT", 2)
        press_ctrl_c(agent)
        told(agent, "got SIGTERM", 2)
        before = agent.output
        press_ctrl_c(agent)
        agent.wait(PATIENCE_S)
        told(agent, "has no launcher now", 2)
        return before, agent.output


def killed(text):
    """SIGKILL for torchrun alone; what the ranks said until they were gone."""
    with torchrun("stay", text=text) as agent:
        ranks = pids(agent.output)
        os.kill(agent.pid, signal.SIGKILL)
        assert wait_until(lambda: all(map(gone, ranks)))
        agent.wait(PATIENCE_S)  # and all that its ranks have said is read
        return agent.output


def spawned(folder, how):
    """SIGKILL for what called mp.spawn, and what its ranks said until they were gone."""
    script = folder / "train.py"
    script.write_text(SPAWNING)
    # A shell without a terminal ignores SIGINT for what it starts with "&".
    command = f"{sys.executable} {script} {how}" + (" & wait" if how == "behind" else "")
    program = Program(["sh", "-c", command if how == "behind" else f"exec {command}"], CLEAN)
    try:
        told(program, "pid", 2 if how == "behind" else 3)
        ranks = pids(program.output)
        os.kill(int(re.search(r"launcher (\d+)", program.output)[1]), signal.SIGKILL)
        assert wait_until(lambda: all(map(gone, ranks)))
        program.wait(PATIENCE_S)
        return program.output
    finally:
        program.kill()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What comes of each job; all begin at once."""
    jobs = {
        "once": once,
        "thrice": thrice,
        "killed": lambda: killed(BUSY),
        "killed, tied": lambda: killed(TIED),
        "spawned": lambda: spawned(tmp_path_factory.mktemp("alone"), "alone"),
        "spawned behind &": lambda: spawned(tmp_path_factory.mktemp("behind"), "behind"),
    }
    with ThreadPoolExecutor(len(jobs)) as pool:
        yield {name: pool.submit(job) for name, job in jobs.items()}


# -- what they show -------------------------------------------------------------------------------


@proves("signals-ctrl-c-once")
def test_one_ctrl_c_ends_all_ranks(jobs):
    """Both ranks have sessions of their own and get SIGINT from torchrun; who does not leave in time is killed."""
    needs(torch="2.13")  # for --shutdown-timeout
    output, are_gone = jobs["once"].result()
    assert all(pid == session for pid, session in re.findall(r"pid (\d+) session (\d+)", output))
    assert sorted(re.findall(r"rank \d: got \w+", output)) == ["rank 0: got SIGINT", "rank 1: got SIGINT"]
    assert "rank 0: left by itself" in output
    assert len(re.findall("forcefully exiting via", output)) == 1
    assert are_gone == [True, True]


@proves("signals-ctrl-c-three-times")
def test_the_third_ctrl_c_leaves_ranks_behind(jobs):
    """The first sends SIGINT to the ranks and the second SIGTERM; behind the third, or a SIGKILL, they run alone."""
    before, output = jobs["thrice"].result()
    for rank in (0, 1):
        assert re.findall(rf"rank {rank}: (got \w+|has no launcher now)", before) == ["got SIGINT", "got SIGTERM"]
        assert re.findall(rf"rank {rank}: (got \w+|has no launcher now)", output)[2:] == ["has no launcher now"]
    assert "forcefully" not in output
    assert jobs["killed"].result().count("has no launcher now") == 2


@proves("signals-rank-tied-to-its-agent")
def test_a_rank_that_asks_for_it_dies_with_its_agent(jobs):
    """SIGKILL for torchrun: with the line in the program both ranks are killed; without it both go on."""
    tied, free = jobs["killed, tied"].result(), jobs["killed"].result()
    assert len(pids(tied)) == len(pids(free)) == 2
    assert "has no launcher now" not in tied
    assert "got SIG" not in tied + free
    assert free.count("has no launcher now") == 2


@proves("signals-spawned-ranks-end-with-parent")
def test_spawned_ranks_are_interrupted_when_their_parent_is_killed(jobs):
    """Two ranks in Python end, one that waits in C++ does not; nor do two of a script that a shell put behind."""
    alone, behind = jobs["spawned"].result(), jobs["spawned behind &"].result()
    for rank in (0, 1):
        assert re.findall(rf"rank {rank}: (?!pid)(.*)", alone) == ["was interrupted"]
        assert re.findall(rf"rank {rank}: (?!pid)(.*)", behind) == ["has no launcher now"]
    assert re.findall(r"rank 2: (?!pid)(.*)", alone) == ["has no launcher now"]
