"""Stage 2: make replicas equal instead of asking for it."""

from typing import Any

import torch.distributed as dist
from torch import nn


class DDP(nn.Module):
    """Wrap ``module``, and give every rank rank 0's parameters and buffers."""

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
