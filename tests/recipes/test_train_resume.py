"""train.py stops on a signal that any rank gets, and goes on as if it had never stopped."""

import os
import random
import re
import shutil
import signal
import textwrap
import time

import pytest

from ddplab import checkpoint as manager
from ddplab.apparatus.machines import loopback
from ddplab.runtime.needs import needs
from tools import PATIENCE_S
from trainer import (
    TINY,
    TRAIN,
    call,
    checkpoint,
    curve,
    files,
    live,
    losses,
    same_bits,
    start,
    start_python,
    train,
)

STEPS_PER_EPOCH = 21  # of 3,000 letters, in samples of 16, nine tenths of them in steps of 8
SIGNALLED = """
    import os, runpy, signal, sys
    import torch

    plain, steps = torch.optim.AdamW.step, []

    def step(optimizer, *args, **kwargs):
        steps.append(1)
        if len(steps) == 13 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)  # as torchrun does
        return plain(optimizer, *args, **kwargs)

    torch.optim.AdamW.step = step
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def same(tmp_path):
    """A small run with dropout, over more than one epoch."""
    text = tmp_path / "short.txt"
    text.write_text("".join(chr(97 + i * i % 17) for i in range(3000)))
    return [*TINY, "--data", text, "--steps", STEPS_PER_EPOCH + 9]


@pytest.fixture
def signalled(tmp_path):
    """train.py, but rank 1 gets a signal in its 13th step, twice."""
    program = tmp_path / "signalled.py"
    program.write_text(textwrap.dedent(SIGNALLED))
    return program


def test_stopped_within_an_epoch_it_ends_bit_for_bit_as_if_it_never_had(same, signalled, tmp_path):
    same += ["--precision", "fp16", "--accumulate", 2]  # so that scaler and micro-batches are in it too
    whole = train(2, *same, "--out", tmp_path / "whole")

    stopped = start(2, TRAIN, *same, "--out", tmp_path / "twice", program=signalled)
    assert [rank.code for rank in stopped] == [75, 75]
    assert stopped[0].out.endswith("stopped by a signal and saved after step 13: run this again\n")
    assert stopped[1].out == stopped[1].err == ""
    assert checkpoint(tmp_path / "twice")["step"] == 13
    shutil.copytree(tmp_path / "twice", tmp_path / "alone")

    rest = train(2, *same, "--out", tmp_path / "twice")
    assert rest.startswith("resumed after step 13")
    assert losses(rest) == losses(whole)[13:]
    same_bits(tmp_path / "whole", tmp_path / "twice")
    assert checkpoint(tmp_path / "whole")["scaler"] == checkpoint(tmp_path / "twice")["scaler"]

    again = train(2, *same, "--out", tmp_path / "twice")
    assert "complete after step 30" in again
    assert not losses(again)

    (alone,) = call(1, *same, "--out", tmp_path / "alone")  # on another number of ranks it goes on as well
    assert alone.out.startswith("resumed after step 13")
    assert alone.out.splitlines()[0].endswith("saved by 2 ranks")
    assert alone.err.count("\n") == alone.err.count("saved by 2 ranks, loaded by 1") == 1  # though two loads see it
    assert checkpoint(tmp_path / "alone")["step"] == STEPS_PER_EPOCH + 9


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_killed_anywhere_it_makes_the_same_curve_and_the_same_bits(same, ranks, tmp_path):
    """KILLS=n kills that often for each number of ranks; the last checkpoint is never lost."""
    same += ["--batch", 12, "--log-every", 2, "--save-every", 3]  # a save cuts a mean of two in two
    draw, kills = random.Random(ranks), int(os.environ.get("KILLS", 2))
    whole, log = tmp_path / "whole", tmp_path / "log"
    began = time.monotonic()
    said = curve(train(ranks, *same, "--out", whole))
    seconds = time.monotonic() - began
    assert len(said) == 15 + 10

    out, saved, killed = tmp_path / "0", 0, 0
    for n in range(kills + 1):
        kill, when = ("file", draw.randint(1, 30)) if n % 2 == 0 else ("all", draw.uniform(0, seconds))
        if n == kills:
            kill, when = "all", 0  # a timer of 0 seconds never goes off
        log.write_text("")
        ended = live(ranks, log, kill, when, *same, "--out", out)
        lines = log.read_text()
        with (tmp_path / f"{out.name}.log").open("a") as story:
            story.write(lines)
        resumed = re.match(r"resumed after step (\d+)", lines)
        if "ranks ×" in lines:  # it began to train, from no earlier than its last save
            assert (int(resumed[1]) if resumed else 0) >= saved
        reached = [int(step) for step in re.findall(r"step +(\d+)  loss", lines)]
        saved = max([saved, *((step - 1) // 3 * 3 for step in reached)])
        if ended:
            told = curve((tmp_path / f"{out.name}.log").read_text())
            assert set(told) == set(said)
            same_bits(whole, out)
            assert len(files(out)) == 3
            out, saved = tmp_path / str(n + 1), 0
        else:
            killed += 1
    assert killed


def test_resume_never_begins_anew_and_sets_aside_what_was_there(same, tmp_path):
    same += ["--out", tmp_path, "--save-every", 1]
    first = train(2, *same, "--steps", 4)
    told = [path.read_bytes() for path in files(tmp_path)]
    again = start(2, *same, "--steps", 4, "--resume", "never")
    assert losses(again[0].out) == losses(first)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.old"))] == told
    assert "resumed after step 4" in train(2, *same, "--steps", 4)


def test_it_runs_with_the_managers_file_beside_it_in_place_of_the_kit(tmp_path):
    shutil.copy(TRAIN, tmp_path)
    shutil.copy(manager.__file__, tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("some text " * 100)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ddplab'] = None  # is not installed")
    run = [*TINY, "--data", text, "--out", tmp_path / "out"]
    first, second = (start_python(1, *run, "--steps", 2, program=tmp_path / "train.py", path=tmp_path)[0] for _ in "12")
    assert "complete after step 2" in first.out, first.err
    assert second.out.startswith("resumed after step 2")
    (tmp_path / "checkpoint.py").unlink()
    (alone,) = start_python(1, *run, program=tmp_path / "train.py", path=tmp_path)
    assert "# its file, copied beside this" in alone.err
    assert alone.err.endswith("No module named 'checkpoint'\n")


def test_a_signal_to_torchrun_reaches_the_ranks(tmp_path):
    needs(torch="2.11")  # the torchrun of 2.8 does not know --signals-to-handle
    options = ["--standalone", "--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGUSR1"]
    with loopback(1) as (host,):
        agent = host.start(
            ["torchrun", *options, str(TRAIN), *map(str, TINY), "--steps", "1000000", "--out", str(tmp_path)]
        )
        agent.wait_for("step     3", PATIENCE_S)
        os.kill(agent.pid, signal.SIGUSR1)
        assert agent.wait(PATIENCE_S)
    said = agent.output[agent.output.index("stopped") :]
    assert said.startswith("stopped by a signal and saved")
    assert not losses(said)
    assert checkpoint(tmp_path)["step"] >= 3


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_sigterm_to_every_process_of_torchrun_loses_nothing(workers, tmp_path):
    """As Kubernetes, scancel and preemption do it; a worker that obeys would end its rank with an error."""
    tiny = [*map(str, TINY), "--steps=1000000", f"--workers={workers}", f"--out={tmp_path}"]
    with loopback(1) as (host,):
        agent = host.start(["torchrun", "--standalone", "--nproc-per-node=2", str(TRAIN), *tiny])
        agent.wait_for("step     3", PATIENCE_S)
        os.killpg(agent.pid, signal.SIGTERM)  # torchrun passes it on to the group of each rank
        assert agent.wait(PATIENCE_S)
    assert "stopped by a signal and saved" in agent.output, agent.output
    assert checkpoint(tmp_path)["step"] >= 3


CRASHED = """
    import runpy, sys
    import torch

    def step(*_, **__):
        raise RuntimeError("crash in the step")

    torch.optim.AdamW.step = step
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_crash_ends_the_workers_though_they_see_no_signal(tmp_path):
    program = tmp_path / "crashed.py"
    program.write_text(textwrap.dedent(CRASHED))
    (rank,) = start(1, TRAIN, *TINY, "--steps", 9, "--workers", 2, "--out", tmp_path, program=program)
    assert (rank.code, rank.err.count("RuntimeError: crash in the step")) == (1, 1), rank.err


def test_a_vote_every_few_steps_stops_at_one_of_them(same, signalled, tmp_path):
    stopped = start(2, TRAIN, *same, "--vote-every", 5, "--out", tmp_path, program=signalled)
    assert [rank.code for rank in stopped] == [75, 75]
    assert checkpoint(tmp_path)["step"] == 15  # the signal came in the 13th
