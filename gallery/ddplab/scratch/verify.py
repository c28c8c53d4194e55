"""Stage 1: wrap a module, and refuse replicas that do not start equal."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class DDP(nn.Module):
    """Wrap ``module``; all ranks raise ValueError if a parameter differs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._verify_equal()

    def _verify_equal(self) -> None:
        mine = [(name, p.detach().cpu()) for name, p in self.module.named_parameters()]
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        for rank, theirs in enumerate(everyone):
            for (name, a), (_, b) in zip(everyone[0], theirs, strict=True):
                if not torch.equal(a, b):
                    raise ValueError(f"DDP: {name} on rank {rank} differs from rank 0")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        return self.module(*args, **kwargs)
