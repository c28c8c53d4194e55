"""Checks of the exact resume: what went into each step of a run, stopped or not, bit for bit.

A run is stopped by letting `train` return, and resumed with a new import of the file, a new model,
and generators that stand elsewhere. Where the numbers differ, the first step that differs is taken
apart in the order of its causes: samples, noise, weights, dropout, gradient, optimizer, rate.
"""

import contextlib
import linecache
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset

from ddplab import device
from ddplab.grading import training
from ddplab.grading.checks import Wrong, _load, check, expect
from ddplab.grading.recorder import Recorder

READ = "checkpointing-exact"
POSITION = "setup-resume-data"
REBUILD = "checkpointing-mystery"
LOADING = "museum-loading-on-rank-0-after-wrapping"
MICRO, BATCHES, WIDTH, DROPPED = 4, 4, 32, 0.2
STARTER = Path(__file__).parent / "starter.py"


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


@dataclass
class Generators:
    """States that random numbers come from."""

    torch: Tensor
    python: bytes  # smaller than the numbers

    @classmethod
    def now(cls) -> "Generators":
        """Those of this process."""
        return cls(torch.get_rng_state(), array("I", random.getstate()[1]).tobytes())

    @classmethod
    def seeded(cls, seed: int) -> "Generators":
        """Those that were just seeded."""
        state = array("I", random.Random(seed).getstate()[1])
        return cls(torch.Generator().manual_seed(seed).get_state(), state.tobytes())

    def numbers(self, count: int) -> list[float]:
        """What Python's would give, in single precision."""
        draws = random.Random()
        draws.setstate((3, tuple(array("I", self.python)), None))
        return torch.tensor([draws.random() for _ in range(count)]).tolist()


@dataclass
class Step:
    """What a rank has seen of one step of the optimizer, from the forward on."""

    samples: list[int]
    noise: list[float]
    weights: Tensor  # before the step
    left: Tensor  # in `.grad` before the backward
    drops: Tensor  # the state of torch's generator at the forward
    training: bool
    gradient: Tensor = field(default_factory=lambda: torch.zeros(0))
    moments: Tensor = field(default_factory=lambda: torch.zeros(0))  # of AdamW, before the step
    count: int = 0  # of AdamW's steps before
    rate: float = 0.0
    after: Generators | None = None  # behind the step, if the run may be stopped there


@dataclass
class Run:
    """What a rank has seen of one call of `train`."""

    losses: list[float]
    steps: list[Step]
    end: Tensor  # the weights
    start: Tensor  # those that it was given, on rank 0
    before: Generators  # as they stood when the process began
    saved: list[str]


@dataclass
class Played:
    """What a rank has seen in one check."""

    reference: Run | None  # the starter's, never stopped, where it is asked for
    whole: Run  # the learner's, never stopped
    parts: list[list[Run]]  # the learner's, stopped: as often as there are plans


def flat(tensors: Sequence[Tensor | None], model: nn.Module) -> Tensor:
    """One for each parameter, or none, in a row on the CPU."""
    pairs = zip(tensors, model.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t).flatten().cpu() for t, p in pairs])


def weights(model: nn.Module) -> Tensor:
    """A copy of all weights in a row."""
    return flat([p.detach() for p in model.parameters()], model)


