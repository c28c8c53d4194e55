"""The same on many devices: torchrun --standalone --nproc-per-node 2 converted_ddp.py"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 4, 32
PATH = sys.argv[1] if len(sys.argv) > 1 else "model.pt"


def make_data() -> TensorDataset:
    """Points in a square, and a wave over it."""
    numbers = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(640, 2, generator=numbers) - 1
    return TensorDataset(x, (2 * x).sin().sum(dim=1, keepdim=True))


def main() -> None:
    """Train, print the loss of each epoch, save the weights."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    ranks = dist.get_world_size()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH // ranks, sampler=sampler)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for x, y in loader:
            loss = mse_loss(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total /= len(loader)
        dist.all_reduce(total)
        total /= ranks
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total:.6f}")

    if dist.get_rank() == 0:
        torch.save(model.state_dict(), PATH)
    dist.barrier()
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
