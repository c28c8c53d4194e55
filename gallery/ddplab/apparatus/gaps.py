"""How far apart ranks are: the number that the labs print to show a drift, or that there is none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def flat_weights(module: nn.Module) -> Tensor:
    """Return a copy of all parameters of ``module`` as one vector of shape [sum of numel], on the CPU."""
    return torch.cat([p.detach().flatten().cpu() for p in module.parameters()])


def flat_gradients(module: nn.Module) -> Tensor:
    """Return a copy of all gradients of ``module`` as one vector of shape [sum of numel], on the CPU.

    A parameter whose ``.grad`` is None counts as zeros.
    """
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().cpu() for p in module.parameters()]
    )


def gap(vectors: Sequence[Tensor]) -> float:
    """Return the largest difference between any two of ``vectors`` (equal shapes) in any element.

    Zero means equal bit for bit; a NaN in one of them gives NaN.
    """
    low, high = torch.stack(list(vectors)).aminmax(dim=0)
    return float((high - low).max())
