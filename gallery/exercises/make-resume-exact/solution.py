"""Make a resume exact: a solution"""

import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def save(folder: Path, parts: dict[str, Any], epoch: int, done: int) -> None:
    """Save all that has a state, the position, and the generators of every rank."""
    mine = {"torch": torch.get_rng_state(), "python": random.getstate()}
    generators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, mine)
    if dist.get_rank() == 0:
        saved = {name: part.state_dict() for name, part in parts.items()}
        saved |= {"epoch": epoch, "done": done, "generators": generators}
        torch.save(saved, folder / "last.pt")
    dist.barrier()  # nobody returns before the file is complete


def resume(folder: Path, parts: dict[str, Any]) -> tuple[int, int, Any]:
    """Load what was saved; return the epoch, its steps, and generators, still to be set."""
    saved = torch.load(folder / "last.pt", map_location="cpu")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return saved["epoch"], saved["done"], saved["generators"][dist.get_rank()]


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
    parts = {"model": ddp.module, "optimizer": optimizer, "scheduler": scheduler}
    epoch, done, generators, losses = 0, 0, None, []
    if (folder / "last.pt").exists():
        x, y = next(iter(loader))
        mse_loss(ddp(x), y).backward()  # a warm-up: the next forward rebuilds the buckets
        optimizer.zero_grad()
        epoch, done, generators = resume(folder, parts)
    while epoch * len(loader) + done < last_step:
        sampler.set_epoch(epoch)
        rest = list(sampler)[4 * done :]  # skips the numbers of the samples: none is read
        batches = iter(DataLoader(dataset, batch_size=4, sampler=rest))
        if generators:  # last of all: the warm-up has drawn from them, and so has `iter`
            torch.set_rng_state(generators["torch"])
            random.setstate(generators["python"])
            generators = None
        for x, y in batches:
            loss = mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.item())
            done += 1
            if epoch * len(loader) + done == last_step:
                save(folder, parts, epoch, done)
                return losses
        epoch, done = epoch + 1, 0
    return losses
