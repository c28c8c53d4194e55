"""Checks of the fixed early stop: each wrong way to agree stops after another epoch.

:Level: core, 15 minutes
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from ddplab import device
from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, expect
from ddplab.grading.training import Weights

LR, PATIENCE, MAX_EPOCHS = 0.05, 2, 14
READ = "fault-differing-branches"
# Targets of the validation samples. The one weight grows towards 4; a sample's error is least when
# the weight passes its target, so each share of the samples would stop after an epoch of its own.
TARGETS = [3.0, 1.0, 1.0, 2.5, 3.5]


@dataclass
class Seen:
    """What a rank has seen of one training."""

    epochs: int
    end: Weights


def column(values: list[float]) -> torch.Tensor:
    """Return the values as a batch."""
    return torch.tensor(values, dtype=torch.float64, device=device())[:, None]


def play(learner: ModuleType, targets: list[float], max_epochs: int = MAX_EPOCHS) -> Seen:
    """Train on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, float(rank))
    model.to(device())
    samples = column([1.0] * 12), column([4.0] * 12)
    validation = column([1.0] * len(targets)), column(targets)
    with training.visible_ddp(), training.explained(learner):
        epochs = learner.train(rank, world, model, samples, validation, max_epochs, PATIENCE, LR)
    return Seen(epochs, training.weights(model))


def scene(learner: ModuleType) -> Seen:
    """The scene of log.txt."""
    return play(learner, TARGETS)


def losses(targets: list[float], max_epochs: int) -> list[float]:
    """Return the validation loss of one process after each epoch."""
    weight, found = 0.0, []
    for _ in range(max_epochs):
        weight -= LR * 2 * (weight - 4)
        errors = [(weight - target) ** 2 for target in targets]
        found.append(sum(errors) / len(errors) if errors else math.nan)
    return found


def stop(validation: list[float]) -> int:
    """Return after how many epochs training stops."""
    best, since = math.inf, 0
    for epoch, loss in enumerate(validation):
        since = 0 if loss < best else since + 1
        best = min(best, loss)
        if since == PATIENCE:
            return epoch + 1
    return len(validation)


def together(seen: list[Seen]) -> None:
    """Judge that all ranks have stopped in the same state."""
    counts = [s.epochs for s in seen]
    numbers = all(isinstance(count, int) for count in counts)
    expect(numbers, f"`train` returned {counts[0]!r}; return the number of epochs.")
    listed = ", ".join(map(str, counts))
    expect(len(set(counts)) == 1, f"The ranks stopped after {listed} epochs.", READ)
    hint = "A step that not all ranks make must not be made by any."
    training.expect_one_model([s.end for s in seen], None, hint, READ)


@check("Two ranks stop together", ranks=2, judge=together, read=READ)
def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, five validation samples; their own shares would stop after 11 and 7 epochs."""
    return scene(learner)


def as_one(targets: list[float], max_epochs: int = MAX_EPOCHS) -> Callable[[list[Seen]], None]:
    """Make a judge: the ranks stop where one process would."""

    def judge(seen: list[Seen]) -> None:
        together(seen)
        world, epochs = len(seen), seen[0].epochs
        right = stop(losses(targets, max_epochs))
        shares = [losses(targets[rank::world], max_epochs) for rank in range(world)]
        own = [stop(share) for share in shares]
        ideas = {
            max_epochs: "Nothing stops it any more: the ranks stay together, and train too long.",
            min(own): "That is where the first rank's own share stops: one share decides for all.",
            max(own): "That is where the last rank's own share stops: one share decides for all.",
            own[0]: "That is where rank 0's own share of the validation set stops: its word is the "
            "same for all, but it has seen only its share.",
            stop([sum(step) / world for step in zip(*shares, strict=True)]): (
                "That is where the mean of the ranks' means stops. The shares differ in size, and a mean of means "
                "weighs them alike: reduce the sum of the errors, and the count. A share without samples has no mean "
                "at all, but NaN, which never falls."
            ),
        }
        if epochs != right:
            idea = ideas.get(epochs, "")
            raise Wrong(
                f"All ranks stopped after {epochs} epochs; one process with the whole validation "
                f"set stops after {right}. {idea}".rstrip(),
                "museum-local-loss-as-global",
            )
        weight = float(next(iter(seen[0].end.values())))
        steps = 4 * (1 - (1 - 2 * LR) ** right)
        expect(
            math.isclose(weight, steps, rel_tol=1e-9),
            f"They stopped after {right} epochs, as they should, but with other weights than one process: every epoch "
            "is one step with the mean gradient of all training samples.",
            "idea-equality",
        )

    return judge


@check("They stop where one process stops", ranks=2, judge=as_one(TARGETS), read=READ)
def as_one_process(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, five validation samples: shares of three and two."""
    return play(learner, TARGETS)


@check("A rank without validation samples", ranks=3, judge=as_one([3.0, 1.0]), read=READ)
def empty_share(learner: ModuleType, recorder: Recorder) -> Seen:
    """Three ranks, two validation samples."""
    return play(learner, [3.0, 1.0])


@check("No stop where the loss still falls", ranks=2, judge=as_one([9.0, 9.0], 4), read=READ)
def no_stop(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, a validation loss that falls in all of four epochs."""
    return play(learner, [9.0, 9.0], max_epochs=4)
