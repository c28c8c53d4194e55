"""Make a resume exact

A colleague's run saves its weights, its optimizer and its step. Stopped and started again, it
goes on with a loss that looks right. But it is another run: nobody can repeat what it does.

Fix it so that, on any number of ranks,

- a run that was stopped after any step, once or more often, and resumed has the same losses
  and ends with the same weights, bit for bit, as one that was never stopped,
- a run that is never stopped computes what it computes now.

Every rank calls `train`. It returns when `last_step` is done and saved, with the losses of the
steps that it has made. Another process calls it again, with the same data and folder, a new
model and the same or a later `last_step`. What `folder` holds is up to you, and so are the
arguments of `save` and `resume`. Reading a sample adds noise to it, from Python's generator.
"""

import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def save(folder: Path, step: int, ddp: DistributedDataParallel, optimizer: Optimizer) -> None:
    """Save the run as it is after `step` steps."""
    if dist.get_rank() == 0:
        state = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step}, folder / "last.pt")
    dist.barrier()  # nobody returns before the file is complete


def resume(folder: Path, ddp: DistributedDataParallel, optimizer: Optimizer) -> int:
    """Load what was saved, if anything was; return how many steps are done."""
    path = folder / "last.pt"
    if not path.exists():
        return 0
    saved = torch.load(path, map_location="cpu")
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def train(model: nn.Module, dataset: Dataset, folder: Path, last_step: int) -> list[float]:
    """Train from where `folder` ends, or from the beginning, to `last_step`."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # dropout: other units on each rank
    random.seed(rank)  # noise
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.02)
    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / 4, 20 / (step + 20)))
    sampler = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    step, losses = resume(folder, ddp, optimizer), []
    while step < last_step:
        sampler.set_epoch(step // len(loader))
        for x, y in loader:
            loss = mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.item())
            step += 1
            if step == last_step:
                break
    save(folder, step, ddp, optimizer)
    return losses
