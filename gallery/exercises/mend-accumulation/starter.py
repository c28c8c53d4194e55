"""Fix an accumulation loop

A colleague's `train` splits each batch into micro-batches, because the whole does not fit into
memory. It raises nothing, and it is slow; and the weights are not what they should be.

Fix it so that, on any number of ranks,

- one step of the optimizer is made per window of `accumulate` micro-batches, with the gradient
  of the loss over the whole window and all ranks, as if it had been one big batch,
- a shorter window may be left at the end of the data; it gets its step, too, with the mean
  over what is in it,
- a step communicates once: as many all-reduces as there are buckets.

Every rank calls `train`, with as many micro-batches of its own, all of the same size. One
micro-batch at a time goes through the model. Leave the optimizer as it is.
"""

import contextlib

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def train(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    accumulate: int,
    lr: float,
) -> None:
    """Train `model` for one pass over the micro-batches of this rank."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    for i, (x, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = mse_loss(ddp(x), y)
        if i % accumulate:  # the last one of a window synchronizes
            with ddp.no_sync():
                loss.backward()
        else:
            loss.backward()
        optimizer.step()
