"""train.py stops on a signal that any rank gets, and goes on as if it had never stopped."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from trainer import TINY, TRAIN, checkpoint, losses, start, tensors, train

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
    assert stopped[0].out.endswith("stopped by a signal and saved after step 13: start me again\n")
    assert stopped[1].out == stopped[1].err == ""
    assert checkpoint(tmp_path / "twice")["step"] == 13
    shutil.copytree(tmp_path / "twice", tmp_path / "alone")

    rest = train(2, *same, "--out", tmp_path / "twice")
    assert rest.startswith("resumed after step 13")
    assert losses(rest) == losses(whole)[13:]
    once, twice = (tensors(checkpoint(tmp_path / name)) for name in ("whole", "twice"))
    assert len(once) > 40  # weights, two moments of each, RNGs
    assert once.keys() == twice.keys()
    for name, value in once.items():
        assert value.equal(twice[name]), name
    assert checkpoint(tmp_path / "whole")["scaler"] == checkpoint(tmp_path / "twice")["scaler"]

    again = train(2, *same, "--out", tmp_path / "twice")
    assert "complete after step 30" in again
    assert not losses(again)

    alone = train(1, *same, "--out", tmp_path / "alone")  # on another number of ranks it goes on as well
    assert alone.startswith("resumed after step 13")
    assert checkpoint(tmp_path / "alone")["step"] == STEPS_PER_EPOCH + 9


def test_resume_never_begins_anew(same, tmp_path):
    first = train(1, *same, "--out", tmp_path, "--steps", 2)
    assert losses(train(1, *same, "--out", tmp_path, "--steps", 2, "--resume", "never")) == losses(first)


def test_a_signal_to_torchrun_reaches_the_ranks(tmp_path):
    options = ["--standalone", "--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGUSR1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(TRAIN), *map(str, TINY)]
    with subprocess.Popen(
        [*command, "--steps", "1000000", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as agent:
        try:
            for line in agent.stdout:
                if line.startswith("step     3"):
                    agent.send_signal(signal.SIGUSR1)
                if line.startswith("stopped"):
                    break
            said = line + agent.communicate(timeout=60)[0]
        finally:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
    assert said.startswith("stopped by a signal and saved")
    assert said.count("\n") == 1
    assert agent.returncode != 0
    assert checkpoint(tmp_path)["step"] >= 3
