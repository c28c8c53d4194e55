"""Checks of the fixed branches: batches that are all bright, all dark, or mixed, rank by rank.

:Level: deep, 20 minutes
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ddplab import device
from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import check, expect
from ddplab.grading.training import Weights

LR = 0.1
READ = "fault-unused-parameter"
# How many of the four pictures of each step are dark, by rank.
FIRST = ((2, 1, 3, 2), (0, 2, 0, 3))
MANY = ((0, 0, 4, 1), (0, 4, 4, 0), (0, 0, 4, 2))


class Original(nn.Module):
    """The model as the starter computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.day, self.night = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor, dark: Tensor) -> Tensor:
        """Return the prediction."""
        h = self.body(x).tanh()
        return torch.where(dark[:, None], self.night(h), self.day(h))


@dataclass
class Seen:
    """What a rank has seen of one training."""

    start: Weights
    end: Weights


def batch(rank: int, step: int, dark: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return four pictures, of which the last ``dark`` are dark."""
    numbers = torch.Generator().manual_seed(100 * rank + step)
    x = torch.randn(4, 3, generator=numbers, dtype=torch.float64)
    return x, torch.arange(4) >= 4 - dark, torch.randn(4, 1, generator=numbers, dtype=x.dtype)


def play(learner: ModuleType, dark: tuple[tuple[int, ...], ...]) -> Seen:
    """Train on this rank."""
    rank = dist.get_rank()
    model = training.filled(learner.Model(), rank + 1).to(device())
    start = training.weights(model)
    batches = [batch(rank, step, many) for step, many in enumerate(dark[rank])]
    moved = [tuple(part.to(device()) for part in parts) for parts in batches]
    with training.visible_ddp(), training.explained(learner):
        learner.train(rank, dist.get_world_size(), model, moved, LR)
    return Seen(start, training.weights(model))


def scene(learner: ModuleType) -> Seen:
    """The scene of log.txt."""
    return play(learner, FIRST)


def as_one_process(dark: tuple[tuple[int, ...], ...]) -> Callable[[list[Seen]], None]:
    """Make a judge: the ranks end as one process that trains on the batches of all."""

    def judge(seen: list[Seen]) -> None:
        model = training.filled(Original(), 1)
        held, start, names = seen[0].end, seen[0].start, dict(model.named_parameters())
        missing = sorted(names.keys() - held.keys())
        expect(not missing, f"The model has no parameter {', '.join(missing)}; keep the names.")
        training.expect_one_model(
            [s.end for s in seen],
            start,
            "A parameter that DDP does not know of, or a step inside `no_sync`, is each rank's own affair: the error "
            "is gone, and so is the average.",
            READ,
        )
        for step in range(len(dark[0])):
            parts = [batch(rank, step, many[step]) for rank, many in enumerate(dark)]
            x, is_dark, y = (torch.cat(part) for part in zip(*parts, strict=True))
            model.zero_grad()
            mse_loss(model(x, is_dark), y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= LR * p.grad
        right = training.weights(model)
        for name in names:
            expect(
                torch.allclose(held[name], start[name]) == torch.allclose(right[name], start[name]),
                f"`{name}` was never trained, though there were pictures for it: the error is gone because the branch "
                "is frozen.",
                READ,
            )
        wrong = [name for name in names if not torch.allclose(held[name], right[name], rtol=1e-9)]
        expect(
            not wrong,
            "The ranks agree, but not with one process on the batches of all ranks: "
            f"{', '.join(f'`{name}`' for name in wrong)} differ. Was a batch left out, or does a branch learn from "
            "pictures that are not its own?",
            "idea-equality",
        )

    return judge


@check("A rank without dark pictures", ranks=2, judge=as_one_process(FIRST), read=READ)
def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, four steps; in the first and the third, rank 1 has no dark picture."""
    return scene(learner)


@check("Any kind on any rank", ranks=3, judge=as_one_process(MANY), read=READ)
def three_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """Three ranks; a step with bright pictures only, one with dark only, and two mixed."""
    return play(learner, MANY)


def computes_the_same(seen: list[Tensor]) -> None:
    """Judge the model's predictions."""
    original = training.filled(Original(), 1)
    with torch.no_grad():
        right = torch.cat([original(*batch(0, 0, dark)[:2]) for dark in (0, 2, 4)])
    expect(
        seen[0].shape == right.shape and torch.allclose(seen[0], right),
        "The model predicts something else than before. A branch that takes part for the sake of its gradient must "
        "add zero to the prediction.",
    )


@check("The model computes what it computed", ranks=1, judge=computes_the_same, read=READ)
def predictions(learner: ModuleType, recorder: Recorder) -> Tensor:
    """Predictions for four pictures by day, four of both kinds, and four by night."""
    model = training.filled(learner.Model(), 1).to(device())
    batches = [batch(0, 0, dark)[:2] for dark in (0, 2, 4)]
    with torch.no_grad():
        return torch.cat([model(x.to(device()), d.to(device())).cpu() for x, d in batches])
