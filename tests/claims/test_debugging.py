"""The questions of the chapter on debugging: what separates wrong numbers, and what stacks tell of a hang."""

import faulthandler
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from patience import postmortem
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.labs.gaps import flat_weights, gap
from ddplab.runtime.needs import ON_CPU


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(fault, ranks):
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, ranks, 8, 4).to(device())
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model.module if fault == "around the wrapper" else model, x[step, dist.get_rank()])
        (loss / ranks if fault == "averages twice" else loss).backward()
        optimizer.step()
    return flat_weights(model)


def one_process(ranks):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randn(3, ranks, 8, 4):
        optimizer.zero_grad()
        loss_of(model, batch.flatten(0, 1)).backward()
        optimizer.step()
    return flat_weights(model)


@proves("debug-wrong-numbers-two-comparisons")
def test_rank_with_rank_and_all_with_one_process():
    """Three programs on 2 and 3 ranks: a right one, one whose ranks drift, one whose ranks agree on a part of it."""
    for ranks in (2, 3):
        reference = one_process(ranks)
        found = {}
        for fault in ("none", "around the wrapper", "averages twice"):
            weights = launch(train, ranks, fault, ranks)
            found[fault] = (gap(weights) > 0, gap([weights[0], reference]) > 1e-4)
        assert found == {"none": (False, False), "around the wrapper": (True, True), "averages twice": (False, True)}


def read_for_ever(folder):
    while not (folder / "seen").exists():
        time.sleep(0.05)


def one_does_not_come(folder):
    rank = dist.get_rank()
    faulthandler.register(signal.SIGUSR1, file=open(folder / f"{rank}.stacks", "w"))  # noqa: SIM115
    (folder / f"{rank} is {os.getpid()}").touch()
    model = DDP(nn.Linear(4, 1).to(device()))
    out = model(torch.ones(2, 4).to(device()))
    if dist.get_rank() == 1:
        read_for_ever(folder)
    out.sum().backward()


@proves("debug-stack-tells-the-absent-rank")
def test_the_stack_of_the_absent_rank_names_its_line(tmp_path):
    """Stacks are taken from outside while both ranks still run, until each is where it stays."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(postmortem, one_does_not_come, 2, tmp_path, env=ON_CPU)  # NCCL would not hold back the host

        def stacks(rank, place):
            """What the rank writes at signals from outside until a stack has this place; all ranks run."""
            file = tmp_path / f"{rank}.stacks"
            while not run.done():
                for named in tmp_path.glob(f"{rank} is *"):
                    os.kill(int(named.name.split()[-1]), signal.SIGUSR1)
                time.sleep(0.05)
                if file.exists() and re.search(place, file.read_text()):
                    return file.read_text()
            raise AssertionError(f"rank {rank} was never there: {run.result()}")

        try:
            stacks(1, r"line \d+ in read_for_ever\n.* in one_does_not_come\n")
            waiting = stacks(0, r"in backward\n.* in one_does_not_come\n")
        finally:
            (tmp_path / "seen").touch()
        assert "read_for_ever" not in waiting
        assert [ending.how for ending in run.result()] == ["returned"] * 2
