"""Fix a resume that forgets: a solution"""

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
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    first_epoch = 0
    if checkpoint.exists():  # on every rank: DDP will not broadcast again
        saved = torch.load(checkpoint, map_location="cpu")
        ddp.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # the momentum
        first_epoch = saved["epoch"]
        print(f"resumed after {first_epoch} epochs", flush=True)
    for epoch in range(first_epoch, last_epoch):
        loss = mse_loss(ddp(x[rank::world_size]), y[rank::world_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    if rank == 0:
        state = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": last_epoch}, checkpoint)
    dist.barrier()  # nobody returns before the file is complete
