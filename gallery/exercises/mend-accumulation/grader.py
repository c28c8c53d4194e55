"""Checks of the fixed accumulation: what each step of the optimizer used, and what it cost.

:Level: core, 20 minutes
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch.nn.functional import mse_loss

from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, counted, expect, load_sibling
from ddplab.grading.symptoms import Gradients, Symptom, expect_gradients, gradients, times, total
from ddplab.grading.training import Weights

runs = load_sibling(__file__, "runs")
Seen, MICRO, LR = runs.Seen, runs.MICRO, 0.05
READ = "internals-no-sync"
AROUND = "museum-no-sync-around-backward"
UNSYNCED = (
    "holds each rank's own gradient: the last micro-batch of this window ran its forward under `no_sync` too, so "
    "nothing was averaged and the ranks diverge. The last of *each* window synchronizes, also of a short one",
    READ,
)
INNER = (
    "holds each rank's own gradient, although the last forward was not under `no_sync`: it did not go through DDP. "
    "Call `ddp(x)`; `model(x)` and `ddp.module(x)` average nothing",
    "museum-calls-the-inner-module",
)


def named(numbers: Sequence[int]) -> str:
    """`micro-batches 1 to 3`, counted as people do."""
    if len(numbers) == 1:
        return f"micro-batch {numbers[0] + 1}"
    return f"micro-batches {numbers[0] + 1} to {numbers[-1] + 1}"


@dataclass
class Reference:
    """One process that trains with big batches."""

    alone: list[list[list[Gradients]]]  # with the weights of each window: by micro-batch and rank
    end: Weights


def reference(ranks: int, windows: Sequence[Sequence[int]]) -> Reference:
    """Train with big batches; a window is the numbers of its micro-batches."""
    module, alone = runs.small_module(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9)

    def gradient(rank: int, number: int) -> Gradients:
        optimizer.zero_grad()
        x, y = runs.micro_batch(rank, number)
        mse_loss(module(x), y).backward()
        return runs.some(gradients(module))

    numbers = [number for window in windows for number in window]
    for window in windows:
        alone.append([[gradient(rank, number) for rank in range(ranks)] for number in numbers])
        optimizer.zero_grad()
        parts = [runs.micro_batch(rank, number) for rank in range(ranks) for number in window]
        x, y = (torch.cat(both) for both in zip(*parts, strict=True))
        mse_loss(module(x), y).backward()
        optimizer.step()
    end = {name: value.flatten()[:20] for name, value in training.weights(module).items()}
    return Reference(alone, end)


def as_big_batches(micros: int, accumulate: int) -> Callable[[list[Seen]], None]:
    """Make a judge of the gradients and the weights."""
    numbers = list(range(micros))
    windows = [numbers[at : at + accumulate] for at in range(0, micros, accumulate)]
    what = f"{counted(micros, 'micro-batch')} in windows of {accumulate}"

    def judge(seen: list[Seen]) -> None:
        one_at_a_time(seen)
        right = reference(len(seen), windows)
        for rank, steps in enumerate(len(s.steps) for s in seen):
            expect(
                steps == len(windows),
                f"{what} are {counted(len(windows), 'step')} of the optimizer; rank {rank} made {steps}. "
                f"{why_so_many(steps, micros, windows)}",
                READ,
            )
        for number, window in enumerate(windows):
            gradients_of(number, window, accumulate, seen, right)
        training.expect_one_model([s.end for s in seen], None, "Their gradients were the same in each step.")
        expect(
            training.same(seen[0].end, right.end),
            "Each step had the right gradients, but the weights are not those of big batches: look at what was done "
            "to the weights or to the optimizer beside its steps.",
            "idea-equality",
        )

    return judge


def one_at_a_time(seen: Sequence[Seen]) -> None:
    """Judge how much has gone through the model at once."""
    largest = max((n for s in seen for step in s.steps for n in step.samples), default=0)
    expect(
        largest <= MICRO,
        f"{largest} samples went through the model at once, and a micro-batch has {MICRO}. The gradient is right, but "
        "the window has to fit into memory: that is what accumulation should avoid.",
        "idea-batch",
    )


def why_so_many(steps: int, micros: int, windows: Sequence[Sequence[int]]) -> str:
    """What a wrong number of steps comes from."""
    tail = len(windows[-1])
    if not steps:
        return "No `step()` was seen: a gradient that no step uses is lost."
    if steps == micros:
        return "That is one per micro-batch: the step belongs to the end of a window."
    if steps == len(windows) - 1 == micros // len(windows[0]):
        return (
            f"The last {counted(tail, 'micro-batch')} got none: at the end of the data a shorter window is left, and "
            "dropping it drops its samples."
        )
    return f"The windows hold {', '.join(str(len(window)) for window in windows)} micro-batches."


def gradients_of(
    number: int,
    window: Sequence[int],
    accumulate: int,
    seen: Sequence[Seen],
    right: Reference,
) -> None:
    """Judge what the optimizer was given in one step."""
    ranks, size = len(seen), len(window)
    alone = right.alone[number]
    share = [total([alone[m][rank] for m in window]) for rank in range(ranks)]
    local = [times(1 / size, own) for own in share]  # a rank's own gradient of the window
    expected = [times(1 / ranks, total(local))] * ranks
    step = [s.steps[number] for s in seen]

    def everywhere(numbers: Sequence[int], factor: float) -> list[Gradients]:
        parts = [alone[m][rank] for m in numbers for rank in range(ranks)]
        return [times(factor / ranks, total(parts))] * ranks

    symptoms = [
        Symptom(
            everywhere(window, 1),
            f"holds the sum over the {size} micro-batches, not their mean: `backward` adds to `.grad`. Divide each "
            f"loss by {size} before its backward, or each step is too long by that factor",
            "idea-equality",
        ),
        Symptom(
            everywhere(window, 1 / size**2),
            f"was divided by the {size} micro-batches twice, by two different lines",
            "idea-equality",
        ),
        Symptom(
            everywhere(window, 1 / accumulate),
            f"was divided by {accumulate}, but the window has only {size}: the step is too small. Divide by what is "
            "in the window",
            "idea-equality",
        ),
        *(
            Symptom(
                everywhere(window[-1:], factor),
                "holds the last micro-batch only: `zero_grad` has wiped out the others. It belongs to the beginning "
                "or the end of a window, where a step has used them",
                READ,
            )
            for factor in (1, 1 / size, 1 / accumulate)
        ),
        *(
            Symptom(
                own,
                *(INNER if step[0].synced[-1:] == [True] else UNSYNCED),
            )
            for own in ([times(1 / n, g) for g in share] for n in (size, accumulate, 1))
        ),
    ]
    if number:
        symptoms += [
            Symptom(
                [total([now, s.steps[number - 1].before]) for now, s in zip(part, seen, strict=True)],
                "still holds the gradient of the window before: `.grad` is added to until `zero_grad`, once per window",
                READ,
            )
            for part in (everywhere(window, 1 / size), everywhere(window, 1 / accumulate))
        ]
    empty: list[Gradients] = [dict.fromkeys(expected[0])] * ranks
    zeros = [{name: torch.zeros_like(g) for name, g in expected[0].items() if g is not None}] * ranks
    wiped = "is gone at the step: `zero_grad` is called between the backward and the step"
    symptoms += [Symptom(nothing, wiped, READ) for nothing in (empty, zeros)]
    symptoms += [
        Symptom(
            everywhere(range(first, last), factor),
            f"holds {named(range(first, last))}, and the window is {named(window)}: what counts them is off",
            READ,
        )
        for first, last in itertools.combinations(range(len(alone) + 1), 2)
        for factor in (1, 1 / size, 1 / accumulate)
    ]
    short = f", whose window is a shorter one of {size}" if size < accumulate else ""
    hint = f"This is step {number + 1}{short}."
    expect_gradients([s.before for s in step], expected, local, (), symptoms, hint)


def once_per_step(seen: list[Seen]) -> None:
    """Judge what each step has communicated."""
    for number, (step, right) in enumerate(zip(seen[0].steps, seen[0].buckets, strict=False), 1):
        made = [call.elements for call in step.calls if call.operation == "all_reduce"]
        if len(made) == len(step.calls) == right:
            continue
        micros = len(step.samples)
        around = seen[0].contexts and all(step.synced)
        if around:
            idea = (
                "`no_sync` was entered, but no forward ran inside: what decides is where the *forward* runs, and "
                "around the backward alone it changes nothing. Put both under it."
            )
        elif all(step.synced):
            idea = (
                "Each micro-batch was averaged on its own. The numbers are right, but all but the last were for "
                "nothing: run those, forward and backward, under `no_sync()`."
            )
        elif len(step.calls) > right and step.synced.count(True) == 1:
            idea = "DDP's own are enough: whatever else you reduce or broadcast costs once more."
        else:
            idea = "Only the last micro-batch of a window communicates."
        others = len(step.calls) - len(made)
        raise Wrong(
            f"In step {number} of {len(seen[0].steps)} DDP has {counted(right, 'bucket')}, so it needs "
            f"{counted(right, 'all-reduce')}. With {counted(micros, 'micro-batch')} it made "
            f"{len(made)}{' and ' + counted(others, 'other collective') if others else ''}. {idea}",
            AROUND if around else READ,
        )


@check("Two full windows", ranks=2, judge=as_big_batches(6, 3), read=READ)
def full_windows(learner: ModuleType, recorder: Recorder) -> Seen:
    """Six micro-batches in windows of three: what each step is given, and the final weights."""
    return runs.play(learner, recorder, 6, 3, LR)


@check("Each step communicates once", ranks=2, judge=once_per_step, read=READ)
def communication(learner: ModuleType, recorder: Recorder) -> Seen:
    """The same again; the all-reduces between two steps are counted."""
    return runs.play(learner, recorder, 6, 3, LR)


def short_window(seen: list[Seen]) -> None:
    """Judge the numbers, and what they cost."""
    as_big_batches(8, 3)(seen)
    once_per_step(seen)


@check("The last window is shorter", ranks=2, judge=short_window, read=READ)
def tail(learner: ModuleType, recorder: Recorder) -> Seen:
    """Eight micro-batches in windows of three: two are left."""
    return runs.play(learner, recorder, 8, 3, LR)


def corners(seen: list[list[Seen]]) -> None:
    """Judge windows of one, and one window that is never full."""
    for at, (micros, accumulate) in enumerate(CORNERS):
        runs = [runs[at] for runs in seen]
        as_big_batches(micros, accumulate)(runs)
        once_per_step(runs)


CORNERS = [(3, 1), (2, 4), (4, 4), (5, 4)]


@check("Other windows, three ranks", ranks=3, judge=corners, read=READ)
def other_windows(learner: ModuleType, recorder: Recorder) -> list[Seen]:
    """3 micro-batches in windows of 1; 2, 4 and 5 in windows of 4."""
    return [runs.play(learner, recorder, *corner, LR) for corner in CORNERS]
