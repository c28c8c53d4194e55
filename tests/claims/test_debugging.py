"""The questions of the chapter on debugging: what separates wrong numbers, and what stacks tell of a hang."""

import time

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.labs.gaps import flat_weights, gap
from ddplab.labs.postmortem import postmortem
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


def read_for_ever():
    time.sleep(600)


def one_does_not_come():
    model = DDP(nn.Linear(4, 1).to(device()))
    out = model(torch.ones(2, 4).to(device()))
    if dist.get_rank() == 1:
        read_for_ever()
    out.sum().backward()


@proves("debug-stack-tells-the-absent-rank")
def test_the_stack_of_the_absent_rank_names_its_line():
    """A stack is taken from outside while both ranks still run."""
    # NCCL would hold back the GPU, not the host.
    waiting, absent = postmortem(one_does_not_come, 2, timeout_s=5, env=ON_CPU)
    assert (waiting.how, absent.how) == ("hung", "hung")
    assert waiting.where.startswith("backward, called by one_does_not_come")
    assert absent.where.startswith("read_for_ever at line")
