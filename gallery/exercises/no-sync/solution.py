"""Skip the synchronization: a solution"""

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
        self.require_sync = True  # what the context says now
        self.sync_backward = True  # what it said when the last forward ran
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
            p.register_post_accumulate_grad_hook(self.gradient_ready)

    def forward(self, *inputs: Any) -> Any:
        if torch.is_grad_enabled():  # an evaluation has no backward to decide about
            self.sync_backward = self.require_sync
        return self.module(*inputs)

    def gradient_ready(self, p: nn.Parameter) -> None:
        """Autograd calls this when the gradient of `p` has been added to `p.grad`."""
        if not self.sync_backward:
            return  # p.grad keeps what has accumulated; a later all-reduce sends the sum
        if not self.flights:
            after_backward(self.finish)
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
        before, self.require_sync = self.require_sync, False
        try:
            yield
        finally:  # after an exception too; an outer context may have set it before
            self.require_sync = before
