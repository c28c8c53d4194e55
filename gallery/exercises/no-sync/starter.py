"""Skip the synchronization: write `no_sync`

`SmallDDP` is complete but for `no_sync`: hooks reduce every gradient as it becomes ready.
Write `no_sync()`, so that it does what that of torch's DDP does:

    with model.no_sync():
        model(first).sum().backward()    # nothing is communicated; gradients accumulate
    model(second).sum().backward()       # averages the sum of both over the ranks

- What decides is where the *forward* runs, the last one before the backward: its backward
  synchronizes, or does not, wherever that is called. A forward under `torch.no_grad()` has no
  backward, and decides nothing.
- It can be nested, used again, and left by an exception.
- It concerns this model, not others.

Change the other methods as you need, and leave their names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddplab.runtime.torch_private import after_backward


class SmallDDP(nn.Module):
    """Averages the gradients of `module` over all ranks, during each backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.flights: list[tuple[nn.Parameter, dist.Work]] = []
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
            p.register_post_accumulate_grad_hook(self.gradient_ready)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def gradient_ready(self, p: nn.Parameter) -> None:
        """Autograd calls this when the gradient of `p` has been added to `p.grad`."""
        if not self.flights:
            after_backward(self.finish)  # autograd will call it once, at the end
        self.flights.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish(self) -> None:
        """Wait until all gradients of this backward have been summed, and make them means."""
        for p, work in self.flights:
            work.wait()
            p.grad /= dist.get_world_size()
        self.flights.clear()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let the forwards inside leave their gradients on this rank."""
        raise NotImplementedError
        yield
