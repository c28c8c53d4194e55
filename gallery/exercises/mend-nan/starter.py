"""Fix a guard against NaN

Now and then a batch is damaged, and its loss is NaN or inf. A colleague's `train` leaves such
a batch out. On one process that works; on two ranks it hangs, see `log.txt`.

Fix it so that, on any number of ranks,

- a step in which the loss of any rank is not finite is left out, by all ranks,
- every other step is made, with the mean gradient of all ranks,
- all ranks come to their end with the same weights, those that one process gets that trains on
  the good steps alone.

Every rank calls `train`, with the same number of batches, but its own.
Return the number of steps that were left out.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def train(
    rank: int,
    world_size: int,
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    lr: float,
) -> int:
    """Train `model` on this rank's batches, one step each."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    left_out = 0
    for step, (x, y) in enumerate(batches):
        loss = mse_loss(ddp(x), y)
        if not loss.isfinite():
            print(f"step {step}: loss is {loss.item()}, batch left out", flush=True)
            left_out += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return left_out
