"""Stage 3: average the gradients, one all-reduce per parameter, after backward."""

from typing import Any

import torch.distributed as dist
from torch import nn


class DDP(nn.Module):
    """Wrap ``module``; call ``sync_gradients()`` after each ``backward()``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._broadcast()

    def _broadcast(self) -> None:
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        return self.module(*args, **kwargs)

    def sync_gradients(self) -> None:
        """Replace every gradient by its mean over ranks."""
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad /= dist.get_world_size()
                dist.all_reduce(p.grad)
