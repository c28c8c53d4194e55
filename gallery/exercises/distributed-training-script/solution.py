"""Write a whole training script: a solution"""

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
    meet = f"tcp://127.0.0.1:{port}"
    if torch.cuda.device_count() >= world_size:
        device = torch.device("cuda", rank)  # one machine, so the rank is the local rank
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", meet, rank=rank, world_size=world_size)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", meet, rank=rank, world_size=world_size)
    return device


def cleanup_ddp() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


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
    device = setup_ddp(rank, world_size, port)
    ddp = DistributedDataParallel(build_model().to(device))  # rank 0's weights, on all ranks
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    sampler = DistributedSampler(dataset)  # asks the group for rank and world size
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # a new order, the same on all ranks
        seen = torch.zeros(2, device=device)  # sum of losses, number of samples
        for x, y in loader:
            loss = nn.functional.mse_loss(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over the ranks
            optimizer.step()
            seen += torch.stack([loss.detach() * len(x), torch.full_like(loss, len(x))])
        dist.all_reduce(seen)  # on all ranks, so that all know
        losses.append((seen[0] / seen[1]).item())
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    if rank == 0:
        torch.save(ddp.module.state_dict(), folder / "model.pt")
        torch.save(losses, folder / "losses.pt")  # for the process that started the ranks
    dist.barrier()  # nobody goes on before the files are there
    del ddp  # it holds the group, which must not outlive cleanup_ddp; see the walkthrough
    cleanup_ddp()
    return losses


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # chosen by the system, free again in a moment
    job = (dataset, build_model, folder, epochs, batch_size, lr)
    mp.spawn(train_ddp, (world_size, port, *job), nprocs=world_size)  # joins, and raises
    return torch.load(folder / "losses.pt")
