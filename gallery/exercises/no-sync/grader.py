"""Checks of `no_sync`: each plays a scene with the learner's class, and again with torch's DDP.

:Level: deep, 26 minutes
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device
from ddplab.grading.calls import Call, Recorder
from ddplab.grading.checks import Check, check, expect
from ddplab.grading.symptoms import (
    Gradients,
    Symptom,
    expect_gradients,
    gradients,
    mean,
    times,
    total,
)

# Input and factor of the loss of each micro-batch, by rank: whole numbers, so that all sums are exact.
INPUTS = ((1.0, 2.0, 4.0, 8.0), (30.0, 50.0, 70.0, 110.0))
READ = "internals-no-sync"

Look = Callable[[Any], None]  # a scene calls it with the model where its gradients must be seen
Scene = Callable[[Any, list[torch.Tensor], Look], None]


@dataclass
class Seen:
    """What a rank has seen of one scene."""

    mine: list[Gradients]  # at each point where the scene looks
    torchs: list[Gradients]  # the same, from torch's DDP
    made: list[int]  # how many calls the learner's class had made at each point
    calls: list[Call]
    alone: list[Gradients]  # of each micro-batch, on this rank alone


def small_module() -> nn.Module:
    """Two layers whose weights are whole numbers."""
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    module.load_state_dict({name: torch.ones_like(p) for name, p in module.state_dict().items()})
    return module.to(device())


def loss_of(model: nn.Module, batch: torch.Tensor) -> Any:
    """A loss whose gradients differ between micro-batches, those of the biases too."""
    return model(batch).sum() * batch[0, 0]


def step(model: nn.Module, batch: torch.Tensor) -> None:
    """One forward and its backward."""
    loss_of(model, batch).backward()


def evaluate(model: nn.Module, batch: torch.Tensor) -> None:
    """A forward without a backward."""
    model.eval()
    with torch.no_grad():
        model(batch)
    model.train()


def play(learner: ModuleType, recorder: Recorder, scene: Scene) -> Seen:
    """Play the scene with the learner's class, and with torch's."""
    batches = [torch.full((1, 3), value).to(device()) for value in INPUTS[dist.get_rank()]]
    seen = Seen([], [], [], [], [])
    for batch in batches:
        module = small_module()
        step(module, batch)
        seen.alone.append(gradients(module))

    def look(model: Any) -> None:
        seen.mine.append(gradients(model.module))
        seen.made.append(len(recorder.calls) - start)

    ddp = DistributedDataParallel(small_module())
    scene(ddp, batches, lambda model: seen.torchs.append(gradients(model.module)))
    mine = learner.SmallDDP(small_module())
    start = len(recorder.calls)
    scene(mine, batches, look)
    seen.calls = recorder.calls[start:]
    return seen


def as_torch(*points: tuple[tuple[int, ...], str]) -> Callable[[list[Seen]], None]:
    """Make a judge.

    Args:
        points: for each time that the scene looks, the micro-batches that have accumulated, and
            what it means if the gradients are not those of torch's DDP.
    """

    def judge(seen: list[Seen]) -> None:
        for point, (micros, hint) in enumerate(points):
            local = [total([s.alone[micro] for micro in micros]) for s in seen]
            right = [s.torchs[point] for s in seen]
            silent = all(torch.equal(r[n], own[n]) for r, own in zip(right, local, strict=True) for n in r)
            made = seen[0].made[point] - (seen[0].made[point - 1] if point else 0)
            expect(
                not (silent and made),
                f"{made} collectives were called where torch's DDP calls none. {hint}",
                READ,
            )
            mine = [s.mine[point] for s in seen]
            symptoms = mistakes(seen, micros, silent)
            expect_gradients(mine, right, local, [s.calls for s in seen], symptoms, hint)

    return judge


def mistakes(seen: list[Seen], micros: tuple[int, ...], silent: bool) -> list[Symptom]:
    """What the ranks hold if a mistake was made in accumulating the micro-batches."""
    *earlier, last = [[s.alone[micro] for s in seen] for micro in micros]
    local = [total([s.alone[micro] for micro in micros]) for s in seen]
    found = [
        Symptom(
            [dict.fromkeys(own) for own in local],
            "has no gradient: the backward inside must still accumulate, or there is nothing to average later",
        ),
        Symptom(mean(local), "holds the mean, where torch's DDP leaves each rank its own sum")
        if silent
        else Symptom(local, "holds each rank's own sum, where torch's DDP averages"),
    ]
    if earlier:
        before = [total([micro[rank] for micro in earlier]) for rank in range(len(seen))]
        averaged = [total(pair) for pair in zip(mean(last), before, strict=True)]
        found += [
            Symptom(
                [times(1 / len(micros), one) for one in mean(local)],
                f"was also divided by the {len(micros)} micro-batches. That is the business of the loss; DDP averages "
                "over ranks only",
            ),
            Symptom(mean(last), "holds the mean of the last micro-batch only: the others are lost"),
            Symptom(last, "holds this rank's last micro-batch only: the others are lost"),
            Symptom(
                averaged,
                "holds the mean of the last micro-batch, added to this rank's own earlier ones: reduce all that has "
                "accumulated in `p.grad`",
            ),
        ]
    return found


def scene(title: str, *points: tuple[tuple[int, ...], str], read: str = READ) -> Callable[[Scene], Check]:
    """Make a check of the scene below: it is played on two ranks, and judged by `as_torch`."""

    def decorate(play_it: Scene) -> Check:
        def observe(learner: ModuleType, recorder: Recorder) -> Seen:
            return play(learner, recorder, play_it)

        observe.__doc__ = play_it.__doc__
        return check(title, ranks=2, judge=as_torch(*points), read=read)(observe)

    return decorate


@scene(
    "Without no_sync, every backward averages",
    ((0,), "The class did that when you were given it: what did you change?"),
    read="internals-backward",
)
def without(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """One forward and backward, outside of any `no_sync`."""
    step(model, batches[0])
    look(model)


@scene(
    "Inside, gradients accumulate and nothing is communicated",
    ((0, 1), "Inside `no_sync`, the hook must return before it calls anything."),
    ((0, 1), "Leaving `no_sync` communicates nothing either; the next backward does."),
)
def inside(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """Two micro-batches inside one `no_sync`."""
    with model.no_sync():
        step(model, batches[0])
        step(model, batches[1])
        look(model)
    look(model)


@scene(
    "The next backward averages the accumulated sum",
    ((0, 1, 2), ""),
    ((0, 1, 2), "It was right in the first round."),
)
def accumulation(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """Two micro-batches inside `no_sync`, a third outside; `zero_grad()`, and all of it again."""
    for _ in range(2):
        model.zero_grad()
        with model.no_sync():
            step(model, batches[0])
            step(model, batches[1])
        step(model, batches[2])
        look(model)


@scene(
    "It can be nested",
    (
        (0, 1),
        "The inner context has ended, the outer one has not: leave the flag as you found it, instead of setting it to "
        "True or flipping it.",
    ),
    ((0, 1, 2), "Both contexts have ended."),
)
def nested(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """`no_sync` inside `no_sync`, with a micro-batch after the inner one has ended."""
    with model.no_sync():
        with model.no_sync():
            step(model, batches[0])
        step(model, batches[1])
        look(model)
    step(model, batches[2])
    look(model)


@scene(
    "It ends with an exception too",
    (
        (0,),
        "The context was left by an exception, and `no_sync` stayed on: what follows `yield` runs only "
        "inside a `finally`.",
    ),
)
def exception(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """A KeyError leaves `no_sync`, the training loop catches it, and an ordinary step follows."""
    came_out = False
    try:
        with model.no_sync():
            raise KeyError("a sample is missing")
    except KeyError:
        came_out = True
    expect(
        came_out,
        "The exception never came out of `no_sync`: a context manager that catches what is raised at its `yield`, and "
        "does not raise it again, hides the errors of the training loop.",
    )
    step(model, batches[0])
    look(model)


@scene(
    "It concerns one model",
    ((0,), "It was another model's `no_sync`: keep the flag in `self`, not in the class or the module."),
)
def other_model(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """Two models, as in a GAN: a step of the first inside the `no_sync` of the second."""
    other = type(model)(small_module())
    with other.no_sync():
        step(model, batches[0])
    look(model)


KEEP = "Keep what the flag was when the forward ran."


@scene(
    "The forward decides, wherever its backward is called",
    ((0,), f"The forward ran outside, only the backward inside. {KEEP}"),
    ((1,), f"The forward ran inside, only the backward outside. {KEEP}"),
    read="museum-no-sync-around-backward",
)
def forward_decides(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """A forward outside whose backward is inside `no_sync`; `zero_grad()`, then the opposite."""
    loss = loss_of(model, batches[0])
    with model.no_sync():
        loss.backward()
    look(model)
    model.zero_grad()
    with model.no_sync():
        loss = loss_of(model, batches[1])
    loss.backward()
    look(model)


BETWEEN = "A forward under `torch.no_grad()`, which has no backward, came between, and decided."


@scene("An evaluation in between changes nothing", ((0,), BETWEEN), ((1,), BETWEEN))
def evaluation(model: Any, batches: list[torch.Tensor], look: Look) -> None:
    """A forward inside `no_sync`, an evaluation outside, then the backward; and the opposite."""
    with model.no_sync():
        loss = loss_of(model, batches[0])
    evaluate(model, batches[3])
    loss.backward()
    look(model)
    model.zero_grad()
    loss = loss_of(model, batches[1])
    with model.no_sync():
        evaluate(model, batches[3])
    loss.backward()
    look(model)
