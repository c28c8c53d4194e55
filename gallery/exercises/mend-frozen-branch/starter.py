"""Fix a model with two branches

A colleague's `Model` has a layer for pictures taken by day and one for those by night. It
trained well on one process; on two it ends with an error in the second step, see `log.txt`.

Fix it, in `Model`, in `train`, or in both, so that, on any number of ranks,

- training goes on whichever kinds of pictures a rank's batch holds,
- all ranks hold the same weights, those of one process that trains on the batches of all,
- the model computes what it computes now, and its layers keep their names.

Every rank calls `train` with a `Model` and as many batches as the others, but its own.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """Predicts a number from a picture, by day or by night."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.day = nn.Linear(4, 1)
        self.night = nn.Linear(4, 1)

    def forward(self, x: Tensor, dark: Tensor) -> Tensor:
        h = self.body(x).tanh()
        out = h.new_zeros(len(x), 1)
        if dark.any():
            out[dark] = self.night(h[dark])
        if not dark.all():
            out[~dark] = self.day(h[~dark])
        return out


def train(
    rank: int,
    world_size: int,
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor, Tensor]],
    lr: float,
) -> None:
    """Train `model` on this rank's batches: pictures, whether each is dark, and targets."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    for step, (x, dark, y) in enumerate(batches):
        loss = mse_loss(ddp(x, dark), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: {int(dark.sum())} of {len(x)} dark, loss {loss:.3f}", flush=True)
