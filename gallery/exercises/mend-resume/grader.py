"""Checks of the fixed resume: several runs in one process, each with a new model.

:Level: core, 15 minutes
"""

from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ddplab import device
from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, expect
from ddplab.grading.training import Weights

LR = 0.05
READ = "fault-module-prefix"
LOADING = "museum-loading-on-rank-0-after-wrapping"


@dataclass
class Run:
    """What a rank has seen of one run."""

    start: Weights
    end: Weights
    complete: bool  # the checkpoint was there when `train` returned
    saved: list[str]  # the files that this rank has written


def data() -> tuple[Tensor, Tensor]:
    """Return 12 samples."""
    i = torch.arange(12, dtype=torch.float64)
    return torch.stack([i / 12, i * i % 7 / 7], dim=1), (i**3 % 11 / 11 + 2)[:, None]


def play(learner: ModuleType, recorder: Recorder, *last_epochs: int) -> list[Run]:
    """Train on this rank, once for each of the last epochs, each time with a new model."""
    rank, world, runs = dist.get_rank(), dist.get_world_size(), []
    x, y = (part.to(device()) for part in data())
    checkpoint = recorder.folder / "checkpoint.pt"
    for number, last_epoch in enumerate(last_epochs):
        model = training.filled(nn.Linear(2, 1), 10 * number + rank + 1).to(device())
        start = training.weights(model)
        slow = training.slow_saves(recorder, f"gone{number}")
        with slow as saved, training.visible_ddp(), training.explained(learner):
            learner.train(rank, world, model, x, y, checkpoint, last_epoch, LR)
        complete = checkpoint.exists()
        (recorder.folder / f"{rank}.gone{number}").touch()
        dist.barrier()
        runs.append(Run(start, training.weights(model), complete, saved))
    return runs


def alike(seen: list[list[Run]]) -> None:
    """Judge that after each run all ranks hold the same weights."""
    hint = (
        "DDP broadcasts the weights of rank 0 when it is constructed, and never again: what is loaded later, every "
        "rank must load."
    )
    for runs in zip(*seen, strict=True):
        training.expect_one_model([run.end for run in runs], None, hint, LOADING)


def keeps_weights(seen: list[list[Run]]) -> None:
    """Judge that the second run, which had nothing to do, holds what the first has learned."""
    alike(seen)
    first, second = seen[0]
    expect(
        not training.same(second.end, second.start),
        "The resumed model holds the weights that it was built with: nothing of the checkpoint was loaded into it. "
        "`load_state_dict(…, strict=False)` permits that no name fits; look at what it returns.",
    )
    expect(
        training.same(second.end, first.end),
        "The resumed run had no epoch left to train, but ends with other weights than the first.",
    )


@check("A resumed run has the weights", ranks=2, judge=keeps_weights, read=READ)
def has_weights(learner: ModuleType, recorder: Recorder) -> list[Run]:
    """Two epochs; then a new model, resumed, with no epoch left to train."""
    return play(learner, recorder, 2, 2)


def trained(*spans: int, forget: bool = False) -> Weights:
    """Return the weights of one process after so many epochs, with ``forget`` a new optimizer."""
    model = training.filled(nn.Linear(2, 1), 1)
    new = lambda: torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)  # noqa: E731
    (x, y), optimizer = data(), new()
    for epochs in spans:
        optimizer = new() if forget else optimizer
        for _ in range(epochs):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return training.weights(model)


def as_if_uninterrupted(seen: list[list[Run]]) -> None:
    """Judge that five epochs in three runs are five epochs."""
    alike(seen)
    held = seen[0][-1].end
    ideas = [
        (
            trained(2, 1, 2, forget=True),
            "The weights were loaded, the optimizer began anew: its momentum is part of the state.",
        ),
        (trained(2, 3, 5), "Each run began with epoch 0 again."),
    ]
    if not training.same(held, trained(5)):
        idea = next((says for end, says in ideas if training.same(held, end)), "")
        raise Wrong(f"The weights are not those of an uninterrupted run. {idea}".rstrip(), READ)


@check("Resumed is as uninterrupted", ranks=2, judge=as_if_uninterrupted, read=READ)
def uninterrupted(learner: ModuleType, recorder: Recorder) -> list[Run]:
    """Two epochs, resumed for one more, resumed for two more; five in one go, to compare."""
    return play(learner, recorder, 2, 3, 5)


def complete(seen: list[list[Run]]) -> None:
    """Judge that nobody has returned before the file was there, and who has written it."""
    early = [rank for rank, (run,) in enumerate(seen) if not run.complete]
    expect(
        not early,
        f"When `train` returned on rank {', '.join(map(str, early))}, there was no checkpoint yet: rank 0 was still "
        "saving. No rank may return before; they can only know by a collective that rank 0 calls after it has saved. "
        "A time to sleep is a guess.",
        "fault-checkpoint-half-written",
    )
    files = [file for (run,) in seen for file in set(run.saved)]
    expect(
        len(files) == len(set(files)),
        "Several ranks write the same file at the same time. All hold the same; one rank saves.",
        "fault-checkpoint-half-written",
    )


@check("Nobody returns before it is saved", ranks=2, judge=complete, read=READ)
def is_complete(learner: ModuleType, recorder: Recorder) -> list[Run]:
    """One epoch, on a disk so slow that rank 1 is always first at the end."""
    return play(learner, recorder, 1)


def scene(learner: ModuleType, recorder: Recorder) -> list[Run]:
    """The scene of log.txt."""
    return play(learner, recorder, 3, 6)
