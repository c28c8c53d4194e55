"""Checks of `sync_gradients`: hand-made gradients, missing ones, real steps beside torch's DDP.

:Level: core, 28 minutes
"""

import copy
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device
from ddplab.grading.calls import Call, Recorder
from ddplab.grading.checks import check, expect
from ddplab.grading.symptoms import Gradients, expect_gradients, gradients, mean

# The gradient of each parameter, by rank. The largest is the last on rank 0 and the first on rank
# 1; and own gradient, sum, mean, maximum and product are all different numbers.
GRADIENTS = ((2.0, 4.0, 6.0, 8.0), (20.0, 16.0, 12.0, 10.0), (101.0, 109.0, 111.0, 102.0))


@dataclass
class Seen:
    """What a rank has seen of one call of `sync_gradients`."""

    local: Gradients
    after: Gradients
    calls: list[Call]
    changed: list[str]  # parameters and buffers
    attached: list[str]  # gradients that require a gradient
    returned: str  # name of the type of what was returned


def small_module() -> nn.Module:
    """Four parameters of four sizes, so that calls for different ones can be distinguished.

    Each rank has weights of its own, so that averaging those is not without effect.
    """
    torch.manual_seed(dist.get_rank())
    layers = nn.Linear(4, 3), nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)
    return nn.Sequential(*layers).to(device())


def call(learner: ModuleType, recorder: Recorder, module: nn.Module, missing: tuple[str, ...] = ()) -> Seen:
    """Give every parameter but the missing ones its gradient, and call `sync_gradients`."""
    named = list(module.named_parameters())
    for value, (name, p) in zip(GRADIENTS[dist.get_rank()], named, strict=True):
        p.grad = None if name in missing else torch.full_like(p, value)
    local, before = gradients(module), copy.deepcopy(module.state_dict())
    returned = learner.sync_gradients(module)
    after = module.state_dict()
    return Seen(
        local,
        gradients(module),
        recorder.calls,
        changed=[name for name in before if not torch.equal(before[name], after[name])],
        attached=[name for name, p in named if p.grad is not None and p.grad.requires_grad],
        returned="" if returned is None else type(returned).__name__,
    )


def equal_to_the_mean(seen: list[Seen]) -> None:
    """Judge one call on every rank."""
    local, first = [s.local for s in seen], seen[0]
    changed, attached = (names[0] if names else "" for names in (first.changed, first.attached))
    expect(
        not changed,
        f"The call changed `{changed}`, which is not a gradient. Averaging parameters is another algorithm: each "
        "rank's momentum would still be made of its own gradients. Reduce `p.grad`, not `p` or `p.data`.",
        "museum-reduces-the-parameter",
    )
    hint = f"Your function returned a {first.returned}, which is never read: the result belongs in `.grad`."
    expect_gradients(
        [s.after for s in seen],
        mean(local),
        local,
        [s.calls for s in seen],
        hint=hint if first.returned else "",
    )
    expect(
        not attached,
        f"The gradient of `{attached}` requires a gradient itself, so that autograd would record what is done to it. "
        "A gradient is a plain tensor, no `nn.Parameter`: work on `p.grad` in place.",
    )


@check("Two ranks end with the mean", ranks=2, judge=equal_to_the_mean)
def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two ranks have different gradients for all four parameters, and call your function."""
    return call(learner, recorder, small_module())


@check("Three ranks end with the mean of three", ranks=3, judge=equal_to_the_mean)
def three_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """The same on three ranks."""
    return call(learner, recorder, small_module())


@check(
    "What no rank used keeps None",
    ranks=2,
    judge=equal_to_the_mean,
    read="internals-unused",
)
def used_by_none(learner: ModuleType, recorder: Recorder) -> Seen:
    """One parameter is frozen, and no rank used another: both have None in `.grad`, everywhere."""
    module = small_module()
    module.get_parameter("0.bias").requires_grad_(False)
    return call(learner, recorder, module, missing=("0.bias", "1.weight"))


@check(
    "A rank that did not use a parameter gets the mean too",
    ranks=3,
    judge=equal_to_the_mean,
    read="internals-unused",
)
def used_by_some(learner: ModuleType, recorder: Recorder) -> Seen:
    """Rank 1, and only rank 1, did not use the first layer: there its gradients are None."""
    missing = ("0.weight", "0.bias") if dist.get_rank() == 1 else ()
    return call(learner, recorder, small_module(), missing)


def equal_to_ddp(seen: list[list[float]]) -> None:
    """Judge how far the weights are from those of torch's DDP after each step."""
    for step, gaps in enumerate(zip(*seen, strict=True), 1):
        expect(
            max(gaps) == 0,
            f"After step {step} of 3 the weights are up to {max(gaps):.3g} away from those that torch's DDP trains. "
            "The first call was right, so a later one reuses something from it: `zero_grad()` lets go of the "
            "gradients, and each backward makes new ones.",
            "internals-sync-point",
        )


@check("Three training steps equal those of torch's DDP", ranks=2, judge=equal_to_ddp)
def training(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Three steps of SGD with momentum: `zero_grad()`, a backward, your function."""
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device())
    ddp = DistributedDataParallel(copy.deepcopy(mine))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (mine, ddp)]
    torch.manual_seed(1 + dist.get_rank())
    gaps = []
    for _ in range(3):
        x = torch.randn(4, 8).to(device())
        for model, optimizer in zip((mine, ddp), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if model is mine:
                learner.sync_gradients(mine)
            optimizer.step()
        pairs = zip(mine.parameters(), ddp.parameters(), strict=True)
        gaps.append(max((a - b).abs().max().item() for a, b in pairs))
    return gaps
