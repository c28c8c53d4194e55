"""Checks of the fixed loop over shards: the model writes down which samples it is trained on.

:Level: core, 12 minutes
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

LR, READ = 0.125, "fault-uneven-batches"


@dataclass
class Seen:
    """What a rank has seen of one training."""

    end: Weights
    steps: list[tuple[int, list[int]]]  # all-reduces that came before, samples
    silent: list[bool]  # for each all-reduce: this rank put zeros into it


def samples(length: int) -> tuple[Tensor, Tensor]:
    """Return the samples: the number of each, over their count, and a target."""
    i = torch.arange(length, dtype=torch.float64)
    x = torch.stack([i / length, i * i % 7 / 7], dim=1)
    return x, (i**3 % 11 / 11 - 0.3 * (i % 3))[:, None]


def new_model(seed: int) -> nn.Module:
    """Return a linear model."""
    return training.filled(nn.Linear(2, 1), seed)


def play(learner: ModuleType, length: int, epochs: int, batch_size: int) -> Seen:
    """Train on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (part.to(device()) for part in samples(length))
    model, steps = new_model(rank + 1).to(device()), []
    with training.visible_ddp() as reductions, training.explained(learner):

        def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
            if torch.is_grad_enabled():
                ids = [round(number * length) for number in inputs[0][:, 0].tolist()]
                steps.append((len(reductions.sent), ids))

        model.register_forward_pre_hook(note)
        learner.train(rank, world, model, x, y, epochs, batch_size, LR)
    silent = [not sent.count_nonzero() for sent in reductions.sent]
    return Seen(training.weights(model), steps, silent)


def scene(learner: ModuleType) -> Seen:
    """The scene of log.txt."""
    return play(learner, 21, 3, 5)


def in_step(seen: list[Seen]) -> None:
    """Judge that all ranks hold the same trained weights."""
    hint = (
        "A rank that makes more steps than the others cannot make them alone: `no_sync`, or a step on the bare "
        "module, keeps it from waiting, and makes it another model."
    )
    start = training.weights(new_model(1))  # rank 0's; DDP gives it to all
    training.expect_one_model([s.end for s in seen], start, hint, READ)


@check("Two ranks, 21 samples: both come to the end", ranks=2, judge=in_step, read=READ)
def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, 21 samples, batches of 5, three epochs: 11 samples are 3 batches, 10 are 2."""
    return scene(learner)


def all_used(length: int, epochs: int, batch_size: int) -> Callable[[list[Seen]], None]:
    """Make a judge: every sample is trained on in every epoch, in batches that are not larger."""

    def judge(seen: list[Seen]) -> None:
        in_step(seen)
        batches = [batch for s in seen for _, batch in s.steps]
        count = [sum(batch.count(i) for batch in batches) for i in range(length)]
        short = sum(c < epochs for c in count)
        expect(
            not short,
            f"{short} of {length} samples were trained on less than once per epoch. Cutting all ranks to the shortest "
            "keeps them in step, and loses data. Give the shorter ranks more to do instead.",
            READ,
        )
        expect(
            sum(count) <= epochs * (length + len(seen) * batch_size),
            f"{len(seen)} ranks trained on {sum(count)} samples in {epochs} epochs of {length}: in step, but on what "
            "others have done already. Fill only the gap between the shards.",
            "setup-samplers",
        )
        expect(
            max(map(len, batches)) <= batch_size,
            f"A rank had more samples in a step than `batch_size`, which is {batch_size} per rank.",
        )

    return judge


@check("Every sample counts", ranks=3, judge=all_used(20, 2, 3), read=READ)
def every_sample(learner: ModuleType, recorder: Recorder) -> Seen:
    """Three ranks, 20 samples, batches of 3, two epochs."""
    return play(learner, 20, 2, 3)


def replay(seen: list[Seen], rule: str) -> Weights:
    """Return the weights of one process that takes the mean over ``rule`` of the same batches."""
    model = new_model(1)
    x, y = samples(13)
    for step in range(max(len(s.silent) for s in seen)):
        batches = [b for s in seen for at, b in s.steps if at == step and not s.silent[at]]
        shares = [len(b) / sum(map(len, batches)) for b in batches]
        if rule != "samples":
            shares = [1 / len(seen if rule == "ranks" else batches)] * len(batches)
        model.zero_grad()
        for k, b in zip(shares, batches, strict=True):
            (k * mse_loss(model(x[b]), y[b])).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= LR * p.grad
    return training.weights(model)


def as_one_process(seen: list[Seen]) -> None:
    """Judge by a replay in one process: which mean of the ranks' gradients each step takes."""
    in_step(seen)
    ends = [replay(seen, rule) for rule in ("ranks", "active ranks", "samples")]
    expect(
        any(training.same(seen[0].end, end) for end in ends),
        "The ranks agree in the end, but one process that takes the mean of the same batches, step by step, arrives "
        "elsewhere: each step must use the mean gradient of that step, and neither weights that are averaged now and "
        "then, nor a loss that is scaled.",
        "idea-equality",
    )


@check("It trains as one process does", ranks=2, judge=as_one_process, read=READ)
def one_process(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, 13 samples, batches of 3, two epochs, and the same batches in one process."""
    return play(learner, 13, 2, 3)
