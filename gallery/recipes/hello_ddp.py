"""The smallest complete DDP program: torchrun --standalone --nproc-per-node 2 hello_ddp.py"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group: its functions would keep the one they find
from torch.nn.parallel import DistributedDataParallel


def main() -> dist.ProcessGroup:
    """Take one step on this rank's share of the data and say what became of the model."""
    # Rank, world size and where to meet come from the variables that torchrun has set.
    # A GPU for each rank, or none: NCCL refuses two ranks on one.
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(rank)  # other weights on every rank: the constructor makes them equal
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    inputs = torch.randn(8, 4, device=device)  # and sees other data
    loss = model(inputs).square().mean()
    loss.backward()  # here the gradients are averaged over the ranks
    optimizer.step()

    weights = sum(p.sum().item() for p in model.parameters())
    said = (
        f"rank {rank}: loss {loss.item():.4f}, sum of weights after the step {weights:+.6f}\n"
    )
    sys.stdout.write(said)  # in one piece; print() writes the end of the line by itself
    sys.stdout.flush()
    dist.barrier()  # leave together
    group = dist.group.WORLD
    dist.destroy_process_group()
    return group  # the last to let go of it is nobody who holds Python's lock, as DDP would


if __name__ == "__main__":
    main()
