"""A program for one device and its DDP form: the batches of the ranks, and what a seed changes."""

from itertools import chain

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from ddplab import launch
from ddplab.runtime.needs import ON_CPU


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
