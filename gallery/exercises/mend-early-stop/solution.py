"""Fix an early stop: a solution"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

Samples = tuple[Tensor, Tensor]  # x, y


def train(
    rank: int,
    world_size: int,
    model: nn.Module,
    training: Samples,
    validation: Samples,
    max_epochs: int,
    patience: int,
    lr: float,
) -> int:
    """Train `model` until the validation loss has not fallen for `patience` epochs."""
    x, y = (part[rank::world_size] for part in training)  # divides by the world size
    val_x, val_y = (part[rank::world_size] for part in validation)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    best, epochs_since = float("inf"), 0
    for epoch in range(max_epochs):
        optimizer.zero_grad()
        mse_loss(ddp(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            error = mse_loss(ddp.module(val_x), val_y, reduction="sum")
        both = torch.stack([error, torch.full_like(error, len(val_x))])
        dist.all_reduce(both)  # sum of errors and number of samples, of all ranks
        val_loss = (both[0] / both[1]).item()  # the same on all ranks, as is the end
        if rank == 0:
            print(f"epoch {epoch}: validation loss {val_loss:.3f}", flush=True)
        epochs_since = 0 if val_loss < best else epochs_since + 1
        best = min(best, val_loss)
        if epochs_since == patience:
            break
    return epoch + 1
