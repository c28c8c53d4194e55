"""A model that leaves parameters out: the labs on unused parameters need one."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TwoHeads(nn.Module):
    """A linear trunk (4 to 4 features) and two linear heads ``a`` and ``b`` (4 to 1); a forward names those it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor, heads: str) -> Tensor:
        """Return the sum of the named ``heads`` ("a", "b" or "ab"), shape [batch, 1]; ``x`` has shape [batch, 4]."""
        hidden = self.trunk(x)
        return torch.stack([getattr(self, head)(hidden) for head in heads]).sum(dim=0)
