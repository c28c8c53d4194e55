"""A program for one device and its DDP form: gallery/recipes/single_device.py and converted_ddp.py."""

import contextlib
import io
import sys
from itertools import chain

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from ddplab import launch
from ddplab.apparatus.recipes import FOLDER
from ddplab.runtime.needs import ON_CPU


def run(name, ranks, path):
    """The losses that rank 0 printed, and the weights that were saved; only rank 0 has printed."""

    def program(text):
        sys.argv = [name, str(path)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
        return said.getvalue()

    first, *others = launch(program, ranks, (FOLDER / name).read_text(), init=False, env=ON_CPU)
    assert not any(others)
    losses = torch.tensor([float(line.split()[-1]) for line in first.splitlines()])
    return losses, torch.load(path, map_location="cpu")


@proves("conversion-same-losses")
def test_the_converted_program_prints_the_same_losses(tmp_path):
    """One, two and four ranks against one device: four losses and all weights, within rounding."""
    losses, weights = run("single_device.py", 1, tmp_path / "single.pt")
    assert len(losses) == 4
    assert losses[0] > 2 * losses[-1]
    for ranks in (1, 2, 4):
        mine, saved = run("converted_ddp.py", ranks, tmp_path / f"{ranks}.pt")
        torch.testing.assert_close(mine, losses, rtol=0, atol=2e-6)
        torch.testing.assert_close(saved, weights, rtol=1e-4, atol=1e-5)


@proves("conversion-same-batches")
def test_the_ranks_batches_together_are_those_of_one_process():
    """Three epochs of 32 samples in batches of 8, on one, two and four ranks."""

    def batches(ranks, batch):
        torch.manual_seed(torch.distributed.get_rank())  # must not matter
        sampler = DistributedSampler(range(32))
        found = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            found += BatchSampler(sampler, batch // ranks, drop_last=False)
        return found

    order, alone = torch.Generator(), []
    for epoch in range(3):
        order.manual_seed(epoch)
        alone += BatchSampler(RandomSampler(range(32), generator=order), 8, drop_last=False)
    for ranks in (1, 2, 4):
        of_ranks = launch(batches, ranks, ranks, 8)
        together = [sorted(chain(*parts)) for parts in zip(*of_ranks, strict=True)]
        assert together == [sorted(batch) for batch in alone]


def final_losses(seeds, dropout):
    """The loss of a small model after four epochs, for each seed: one draw of weights, order and masks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(320, 2, generator=numbers) - 1
    y = (2 * x).sin().sum(dim=1, keepdim=True)
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 1))
        torch.manual_seed(seed + 1000 * rank)
        ddp = DDP(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(4):
            order = torch.randperm(320, generator=torch.Generator().manual_seed(100 * seed + epoch))
            for batch in order.split(32):
                mine = batch[rank::ranks]
                optimizer.zero_grad()
                mse_loss(ddp(x[mine]), y[mine]).backward()
                optimizer.step()
        with torch.no_grad():
            found.append(mse_loss(model.eval()(x), y))
    return torch.stack(found)


@proves("seeds-differ-more-than-ranks")
def test_seeds_differ_more_than_one_and_two_ranks():
    """Five seeds: the largest distance of one and two ranks, beside that between the seeds."""
    for dropout in (0.0, 0.2):
        one, two = (launch(final_losses, ranks, range(5), dropout, env=ON_CPU)[0] for ranks in (1, 2))
        seeds, ranks = one.max() - one.min(), (one - two).abs().max()
        assert (ranks > seeds / 5) if dropout else (ranks < seeds / 1000)
