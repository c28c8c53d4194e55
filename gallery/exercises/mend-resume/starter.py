"""Fix a resume that forgets

A colleague's `train` saves a checkpoint, and goes on from it when it is started again. Nothing
is raised; but look at the losses of the second run in `log.txt`.

Fix it so that, on any number of ranks,

- a run that is resumed ends with the weights of one that was never interrupted,
- when `train` returns, on whichever rank, the checkpoint is there: the job may end then,
- all ranks hold the same weights.

Every rank calls `train`, with the same arguments but for `rank` and the model's weights; the
second run starts with a new model. What the file `checkpoint` holds is up to you.
"""

from pathlib import Path

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
    checkpoint: Path,
    last_epoch: int,
    lr: float,
) -> None:
    """Train `model` from where `checkpoint` ends, or from the beginning, to `last_epoch`."""
    first_epoch = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"], strict=False)  # strict complained of the names
        first_epoch = saved["epoch"]
        print(f"resumed after {first_epoch} epochs", flush=True)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    for epoch in range(first_epoch, last_epoch):
        loss = mse_loss(ddp(x[rank::world_size]), y[rank::world_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    if rank == 0:
        torch.save({"model": ddp.state_dict(), "epoch": last_epoch}, checkpoint)
