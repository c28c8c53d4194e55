"""One small run, interrupted and resumed: what the labs on bit-exact resuming compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..checkpoint import CheckpointManager
from ..runtime.group import device


class SmallRun:
    """A network with dropout, AdamW, and data that follow from step and rank."""

    def __init__(
        self,
        *,
        dropout: float = 0.1,
        norm: bool = False,
        one_batch: bool = False,
        sgd: bool = False,
        **options: Any,  # of DDP
    ) -> None:
        torch.manual_seed(0)
        block = [nn.Linear(16, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 64)]
        norms = [nn.BatchNorm1d(64)] if norm else []
        net = nn.Sequential(*block, *norms, nn.Tanh(), nn.Linear(64, 4)).to(device())
        self.model, self.one_batch = DistributedDataParallel(net, **options), one_batch
        kind = torch.optim.SGD if sgd else torch.optim.AdamW
        self.optimizer = kind(net.parameters(), lr=0.01)
        torch.manual_seed(1 + dist.get_rank())  # each rank drops other activations

    def loss(self, step: int = 0) -> Tensor:
        """Return the loss of this rank's eight samples of a step."""
        seed = (0 if self.one_batch else 100 * step) + dist.get_rank()
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device())
        return torch.as_tensor((self.model(x) - x[:, :4].sin()).square().mean())

    def step(self, step: int) -> tuple[Any, ...]:
        """Train one step; return its loss, and a copy of each parameter after it."""
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item(), [p.detach().cpu().clone() for p in self.model.parameters()]

    def train(self, first: int, end: int) -> list[tuple[Any, ...]]:
        """Train the steps from ``first`` to below ``end``; return what each gave."""
        return [self.step(step) for step in range(first, end)]


def resumed(
    make: Callable[[], SmallRun], folder: str, saved: int, steps: int, warm_ups: int = 0
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return what ``steps`` steps after the checkpoint gave: uninterrupted, and resumed.

    Args:
        make: makes the run; it is called once for each of the two.
        folder: where to save.
        saved: the number of steps before the checkpoint.
        steps: the number of steps after it.
        warm_ups: backwards that the resumed run makes before the checkpoint is loaded.
    """
    manager, run = CheckpointManager(folder), make()
    run.train(0, saved)
    manager.save({"model": run.model, "optimizer": run.optimizer}, saved)
    whole, again = run.train(saved, saved + steps), make()
    for _ in range(warm_ups - 1):
        again.loss().backward()  # type: ignore[no-untyped-call]
    state = {"model": again.model, "optimizer": again.optimizer}
    manager.load(state, warm_up=again.loss if warm_ups else None)
    return whole, again.train(saved, saved + steps)
