"""Checks of the fixed guard: damaged batches on some ranks, and the same in one process.

:Level: core, 23 minutes
"""

import math
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
from ddplab.grading.checks import Wrong, check, expect
from ddplab.grading.training import Weights

LR = 0.05
READ = "fault-nan-on-one-rank"
Bad = dict[tuple[int, int], float]  # (rank, step) -> what its batch is damaged with
Batches = list[tuple[Tensor, Tensor]]


@dataclass
class Seen:
    """What a rank has seen of one training."""

    start: Weights
    end: Weights
    left_out: int


def batches_of(rank: int, steps: int, bad: Bad) -> Batches:
    """Return the batches of a rank, two samples each."""
    found = []
    for step in range(steps):
        x = torch.tensor([[1.0, rank - 1.0], [step / 4, 0.5]], dtype=torch.float64)
        y = torch.tensor([[step % 3 + 1.0], [rank * 2.0 - step % 2]], dtype=torch.float64)
        x[1, 0] = bad.get((rank, step), x[1, 0])
        found.append((x, y))
    return found


def play(learner: ModuleType, steps: int, bad: Bad) -> Seen:
    """Train on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = training.filled(nn.Linear(2, 1), rank + 1).to(device())
    start = training.weights(model)
    batches = [(x.to(device()), y.to(device())) for x, y in batches_of(rank, steps, bad)]
    with training.visible_ddp(), training.explained(learner):
        left_out = learner.train(rank, world, model, batches, LR)
    return Seen(start, training.weights(model), left_out)


def in_one_process(ranks: int, good: list[int], bad: Bad, *, finite_ranks: bool = False) -> Weights:
    """Return the weights of one process that trains on the steps ``good``.

    ``finite_ranks``: a damaged batch counts as zero, and the other ranks' as ever.
    """
    model = training.filled(nn.Linear(2, 1), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    everything = [batches_of(rank, max(good, default=0) + 1, bad) for rank in range(ranks)]
    for step in good:
        losses = [mse_loss(model(x), y) for x, y in (mine[step] for mine in everything)]
        if finite_ranks:
            losses = [loss for loss in losses if loss.isfinite()]
        optimizer.zero_grad()
        if losses:
            (torch.stack(losses).sum() / ranks).backward()
        optimizer.step()
    return training.weights(model)


def judge_of(steps: int, bad: Bad) -> Callable[[list[Seen]], None]:
    """Make a judge: the ranks end as one process that never saw the bad steps."""

    def judge(seen: list[Seen]) -> None:
        hint = (
            "A damaged batch reaches every rank through the all-reduce, and a decision that each rank takes from its "
            "own loss lets them diverge. All must know before any of them steps."
        )
        training.expect_one_model([s.end for s in seen], seen[0].start, hint, READ)
        ranks, held = len(seen), seen[0].end
        bad_steps = {step for _, step in bad}
        good = [step for step in range(steps) if step not in bad_steps]
        first = list(range(min(bad_steps, default=steps)))
        mistakes = [
            (in_one_process(ranks, first, bad), "Training ended at the first damaged batch."),
            (
                in_one_process(ranks, list(range(steps)), bad, finite_ranks=True),
                "A damaged batch counts as zero, and the step is made with what the other ranks have, still divided "
                "by all: a shorter step, which momentum remembers. All ranks should leave it out.",
            ),
        ]
        right = in_one_process(ranks, good, bad)
        if not training.same(held, right):
            idea = next((says for end, says in mistakes if training.same(held, end)), "")
            raise Wrong(
                f"The ranks agree, but not with one process that trains on the {len(good)} good "
                f"of {steps} steps alone. {idea}".rstrip(),
                READ,
            )
        counts = [s.left_out for s in seen]
        expect(
            counts == [len(bad_steps)] * ranks,
            f"The ranks returned {counts}; {len(bad_steps)} steps were left out, by all ranks. A rank whose own batch "
            "was good has left the step out, too.",
        )

    return judge


def scene(learner: ModuleType) -> Seen:
    """The scene of log.txt."""
    return play(learner, 5, {(1, 2): math.nan})


@check("One bad batch on one rank", ranks=2, judge=judge_of(5, {(1, 2): math.nan}), read=READ)
def one_bad(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, five steps; in the third, rank 1's batch holds a NaN."""
    return scene(learner)


MANY = {(0, 0): math.inf, (2, 3): math.nan, (0, 3): -math.inf, (1, 5): math.nan}


@check("Bad batches anywhere", ranks=3, judge=judge_of(6, MANY), read=READ)
def many_bad(learner: ModuleType, recorder: Recorder) -> Seen:
    """Three ranks, six steps; the first, the fourth on two ranks, and the last have NaN or inf."""
    return play(learner, 6, MANY)


@check("Good batches are all used", ranks=2, judge=judge_of(4, {}), read=READ)
def none_bad(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks, four steps, no damage."""
    return play(learner, 4, {})