# -- in the ranks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[tuple[list[Step], list[str]]]:
    """See each step of an optimizer with the forward before it, and the files of `torch.save`."""
    steps: list[Step] = []
    forwards: list[Step] = []
    saved: list[str] = []
    torch_save = torch.save

    def forward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].detach().cpu()
        forwards[:] = [
            Step(
                [round(i * 64) for i in x[:, 0].tolist()],
                x[:, 2].tolist(),
                weights(module),
                flat([p.grad for p in module.parameters()], module),
                torch.get_rng_state(),
                module.training,
            )
        ]

    def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not forwards:
            raise Wrong("A step of the optimizer was made without a forward of `ddp` before it.")
        state = [optimizer.state.get(p, {}) for p in model.parameters()]
        seen = forwards.pop()
        seen.gradient = flat([p.grad for p in model.parameters()], model)
        seen.moments = flat([s.get("exp_avg") for s in state], model)
        seen.count = int(max((float(s.get("step", 0)) for s in state), default=0))
        seen.rate = float(optimizer.param_groups[0]["lr"])
        seen.after = Generators.now()
        steps.append(seen)

    def save(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        name = getattr(file, "name", file)
        if isinstance(name, str | Path):
            saved.append(str(name))
        torch_save(what, file, *args, **kwargs)

    hooks = [model.register_forward_pre_hook(forward), register_optimizer_step_pre_hook(step)]
    torch.save = save  # type: ignore[assignment]
    try:
        yield steps, saved
    finally:
        torch.save = torch_save
        for hook in hooks:
            hook.remove()


def process(file: str, text: str, folder: Path, last_step: int, number: int) -> Run:
    """Call `train` as a new process would: a new import, a new model, other generators."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(900 + 10 * number + rank)
    random.seed(900 + 10 * number + rank)
    before, start = Generators.now(), weights(new_model(100 * number))
    learner, model = _load("learner", Path(file), text), new_model(100 * number + rank)
    with training.visible_ddp(), watched(model) as (steps, saved), training.explained(learner):
        losses = learner.train(model, Noisy(world), folder, last_step)
    dist.barrier()
    try:
        losses = [float(loss) for loss in losses]
    except TypeError:
        raise Wrong(f"`train` returned {losses!r:.40}. It is to return a list of losses.") from None
    return Run(losses, steps, weights(model), start, before, saved)


def play(
    learner: ModuleType, recorder: Recorder, plans: Sequence[Sequence[int]], starter: bool = False
) -> Played:
    """Train to the last step of all plans in one go, also with the starter; and as planned."""
    file, last_step = str(learner.__file__), max(plan[-1] for plan in plans)
    text, right = "".join(linecache.getlines(file)), STARTER.read_text(encoding="utf-8")
    for name in ("reference", "whole"):
        (recorder.folder / name).mkdir(exist_ok=True)
    folder = recorder.folder / "reference"
    reference = process(str(STARTER), right, folder, last_step, 0) if starter else None
    whole = process(file, text, recorder.folder / "whole", last_step, 0)
    parts = []
    for number, plan in enumerate(plans):
        folder = recorder.folder / f"plan-{number}"
        folder.mkdir(exist_ok=True)
        parts.append([process(file, text, folder, at, i) for i, at in enumerate(plan)])
    return Played(reference, whole, parts)


# -- the judge -------------------------------------------------------------------------------------


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN included."""
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def exact(*plans: Sequence[int]) -> Callable[[list[Played]], None]:
    """Make a judge: unstopped as the starter's, stopped as unstopped."""

    def judge(seen: list[Played]) -> None:
        one_writer(seen)
        unchanged(seen)
        for number, plan in enumerate(plans):
            for i, last in enumerate(plan):
                first = plan[i - 1] if i else 0
                resumed(Span(seen, [p.parts[number][i] for p in seen], plan[:i], first, last))

    return judge


def one_writer(seen: Sequence[Played]) -> None:
    """Judge that no two ranks write the same file."""
    files = [name for p in seen for name in {*p.whole.saved}]
    twice = next((name for name in files if files.count(name) > 1), None)
    expect(
        not twice,
        f"Several ranks write `{Path(twice or '').name}` at the same time; whose bytes are in it "
        "is chance. Collect what the ranks hold on one of them, or give each a file of its own.",
        "fault-checkpoint-half-written",
    )


@dataclass
class Span:
    """A call of `train` on all ranks, and what is right for it."""

    seen: Sequence[Played]
    runs: Sequence[Run]
    stops: Sequence[int]  # where the calls before it have stopped
    first: int
    last: int

    def right(self, rank: int, step: int) -> Step:
        """Step number `step`, from 0, of the run that was never stopped."""
        return self.seen[rank].whole.steps[step]

    def place(self, step: int, rank: int) -> str:
        """Where something differs: people count steps from 1."""
        epoch, at = divmod(step, BATCHES)
        stop = f", the first after the stop at {self.first}" if step == self.first else ""
        return f"Step {step + 1} on rank {rank} (batch {at + 1} of epoch {epoch + 1}{stop})"


def unchanged(seen: Sequence[Played]) -> None:
    """Judge that a run that is never stopped computes what the starter's computes.

    With more than two ranks another layout of the buckets is allowed, and that is not asked.
    """
    for rank, played in enumerate(seen):
        right, mine = played.reference, played.whole
        if right is None:
            continue
        expect(
            len(mine.steps) >= len(right.steps) and len(mine.losses) == len(right.losses),
            f"A run that was never stopped is to make {len(right.steps)} steps; yours made "
            f"{len(mine.steps)} and returned {len(mine.losses)} losses.",
        )
        mine.steps = mine.steps[len(mine.steps) - len(right.steps) :]
        if mine.losses == right.losses and same_bits(mine.end, right.end):
            continue
        steps = enumerate(zip(right.steps, mine.steps, strict=True), 1)
        number, what = next(
            ((n, difference(a, b)) for n, (a, b) in steps if difference(a, b)), (0, "losses")
        )
        where = f" The first difference is in step {number} on rank {rank}: its {what}."
        raise Wrong(
            "A run that was never stopped computes something else than the starter's, bit for bit: "
            f"the cure has changed the experiment.{where * (number > 0)} Seeds, "
            "order of the samples and number of draws from the generators are part of it.",
            READ,
        )


PARTS: dict[str, Callable[[Step], Any]] = {  # in the order of their causes
    "samples": lambda s: s.samples,
    "noise": lambda s: s.noise,
    "weights": lambda s: s.weights,
    "dropout": lambda s: s.drops,
    "mode": lambda s: s.training,
    "gradient": lambda s: s.gradient,
    "optimizer": lambda s: (s.count, s.moments),
    "learning rate": lambda s: s.rate,
}


def equal(a: Any, b: Any) -> bool:
    """Equal to the bit."""
    if isinstance(a, Tensor):
        return same_bits(a, b)
    if isinstance(a, tuple):
        return all(map(equal, a, b))
    return bool(a == b)


def difference(right: Step, held: Step) -> str:
    """Name the first part that differs; empty if none does."""
    return next((n for n, get in PARTS.items() if not equal(get(right), get(held))), "")


def resumed(span: Span) -> None:
    """Judge one call of `train`."""
    count(span)
    whole = [p.whole for p in span.seen]
    losses = [w.losses[span.first : span.last] for w in whole]
    if [run.losses for run in span.runs] == losses and ends(span):
        return
    for step in range(span.first, span.last):
        found = [
            (list(PARTS).index(what), rank)
            for rank, run in enumerate(span.runs)
            if (what := difference(span.right(rank, step), run.steps[step - span.last]))
        ]
        if found:
            part, rank = min(found)
            says, read = EXPLAIN[list(PARTS)[part]](span, step, rank)
            raise Wrong(f"{span.place(step, rank)} {says}", read)
    for rank, run in enumerate(span.runs):
        if run.losses == losses[rank]:
            continue
        raise Wrong(
            f"The steps are right, but `train` on rank {rank} returned other losses than those of "
            f"the steps that it made: {run.losses[:2]} …, right is "
            f"{losses[rank][:2]} …",
            READ,
        )
    raise Wrong(no_step(span) if span.first == span.last else CHANGED, READ)


CHANGED = (
    "All steps had the right samples, weights and gradients, but the run ends with other weights: "
    "something beside the steps has changed them."
)


def ends(span: Span) -> bool:
    """Whether the weights are right at the end."""
    right = [
        p.whole.steps[span.last].weights if span.last < len(p.whole.steps) else p.whole.end
        for p in span.seen
    ]
    return all(same_bits(run.end, end) for run, end in zip(span.runs, right, strict=True))


def no_step(span: Span) -> str:
    """What is wrong with a resume that had nothing to do."""
    return (
        f"Stopped at {span.first} and called again with `last_step={span.last}` it had no step to "
        "make, and is to end with the weights that were saved; it does not."
    )


def count(span: Span) -> None:
    """Judge how many steps were made."""
    steps = span.last - span.first
    for rank, run in enumerate(span.runs):
        made, told = len(run.steps), len(run.losses)
        if made >= steps and told == steps:
            continue
        idea = "Each step that is made has one loss."
        if made == told == span.last:
            idea = "It began with step 1 again."
        elif made == told and made - steps == span.first % BATCHES:
            idea = "The steps of the epoch that was begun were made again."
        elif made == told == steps + 1:
            idea = "One step too many: ask whether there is one to make before making it."
        stop = f"Stopped at {span.first} and resumed" if span.stops else "Begun"
        raise Wrong(
            f"{stop} to `last_step={span.last}`, {steps} steps are to be made and as many losses "
            f"returned; rank {rank} made {made} and returned {told}. {idea}",
            READ,
        )


# -- what was forgotten ----------------------------------------------------------------------------

Said = tuple[str, str]


def samples(span: Span, step: int, rank: int) -> Said:
    """Explain wrong samples."""
    held = span.runs[rank].steps[step - span.last].samples
    right = [s.samples for s in span.seen[rank].whole.steps]
    text = f"was made with the samples {held}, right is {right[step]}."
    epoch = step // BATCHES * BATCHES
    if held in right:
        at = right.index(held)
        if at == epoch and step > epoch:
            return (
                f"{text} Those are the first batch of this epoch: the order was found again, the "
                "position in it was forgotten, so some samples are seen twice. Save how many "
                "batches of the epoch are done, and skip them.",
                POSITION,
            )
        if at < BATCHES <= step and at == step % BATCHES:
            return (
                f"{text} That is this batch in the order of epoch 1: the epoch was forgotten. The "
                "order follows from the sampler's seed and `set_epoch(epoch)`.",
                POSITION,
            )
        if at == 0:
            return (
                f"{text} Those are the first batch of epoch 1: epoch and position were forgotten.",
                POSITION,
            )
        return f"{text} Those belong to step {at + 1}: the position is off.", POSITION
    for other, played in enumerate(span.seen):
        if held == played.whole.steps[step].samples:
            return f"{text} Those belong to rank {other}.", POSITION
    return (
        f"{text} No batch of the run that was never stopped holds these together: the order or the "
        "grouping is another one. It follows from the sampler's seed, `set_epoch(epoch)` and the "
        "number of samples that are skipped.",
        POSITION,
    )


def noise(span: Span, step: int, rank: int) -> Said:
    """Explain wrong noise: find the first number in what any generator would have given."""
    run = span.runs[rank]
    held = run.steps[step - span.last].noise[0]
    text = f"read the right samples, with other noise ({held:.3f}, right is "
    text += f"{span.right(rank, step).noise[0]:.3f}): "
    for whose, state in origins(span, step, rank):
        numbers = state.numbers(400)
        if held in numbers:
            at = numbers.index(held)
            if whose == SAVED and at:
                return (
                    f"{text}Python's generator had been drawn from {at} times since it was set. "
                    f"Whoever reads samples draws, and so do skipped batches and a warm-up "
                    f"({MICRO} draws each): set the generators when the iterator stands where "
                    "that of the stopped run stood.",
                    READ,
                )
            return f"{text}Python's generator {whose}.{nothing_done(span)}", READ
    return f"{text}Python's generator is in a state that the run has never had.", READ


SAVED = "is as it was saved"


def origins(span: Span, step: int, rank: int) -> Iterator[tuple[str, Generators]]:
    """Generators that a resume could have used, and how to say that it has used them."""
    if step:
        for other in [rank, *(r for r in range(len(span.seen)) if r != rank)]:
            after = span.right(other, step - 1).after
            assert after is not None
            yield (
                SAVED
                if other == rank
                else f"holds rank {other}'s state: each rank has generators of its own, and rank "
                "0's file had those of one rank only",
                after,
            )
    for other in (rank, *range(len(span.seen))):
        own = "" if other == rank else f", with the seed of rank {other}"
        yield (
            f"began anew{own}, as it is seeded at the top of `train`: it is part of the state, "
            "and was not saved, or not restored",
            Generators.seeded(other),
        )
    yield "was left as the new process had it", span.runs[rank].before
    for earlier in range(step - 1):
        after = span.right(rank, earlier).after
        assert after is not None
        yield f"is in the state that it had after step {earlier + 1}", after


def nothing_done(span: Span) -> str:
    """What a call that made no step may have saved."""
    if len(span.stops) > 1 and span.stops[-1] == span.stops[-2]:
        return (
            " The call before had no step to make, and seems to have saved its own generators "
            "over those of the run."
        )
    return ""


def same_weights(span: Span, step: int, rank: int) -> Said:
    """Explain wrong weights before a step."""
    run = span.runs[rank]
    held = run.steps[step - span.last].weights
    others = [r.steps[step - span.last].weights for r in span.runs]
    if step > span.first:
        return (
            "begins with other weights than that of the run that was never stopped, although the "
            "step before had the same weights, gradient, moments and learning rate. Look at the "
            "options of the optimizer, and at what is done to the weights beside its steps.",
            READ,
        )
    if same_bits(held, run.start):
        if not same_bits(held, others[0]):
            return (
                "begins with the weights that the model was built with, and rank 0 with others: "
                "DDP broadcasts in its constructor and never again. What is loaded later, every "
                "rank must load.",
                LOADING,
            )
        return "begins with the weights that the model was built with: none were loaded.", READ
    for earlier in range(step):
        if same_bits(held, span.right(rank, earlier).weights):
            return f"begins with the weights that it had {step - earlier} step(s) before.", READ
    if not same_bits(held, others[0]):
        return (
            "begins with other weights than rank 0. What is loaded behind DDP's constructor, every "
            "rank must load.",
            LOADING,
        )
    return (
        "begins with weights that the run has never had. Perhaps something was done to them after "
        "they had been loaded: a warm-up must not step, or must come before the loading.",
        READ,
    )


def dropped(span: Span, step: int, rank: int) -> Said:
    """Explain a wrong state of torch's generator: what draws lead to it, from where?"""
    held = span.runs[rank].steps[step - span.last].drops
    text = "had the right samples and weights, but drops other units: torch's generator "
    right = span.right(rank, step).drops
    for whose, state in origins(span, step, rank):
        for iters, forwards, after in DRAWS:
            drawn = draw(state.torch, iters, forwards, after)
            if not torch.equal(drawn, held):
                continue
            if whose != SAVED:
                return f"{text}{whose}.{nothing_done(span)}", READ
            if forwards:
                return (
                    f"{text}was set before {forwards} forward(s) that no step belongs to, such as "
                    "a warm-up, and dropout has drawn from it. Set the generators after that.",
                    READ,
                )
            if torch.equal(draw(state.torch, 1, 0, 0), right):
                return (
                    f"{text}misses a draw. The run was stopped at the end of an epoch, so the next "
                    "`iter(loader)`, which draws one number as a seed for workers, comes *after* "
                    "the state that was saved; you have set the state behind it. In the middle of "
                    "an epoch it comes before.",
                    READ,
                )
            return (
                f"{text}is {iters + after} draw(s) ahead. `iter(loader)` draws one number as a "
                "seed for workers, also if there are none, and the run that was not stopped drew "
                "it at the beginning of the epoch. Set the generators after `iter(…)`, before the "
                "first batch.",
                READ,
            )
    return f"{text}is in a state that the run has never had.{nothing_done(span)}", READ


DRAWS = [(i, f, a) for f in range(4) for i in range(4) for a in range(3 if f else 1)]


def draw(state: Tensor, iters: int, forwards: int, after: int) -> Tensor:
    """The state after so many loaders were begun, then forwards made, then loaders begun."""
    kept = torch.get_rng_state()
    try:
        torch.set_rng_state(state)
        for _ in range(iters):
            torch.empty((), dtype=torch.int64).random_()
        for _ in range(forwards):
            dropout(torch.ones(MICRO, WIDTH), DROPPED)
        for _ in range(after):
            torch.empty((), dtype=torch.int64).random_()
        return torch.get_rng_state()
    finally:
        torch.set_rng_state(kept)


def mode(span: Span, step: int, rank: int) -> Said:
    """Explain a model that evaluates."""
    return "ran with the model in evaluation mode: `ddp.train()` after a look at the model.", READ


def gradient(span: Span, step: int, rank: int) -> Said:
    """Explain a wrong gradient of the right weights and samples."""
    held, right = span.runs[rank].steps[step - span.last], span.right(rank, step)
    if not same_bits(held.left, right.left):
        return (
            "had a gradient in `.grad` before its backward, which adds to it: what a warm-up has "
            "left there. `optimizer.zero_grad()` behind it.",
            REBUILD,
        )
    off = (held.gradient - right.gradient).abs()
    largest, most = float(off.max()), float(right.gradient.abs().max())
    if largest > 1e-5 * most:
        own = [r.steps[step - span.last].gradient for r in span.runs]
        alike = all(same_bits(g, own[0]) for g in own)
        return (
            f"has another gradient, off by up to {largest:.2g}, from the right samples, weights "
            "and dropout."
            + ("" if alike else " The ranks do not share it: the forward did not go through DDP."),
            READ,
        )
    return (
        "had, bit for bit, the samples, noise, weights and dropout of the run that was never "
        f"stopped. Only the mean of the gradients differs, in {int((off > 0).sum())} of "
        f"{off.numel()} elements, by at most {largest:.1g}: its additions were made in another "
        "order. A new DDP has the bucket layout of its constructor until it has seen a backward, "
        "the stopped run had the rebuilt one, and the layout decides which rank's share comes "
        "first. On two ranks a + b = b + a hides it. Have DDP see a backward before you load.",
        REBUILD,
    )


def moments(span: Span, step: int, rank: int) -> Said:
    """Explain a wrong state of AdamW."""
    held = span.runs[rank].steps[step - span.last]
    own = "" if rank == 0 else f" All of that holds for rank {rank}: every rank must load it."
    if held.count == 0 or not held.moments.any():
        return (
            "had the right gradient, and AdamW began anew: it has no moments, and a step count of "
            f"{held.count}. They are part of the state.{own}",
            READ,
        )
    return (
        f"had the right gradient, but AdamW's moments are others; its step count is {held.count}, "
        f"right is {step}. Something has stepped, or was loaded, in between.{own}",
        READ,
    )


def rate(span: Span, step: int, rank: int) -> Said:
    """Explain a wrong learning rate."""
    held = span.runs[rank].steps[step - span.last].rate
    rates = [s.rate for s in span.seen[rank].whole.steps]
    text = f"had the right gradient and moments, and the learning rate {held:.4g}, right is "
    text += f"{rates[step]:.4g}. "
    if held in rates:
        at = rates.index(held)
        if at == step - span.first:
            if at:
                return (
                    f"{text}That is the rate of step {at + 1}: the scheduler began anew. The step "
                    "before was right only because the rate is in the optimizer's state, too.",
                    READ,
                )
            return (
                f"{text}That is the rate of step 1. The scheduler began anew, or its constructor, "
                "which sets the rate, ran after the optimizer was loaded.",
                READ,
            )
        return f"{text}That is the rate of step {at + 1}.", READ
    return f"{text}The run has never had it.", READ


EXPLAIN: dict[str, Callable[[Span, int, int], Said]] = {
    "samples": samples,
    "noise": noise,
    "weights": same_weights,
    "dropout": dropped,
    "mode": mode,
    "gradient": gradient,
    "optimizer": moments,
    "learning rate": rate,
}

MIDDLE = [(6, 9)]
AGAIN = [(1, 2, 4, 4, 5, 8, 9)]
THREE = [(6, 8), (8, 9)]


@check("Stopped in the middle of an epoch", ranks=2, judge=exact(*MIDDLE), read=READ)
def middle(learner: ModuleType, recorder: Recorder) -> Played:
    """Four batches per epoch: 9 steps in one go; then 6 steps, and resumed for 3 more."""
    return play(learner, recorder, MIDDLE, starter=True)


@check("Stopped again and again", ranks=2, judge=exact(*AGAIN), read=READ)
def again(learner: ModuleType, recorder: Recorder) -> Played:
    """Stopped after steps 1, 2, 4 (the end of an epoch; resumed with nothing to do), 5 and 8."""
    return play(learner, recorder, AGAIN)


@check("Three ranks", ranks=3, judge=exact(*THREE), read=REBUILD)
def three(learner: ModuleType, recorder: Recorder) -> Played:
    """Stopped after step 6, in the middle of an epoch; in another run after 8, at the end."""
    return play(learner, recorder, THREE)
