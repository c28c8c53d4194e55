"""What the script trains: each input holds the number of its sample, and the model writes down what it is given.

Models write to files, so that processes which the learner's file starts are seen as well.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddplab.runtime.group import keep_group

LR = 0.125


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs x, y in double precision; x[0] is the sample's number over their count."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:  # noqa: D105
        return self.length

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:  # noqa: D105
        if not 0 <= i < self.length:
            raise IndexError(i)
        x = torch.tensor([i / self.length, i * i % 7 / 7], dtype=torch.float64)
        return x, torch.tensor([(i * i * i % 11) / 11 - 0.3 * (i % 3)], dtype=torch.float64)


class Model(nn.Module):
    """A linear model that writes down what it is trained on."""

    def __init__(self, log: Path, length: int, seed: int, fails: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, dtype=torch.float64)
        numbers = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=numbers, dtype=p.dtype))
        self.log, self.length, self.fails = log, length, fails
        self.note(built=weights_of(self))

    def note(self, **what: Any) -> None:
        """Add a line to the file of this process."""
        with (self.log / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def forward(self, x: Tensor) -> Tensor:
        """Return the prediction."""
        if torch.is_grad_enabled():
            grouped = dist.is_initialized()
            rank, world = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
            keep_group()  # gloo can hang when a learner's DDP drops it: that is not what is graded here
            if self.fails and rank == 1:
                raise RuntimeError("rank 1 fails on purpose")
            self.note(rank=rank, world=world, ids=[round(number * self.length) for number in x[:, 0].tolist()])
        result: Tensor = self.layer(x)
        return result


@dataclass
class BuildModel:
    """A `build_model`: other weights for other seeds."""

    log: Path
    length: int
    seed: int = 0
    fails: bool = False
    launches: int = 1  # that should be at work together
    models: list[Model] = field(default_factory=list)

    def __call__(self) -> Model:
        """Build a model, once all launches have come so far or are over; the check's own time limit bounds the wait."""
        (self.log.parent / "built").touch()
        while len(list(self.log.parent.parent.glob("*/built"))) < self.launches:
            time.sleep(0.01)
        self.models.append(Model(self.log, self.length, self.seed, self.fails))
        return self.models[-1]


def weights_of(module: nn.Module) -> list[float]:
    """Return all weights, as numbers."""
    return [w for p in module.parameters() for w in p.detach().flatten().tolist()]


class Log(NamedTuple):
    """What the model of one process wrote."""

    rank: int  # -1: it was not trained
    world: int
    pid: int
    built: list[float]  # the first weights
    steps: list[list[int]]  # the samples of each


def read_logs(folder: Path) -> list[Log]:
    """Return what the models of all processes wrote, by rank."""
    found = []
    for path in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [line for line in lines if "ids" in line]
        rank, world = (steps[0]["rank"], steps[0]["world"]) if steps else (-1, 0)
        built = [line["built"] for line in lines if "built" in line][-1]
        found.append(Log(rank, world, int(path.stem), built, [line["ids"] for line in steps]))
    return sorted(found)


class Replay(NamedTuple):
    """The same steps in one process."""

    weights: list[list[float]]  # of each rank, at the end
    losses: list[list[tuple[float, int]]]  # by rank: loss and size of each step


def replay(
    logs: Sequence[Log], length: int, *, factor: float | None = 1.0, accumulate: bool = False, own: bool = False
) -> Replay:
    """Train as the ranks did, each on its steps.

    Args:
        logs: of all ranks.
        length: of the data set.
        factor: the mean gradient of the ranks is multiplied by it; None: each rank takes its own.
        accumulate: gradients are never set to zero.
        own: each rank starts with its own weights, not with rank 0's.
    """
    data = Samples(length)
    weights = [torch.tensor((log if own else logs[0]).built, dtype=torch.float64) for log in logs]
    kept = [torch.zeros_like(w) for w in weights]
    losses: list[list[tuple[float, int]]] = [[] for _ in logs]
    for number in range(len(logs[0].steps)):
        gradients = []
        for rank, w in enumerate(weights):
            x, y = (torch.stack(both) for both in zip(*[data[i] for i in logs[rank].steps[number]], strict=True))
            inputs = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
            error = inputs @ w - y.flatten()
            losses[rank].append((error.square().mean().item(), len(x)))
            gradients.append(2 * inputs.T @ error / len(x))
        mean = torch.stack(gradients).mean(dim=0)
        for rank, gradient in enumerate(gradients):
            step = gradient if factor is None else factor * mean
            kept[rank] = kept[rank] + step if accumulate else step
            weights[rank] = weights[rank] - LR * kept[rank]
    return Replay([w.tolist() for w in weights], losses)


def close(a: Sequence[float], b: Sequence[float], rtol: float = 1e-6) -> bool:
    """Return whether the numbers are equal up to rounding."""
    return len(a) == len(b) and all(abs(x - y) <= rtol * max(abs(x), abs(y)) + 1e-9 for x, y in zip(a, b, strict=True))
