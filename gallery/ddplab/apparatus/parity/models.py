"""Models, data and training steps that the behaviours share; equal on all ranks unless they say otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...runtime.group import device
from .observe import Local


def mlp() -> nn.Sequential:
    """Two linear layers, equal on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device())


def normed() -> nn.Sequential:
    """A model whose BatchNorm keeps running statistics in buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(device())


class Branches(nn.Module):
    """A stem and two heads; the caller says which heads run, and in which order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.to(device())

    def forward(self, x: Tensor, heads: str = "ab") -> list[Tensor]:
        """Return the outputs of the heads named."""
        x = self.stem(x).tanh()
        return [getattr(self, head)(x) for head in heads]


def batch(step: int = 0) -> Tensor:
    """Data of this rank and step, of shape [4, 6]."""
    seed = 1000 * dist.get_rank() + step
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(device())


def loss(output: Any) -> Any:
    """Return a scalar from all tensors of ``output`` that have a gradient; it may be nested."""
    return torch.stack([t.square().mean() for t in _tensors(output) if t.requires_grad]).sum()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    else:
        for item in output.values() if isinstance(output, dict) else output:
            yield from _tensors(item)


def gradients(model: nn.Module) -> list[Tensor | None]:
    """Return copies of all gradients, None where there is none."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def tensors(model: nn.Module) -> list[Tensor]:
    """Return copies of all parameters and buffers."""
    return [t.detach().clone() for t in [*model.parameters(), *model.buffers()]]


def train(model: Any, steps: int = 3, set_to_none: bool = True, **arguments: Any) -> list[Any]:
    """Train with momentum; return what each step left: gradients, parameters, and the rank's own buffers."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss(model(batch(step), **arguments)).backward()
        optimizer.step()
        seen += [gradients(model), [p.detach().clone() for p in model.parameters()]]
        seen.append(Local([b.clone() for b in model.buffers()]))
    return seen


def accumulate(model: Any, steps: str) -> list[Any]:
    """Run a step per letter: s synchronizes, n is under no_sync, z zeroes the gradients and synchronizes."""
    seen: list[Any] = []
    for step, letter in enumerate(steps):
        if letter == "z":
            model.zero_grad()
        with model.no_sync() if letter == "n" else contextlib.nullcontext():
            loss(model(batch(step))).backward()
        seen.append(Local(gradients(model)) if letter == "n" else gradients(model))
    return seen
