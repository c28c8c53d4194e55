"""The smallest complete DDP program: torchrun --standalone --nproc-per-node 2 hello_ddp.py"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group: its functions keep the one that they find
from torch.nn.parallel import DistributedDataParallel


def main() -> dist.ProcessGroup:
    """Take one step on this rank's share of the data and print what became of the model."""
    # Rank, world size and the meeting point come from the variables that torchrun has set.
    # Each rank gets a GPU, or none does: NCCL refuses two ranks on one.
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(rank)  # each rank has other weights: the constructor makes them equal
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    inputs = torch.randn(8, 4, device=device)  # each rank sees different data
    loss = model(inputs).square().mean()
    loss.backward()  # here the gradients are averaged over the ranks
    optimizer.step()

    weights = sum(p.sum().item() for p in model.parameters())
    line = f"rank {rank}: loss {loss.item():.4f}, sum of weights after the step {weights:+.6f}"
    sys.stdout.write(line + "\n")  # in one write; print() would use two
    sys.stdout.flush()
    dist.barrier()  # exit together
    group = dist.group.WORLD
    dist.destroy_process_group()
    return group  # so that it is not freed by DDP, which would hold Python's lock


if __name__ == "__main__":
    main()
