"""Stage 5: one message for all gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class DDP(nn.Module):
    """Wrap ``module``; call ``sync_gradients()`` after each ``backward()``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._require_sync = True
        self._broadcast()

    def _broadcast(self) -> None:
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients to the rank; the next sync outside averages their sum."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    def sync_gradients(self) -> None:
        """Replace every gradient by its mean over ranks."""
        if not self._require_sync:
            return
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        numels = [grad.numel() for grad in gradients]
        flat = torch.cat([grad.flatten() for grad in gradients])
        flat /= dist.get_world_size()
        dist.all_reduce(flat)
        for grad, mean in zip(gradients, torch.split(flat, numels), strict=True):
            grad.copy_(mean.view_as(grad))
