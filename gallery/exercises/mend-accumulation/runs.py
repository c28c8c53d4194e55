"""What a rank records of an accumulation loop: each forward, each `no_sync`, each step of the optimizer."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddplab import device
from ddplab.grading import training
from ddplab.grading.calls import Call, Recorder
from ddplab.grading.symptoms import Gradients, gradients
from ddplab.grading.training import Weights

MICRO, WIDTH = 2, 400


@dataclass
class Step:
    """What a rank has seen of one step of the optimizer."""

    before: Gradients  # what the optimizer was given
    calls: list[Call]  # since the step before
    samples: list[int]  # of each forward since then
    synced: list[bool]  # whether DDP was to synchronize when that forward ran


@dataclass
class Seen:
    """What a rank has seen of one training."""

    steps: list[Step] = field(default_factory=list)
    end: Weights = field(default_factory=dict)
    contexts: int = 0  # how often `no_sync` was entered
    buckets: list[int] = field(default_factory=list)  # that DDP has in each step, if done right


def small_module() -> nn.Module:
    """Three layers, the same in all processes; the middle one has more than 1 MiB.

    So DDP has two buckets from the second step on, and one in the first.
    """
    layers = nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    module = training.filled(nn.Sequential(*layers), 1)
    with torch.no_grad():
        for p in module.parameters():
            p.div_(WIDTH**0.5)
    return module


def micro_batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    """Micro-batch `number` of a rank."""
    numbers = torch.Generator().manual_seed(100 * rank + number)
    x = torch.randn(MICRO, 3, generator=numbers, dtype=torch.float64)
    return x, x.sum(dim=1, keepdim=True) + rank + number % 3


def some(parts: Gradients) -> Gradients:
    """The first elements of each gradient: enough to tell them apart."""
    return {name: None if g is None else g.flatten()[:20].clone() for name, g in parts.items()}


@contextlib.contextmanager
def watched(module: nn.Module, recorder: Recorder) -> Iterator[Seen]:
    """See each forward of `module`, each `no_sync`, and each step of an optimizer."""
    seen, no_sync, made = Seen(), DistributedDataParallel.no_sync, 0
    samples: list[int] = []
    synced: list[bool] = []
    inside = 0

    @contextlib.contextmanager
    def noted(self: DistributedDataParallel) -> Iterator[None]:
        nonlocal inside
        seen.contexts += 1
        inside += 1
        try:
            with no_sync(self):
                yield
        finally:
            inside -= 1

    def forward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            samples.append(len(inputs[0]))
            synced.append(not inside)

    def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal made
        calls, made = recorder.calls[made:], len(recorder.calls)
        seen.steps.append(Step(some(gradients(module)), calls, samples[:], synced[:]))
        samples.clear()
        synced.clear()

    made = len(recorder.calls)
    hooks = [module.register_forward_pre_hook(forward), register_optimizer_step_pre_hook(step)]
    DistributedDataParallel.no_sync = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()
        seen.end = {name: value.flatten()[:20] for name, value in training.weights(module).items()}


def play(learner: ModuleType, recorder: Recorder, micros: int, accumulate: int, lr: float) -> Seen:
    """Train on this rank."""
    module = small_module().to(device())
    batches = [micro_batch(dist.get_rank(), number) for number in range(micros)]
    batches = [(x.to(device()), y.to(device())) for x, y in batches]
    needed = buckets(small_module().to(device()), batches, accumulate)
    with training.visible_ddp(), watched(module, recorder) as seen, training.explained(learner):
        learner.train(module, batches, accumulate, lr)
    seen.buckets = needed
    return seen


def buckets(module: nn.Module, batches: Sequence[Any], accumulate: int) -> list[int]:
    """How many buckets DDP reduces in each step of a right loop; in the first one they differ."""
    counts = []
    with training.visible_ddp() as reductions:
        ddp = DistributedDataParallel(module)
        for start in range(0, len(batches), accumulate):
            *others, last = batches[start : start + accumulate]
            with ddp.no_sync():
                for x, _ in others:
                    ddp(x).sum().backward()
            ddp(last[0]).sum().backward()
            counts.append(len(reductions.sent) - sum(counts))
    return counts
