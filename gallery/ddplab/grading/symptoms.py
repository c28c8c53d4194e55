"""Tell from wrong gradients which mistake made them: each leaves its own numbers.

Gradients are compared as every rank holds them; all functions take and return one entry per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .calls import Call
from .checks import Wrong, listed

Gradients = dict[str, Tensor | None]  # by name of the parameter; None: it has none


def gradients(module: nn.Module) -> Gradients:
    """Return a copy of all gradients of ``module``, in double precision on the CPU."""
    return {
        name: None if p.grad is None else p.grad.detach().as_subclass(Tensor).to("cpu", torch.float64, copy=True)
        for name, p in module.named_parameters()
    }


def total(parts: Sequence[Gradients]) -> Gradients:
    """Return the sum of gradients, where None adds nothing; None where all are."""
    result: Gradients = {}
    for name in parts[0]:
        some = [part for g in parts if (part := g[name]) is not None]
        result[name] = torch.stack(some).sum(dim=0) if some else None
    return result


def times(factor: float, one: Gradients) -> Gradients:
    """Return gradients multiplied by ``factor``."""
    return {name: None if part is None else part * factor for name, part in one.items()}


def mean(local: Sequence[Gradients]) -> list[Gradients]:
    """Return what each rank should hold: the mean over all ranks, a missing gradient counting as zero."""
    return [times(1 / len(local), total(local))] * len(local)


@dataclass(frozen=True)
class Symptom:
    """What the ranks hold when a certain mistake was made."""

    seen: Sequence[Gradients]
    says: str  # continues "`weight` …"
    read: str = ""


def usual(local: Sequence[Gradients]) -> list[Symptom]:
    """Return the symptoms of the usual mistakes in averaging the gradients ``local``."""
    n, added = len(local), total(local)
    everywhere: Callable[[Gradients], list[Gradients]] = lambda one: [one] * n  # noqa: E731
    own = [times(1, g) for g in local]
    users = Symptom(
        everywhere(_each(local, lambda stack: stack.mean(dim=0))),
        f"was divided by the number of ranks that have it, not by {n}: a rank that did not use a parameter "
        "counts as zero, because its part of the batch is part of the mean",
        "internals-unused",
    )
    partly = any(part is None for g in local for part in g.values())
    return [
        *([users] if partly else []),
        Symptom(
            own,
            "still holds each rank's own gradient: nothing was averaged, or the result went elsewhere than `.grad`",
            "idea-split",
        ),
        Symptom(
            everywhere(added),
            f"holds the sum over the ranks, not the mean: `all_reduce` adds, and it was never divided by {n}. "
            "The step would be as if the learning rate had been multiplied by the number of ranks",
            "idea-equality",
        ),
        Symptom(
            everywhere(times(1 / n**2, added)),
            f"was divided by {n} twice, before and after the sum, or by two different lines",
            "museum-averaging-twice",
        ),
        Symptom(
            everywhere(times(1 / 2, added)),
            "holds the sum divided by 2: the world size is written into the code. Ask `dist.get_world_size()`",
            "internals-torchrun",
        ),
        Symptom(
            [times(1 / n, g) for g in local],
            f"holds each rank's own gradient divided by {n}: divided, but never summed over the ranks",
            "internals-collectives",
        ),
        Symptom(
            everywhere(local[0]),
            "holds rank 0's gradient on every rank: a broadcast copies one rank's gradient and drops the others'",
            "internals-collectives",
        ),
        Symptom(
            everywhere(_each(local, lambda stack: stack.amax(dim=0))),
            "holds the largest gradient of any rank: the reduction is MAX, not SUM",
            "internals-collectives",
        ),
        Symptom(
            everywhere(_each(local, lambda stack: stack.prod(dim=0))),
            "holds the product of the gradients: the reduction is PRODUCT, not SUM",
            "internals-collectives",
        ),
        Symptom(
            everywhere({name: None if part is None else torch.zeros_like(part) for name, part in local[0].items()}),
            "is zero on every rank: the gradients were overwritten, not averaged",
        ),
    ]


def expect_gradients(
    seen: Sequence[Gradients],
    expected: Sequence[Gradients],
    local: Sequence[Gradients],
    calls: Sequence[Sequence[Call]] = (),
    more: Sequence[Symptom] = (),
    hint: str = "",
) -> None:
    """Raise :class:`Wrong` unless every rank holds what is expected, and name the mistake that explains the numbers.

    Args:
        seen: the gradients that the ranks hold.
        expected: those that they should hold.
        local: each rank's own gradients, from which ``expected`` was made.
        calls: what each rank has called; tells whether a wait is missing.
        more: symptoms of this exercise, tried before the usual ones.
        hint: what else to say if they are wrong.
    """
    wrong = [
        name for name in expected[0] if any(not _equal(s[name], e[name]) for s, e in zip(seen, expected, strict=True))
    ]
    if not wrong:
        return
    symptoms = [*more, *usual(local)]
    diagnoses = {name: _diagnose(name, seen, expected, symptoms) for name in wrong}
    first = diagnoses[wrong[0]]
    same = [name for name, diagnosis in diagnoses.items() if diagnosis.says == first.says]
    some = ", ".join(f"`{name}`" for name in same[:3]) + (", …" if len(same) > 3 else "")
    which = "every parameter" if len(same) == len(expected[0]) > 1 else f"each of {some}" if len(same) > 1 else some
    rest = len(expected[0]) - len(same)
    others = f" (the other {rest} {'is' if rest == 1 else 'are'} right)" if len(wrong) == len(same) and rest else ""
    message = f"{which[0].upper()}{which[1:]}{others} {first.says}. {_numbers(wrong[0], seen, expected, local)}"
    raise Wrong(f"{message}{_in_flight(calls, first.says)} {hint}".strip(), first.read)


def _diagnose(
    name: str, seen: Sequence[Gradients], expected: Sequence[Gradients], symptoms: Sequence[Symptom]
) -> Symptom:
    def matches(symptom: Symptom, ranks: Sequence[int]) -> bool:
        return all(_equal(seen[rank][name], symptom.seen[rank][name]) for rank in ranks)

    ranks = range(len(seen))
    for symptom in symptoms:
        if matches(symptom, ranks):
            return symptom
    holds = [seen[rank][name] for rank in ranks]
    wants = expected[0][name]
    if wants is None:
        return Symptom(
            (),
            "has a gradient although no rank computed one. An optimizer leaves a parameter alone whose gradient is "
            "None, but weight decay and momentum move one whose gradient is zero",
            "internals-unused",
        )
    if any(part is None for part in holds):
        missing = ", ".join(str(rank) for rank in ranks if holds[rank] is None)
        return Symptom((), f"has no gradient on rank {missing}, where it needs one for the step", "internals-unused")
    shapes = {tuple(part.shape) for part in holds if part is not None}
    if shapes != {tuple(wants.shape)}:
        return Symptom((), f"has a gradient of shape {shapes.pop()}, and the parameter has {tuple(wants.shape)}")
    root = [rank for rank in ranks if _equal(holds[rank], wants)]
    if root == [0]:
        return Symptom(
            (),
            "is right on rank 0 only: `reduce` gives the result to one rank, `all_reduce` to all of them. The other "
            "ranks would take another step, and the replicas drift apart",
            "idea-replicated",
        )
    if all(torch.isfinite(part).all() for part in holds if part is not None):
        return Symptom((), "holds what none of the usual mistakes gives; often it is a piece of another parameter")
    return Symptom((), "is not finite: something was divided by zero, perhaps by a rank's number")


def _numbers(name: str, seen: Sequence[Gradients], expected: Sequence[Gradients], local: Sequence[Gradients]) -> str:
    """The numbers of the first wrong element: seen, own, expected."""
    ranks = [str(rank) for rank in range(len(seen))]
    size = next((part.numel() for g in (*expected, *local) if (part := g[name]) is not None), 1)
    at = next(
        (
            i
            for i in range(size)
            if any(_item(s, name, i) != _item(e, name, i) for s, e in zip(seen, expected, strict=True))
        ),
        0,
    )
    has = [_item(g, name, at) for g in seen]
    own = [_item(g, name, at) for g in local]
    want = [_item(g, name, at) for g in expected]
    right = want[0] if len(set(want)) == 1 else listed(want)
    return (
        f"Element {at} of `{name}` is {listed(has)} on ranks {listed(ranks)}, "
        f"whose own gradients gave {listed(own)}; right is {right}."
    )


def _in_flight(calls: Sequence[Sequence[Call]], says: str) -> str:
    """What asynchronous calls may have to do with it."""
    flights = [call for call in calls[0] if call.asynchronous] if calls else []
    missed = sum(not call.waited for call in flights)
    if missed:
        return (
            f" {missed} of {len(flights)} asynchronous calls were never waited for: before `wait()` a tensor holds "
            "nothing that you may use."
        )
    if flights and says.startswith("holds the sum over"):
        return " What is done to a tensor between its asynchronous launch and its `wait()` is lost, a division too."
    return ""


def _each(local: Sequence[Gradients], reduce: Callable[[Tensor], Tensor]) -> Gradients:
    result: Gradients = {}
    for name in local[0]:
        some = [part for g in local if (part := g[name]) is not None]
        result[name] = reduce(torch.stack(some)) if some else None
    return result


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-8)


def _item(one: Gradients, name: str, index: int) -> str:
    part = one[name]
    if part is None:
        return "None"
    return f"{part.flatten()[index].item():.5g}" if index < part.numel() else "nothing"
