"""Fix a program that hangs at its end

A colleague's `train` deals the samples to the ranks like cards. With 20 samples it trained
well. With 21, on two ranks, it hangs; `log.txt` shows what both ranks printed.

Fix it so that, on any number of ranks and samples,

- every rank comes to its end, and all hold the same weights,
- every sample is trained on in every epoch; a few may be trained on twice,
- each step averages the gradients of the ranks, and `batch_size` counts per rank.

Every rank calls `train`, with the same arguments but for `rank` and the model's weights.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def train(
    rank: int,
    world_size: int,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
) -> None:
    """Train `model` on the samples x, y."""
    mine = torch.arange(rank, len(x), world_size)  # rank 0: 0, 2, 4, …; rank 1: 1, 3, 5, …
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    for epoch in range(epochs):
        shuffle = torch.Generator().manual_seed(epoch)
        order = mine[torch.randperm(len(mine), generator=shuffle)]
        for batch in order.split(batch_size):
            loss = mse_loss(ddp(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} done, loss {loss.item():.3f}", flush=True)
