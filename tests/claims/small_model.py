"""A small model and data for tests of claims that compare bits."""

import torch
from torch import nn

from ddplab import device


def network() -> nn.Sequential:
    """Three layers, equal on all ranks; in float64, so that rounding is plain to tell from a difference."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double().to(device())


def batch(rank: int, number: int = 0) -> torch.Tensor:
    """Data that differ between ranks, and that every rank can make for any other: six samples of four numbers."""
    generator = torch.Generator().manual_seed(10 * rank + number)
    return torch.randn(6, 4, dtype=torch.float64, generator=generator).to(device())
