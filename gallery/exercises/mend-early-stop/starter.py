"""Fix an early stop

A colleague's `train` stops when the validation loss has not fallen for `patience` epochs.
On one process it does what it should; on two it hangs, see `log.txt`.

Fix it so that, on any number of ranks,

- every rank stops after the same epoch, and all hold the same weights,
- this is the epoch after which one process with the whole validation set would stop,
- also where the validation samples cannot be dealt evenly, or are fewer than the ranks.

Every rank calls `train`, with the same arguments but for `rank` and the model's weights.
Return the number of epochs.
"""

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
            val_loss = mse_loss(ddp.module(val_x), val_y).item()
        print(f"epoch {epoch}: validation loss {val_loss:.3f}", flush=True)
        epochs_since = 0 if val_loss < best else epochs_since + 1
        best = min(best, val_loss)
        if epochs_since == patience:
            print("stopping early", flush=True)
            break
    return epoch + 1
