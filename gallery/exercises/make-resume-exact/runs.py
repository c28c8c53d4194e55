"""What a rank records of a run: each step of the optimizer with everything that went into it.

A run is stopped by letting `train` return, and resumed with a new import of the file, a new model, and generators
in another state.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset

from ddplab import device
from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, expect, load_module, text_of

MICRO, BATCHES, WIDTH, DROPPED = 4, 4, 32, 0.2
STARTER = Path(__file__).parent / "starter.py"
CAUSES = ("samples", "noise", "weights", "dropout", "training", "gradient", "optimizer", "rate")  # of a step, in order


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """As many samples as make four batches on each rank; to read one costs a random number."""

    def __init__(self, ranks: int) -> None:
        self.size = MICRO * BATCHES * ranks

    def __len__(self) -> int:  # noqa: D105
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:  # noqa: D105
        x = torch.tensor([i / 64, i % 5 / 5, random.random()], device=device())
        return x, x[:1].sin() + i % 3


def new_model(seed: int) -> nn.Module:
    """A model whose weights depend on the seed alone."""
    hidden = nn.Linear(3, WIDTH), nn.Tanh(), nn.Dropout(DROPPED), nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(*hidden, nn.Tanh(), nn.Linear(WIDTH, 1))
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers) / p.shape[-1] ** 0.5)
    return model.to(device())


class Generators(NamedTuple):
    """The states that random numbers come from."""

    torch: Tensor
    python: Any

    @classmethod
    def now(cls) -> "Generators":
        """Those of this process."""
        return cls(torch.get_rng_state(), random.getstate())

    @classmethod
    def seeded(cls, seed: int) -> "Generators":
        """Those that were just seeded."""
        return cls(torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate())


@dataclass
class Step:
    """What a rank has seen of one step of the optimizer, from the forward on."""

    samples: list[int]
    noise: list[float]
    weights: Tensor  # before the step
    left: Tensor  # in `.grad` before the backward
    dropout: Tensor  # the state of torch's generator at the forward
    training: bool
    gradient: Tensor
    optimizer: tuple[int, Tensor]  # AdamW's steps and moments before this one
    rate: float
    after: Generators  # behind the step


@dataclass
class Run:
    """What a rank has seen of one call of `train`."""

    losses: list[float]
    steps: list[Step]
    end: Tensor  # the weights
    start: Tensor  # those that it was given, on rank 0
    before: Generators  # as they stood when the process began
    saved: list[str]


class Played(NamedTuple):
    """What a rank has seen in one check."""

    reference: Run | None  # the starter's, never stopped, where it is asked for
    whole: Run  # the learner's, never stopped
    stopped: list[list[Run]]  # the learner's, by plan


def flat(tensors: Sequence[Tensor | None], model: nn.Module) -> Tensor:
    """One for each parameter, or none, in a row on the CPU."""
    pairs = zip(tensors, model.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t.detach()).flatten().cpu() for t, p in pairs])


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[tuple[list[Step], list[str]]]:
    """See each step of an optimizer with the forward before it, and the files of `torch.save`."""
    steps, saved, forwards, torch_save = list[Step](), list[str](), list[tuple[Any, ...]](), torch.save
    parameters = list(model.parameters())

    def forward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x, grads = inputs[0].detach().cpu(), [p.grad for p in parameters]
        samples = [round(i * 64) for i in x[:, 0].tolist()]
        state = flat(parameters, model), flat(grads, model), torch.get_rng_state()
        forwards[:] = [(samples, x[:, 2].tolist(), *state, module.training)]

    def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        expect(forwards, "A step of the optimizer was made without a forward of `ddp` before it.")
        states = [optimizer.state.get(p, {}) for p in parameters]
        count = int(max((float(s.get("step", 0)) for s in states), default=0))
        gradient = flat([p.grad for p in parameters], model)
        moments, rate = flat([s.get("exp_avg") for s in states], model), float(optimizer.param_groups[0]["lr"])
        steps.append(Step(*forwards.pop(), gradient, (count, moments), rate, Generators.now()))

    def save(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        name = getattr(file, "name", file)
        saved.extend([str(name)] if isinstance(name, str | Path) else [])  # not a buffer in memory
        torch_save(what, file, *args, **kwargs)

    hooks = [model.register_forward_pre_hook(forward), register_optimizer_step_pre_hook(step)]
    torch.save = save  # type: ignore[assignment]
    try:
        yield steps, saved
    finally:
        torch.save = torch_save
        for hook in hooks:
            hook.remove()


def process(file: Path, text: str, folder: Path, last_step: int, number: int) -> Run:
    """Call `train` as a new process would: a new import, a new model, other generators."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(900 + 10 * number + rank)
    random.seed(900 + 10 * number + rank)
    before, start = Generators.now(), new_model(100 * number)
    folder.mkdir(exist_ok=True)
    learner, model = load_module("learner", file, text), new_model(100 * number + rank)
    with training.visible_ddp(), watched(model) as (steps, saved), training.explained(learner):
        losses = learner.train(model, Noisy(world), folder, last_step)
    dist.barrier()
    try:
        losses = [float(loss) for loss in losses]
    except TypeError:
        raise Wrong(f"`train` returned {losses!r:.40}. It should return a list of losses.") from None
    ends = [flat(list(m.parameters()), m) for m in (model, start)]
    return Run(losses, steps, *ends, before, saved)


def play(learner: ModuleType, recorder: Recorder, plans: Sequence[Sequence[int]], starter: bool = False) -> Played:
    """Train to the last step of all plans in one go, also with the starter; and as planned."""
    file, text, folder = Path(str(learner.__file__)), text_of(learner), recorder.folder
    last_step, right = max(plan[-1] for plan in plans), STARTER.read_text(encoding="utf-8")
    reference = process(STARTER, right, folder / "reference", last_step, 0) if starter else None
    whole = process(file, text, folder / "whole", last_step, 0)
    places = [(folder / f"plan-{number}", plan) for number, plan in enumerate(plans)]
    return Played(
        reference, whole, [[process(file, text, p, at, i) for i, at in enumerate(plan)] for p, plan in places]
    )


def equal(a: Any, b: Any) -> bool:
    """Equal to the bit, NaN included."""
    if isinstance(a, Tensor):
        return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    return all(map(equal, a, b)) if isinstance(a, tuple) else bool(a == b)


def difference(right: Step, held: Step) -> str:
    """Name the first cause that differs; empty if none does."""
    return next((name for name in CAUSES if not equal(getattr(right, name), getattr(held, name))), "")


def draw(state: Tensor, iters: int, forwards: int, after: int) -> Tensor:
    """The state after so many loaders were begun, then forwards made, then loaders begun."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        for number in range(iters + forwards + after):
            if iters <= number < iters + forwards:
                dropout(torch.ones(MICRO, WIDTH), DROPPED)
            else:
                torch.empty((), dtype=torch.int64).random_()
        return torch.get_rng_state()
