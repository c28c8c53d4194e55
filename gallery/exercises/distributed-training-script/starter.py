"""Write a whole training script: start the ranks, train, clean up

Four functions that train a model on several processes of this machine, without torchrun:

    losses = launch_distributed(2, dataset, build_model, folder, epochs, batch_size, lr)

`setup_ddp` joins this process to a group of `world_size` ranks: NCCL if each has a GPU, else
gloo. The ranks meet at 127.0.0.1 and `port`. `cleanup_ddp` leaves the group.

`train_ddp` is all that one rank does, from `setup_ddp` to `cleanup_ddp`:
- `build_model()` gives a model, which may start with other weights on each rank. Train with
  DistributedDataParallel, `torch.optim.SGD` at `lr`, and `mse_loss` on `x, y = dataset[i]`.
- `batch_size` samples per rank and step. In each epoch every sample is trained on, each by one
  rank (padding repeats a few), in an order that is new in each epoch.
- It returns, on every rank, a list with the loss of each epoch: the mean over all samples of
  all ranks, each with the loss that it had when it was trained on.
- Rank 0 alone prints a line per epoch, and alone writes `folder / "model.pt"`: the state_dict
  that fits a model of `build_model()`. No rank returns before the file is complete.

`launch_distributed` starts `world_size` processes, returns the losses when all have ended,
raises if one fails, and leaves `os.environ` as it was. Two of them may run at the same time.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def setup_ddp(rank: int, world_size: int, port: int) -> torch.device:
    """Join the process group; return the device of this rank."""
    raise NotImplementedError


def cleanup_ddp() -> None:
    """Leave the process group."""
    raise NotImplementedError


def train_ddp(
    rank: int,
    world_size: int,
    port: int,
    dataset: Dataset,
    build_model: Callable[[], nn.Module],
    folder: Path,
    epochs: int,
    batch_size: int,
    lr: float,
) -> list[float]:
    """Train as one rank of `world_size`; return the loss of each epoch."""
    raise NotImplementedError


def launch_distributed(
    world_size: int,
    dataset: Dataset,
    build_model: Callable[[], nn.Module],
    folder: Path,
    epochs: int,
    batch_size: int,
    lr: float,
) -> list[float]:
    """Train on `world_size` new processes; return the loss of each epoch."""
    raise NotImplementedError
