"""Checks of `BucketedDDP`: its numbers, what each call carries, and the order of events.

:Level: deep, 40 minutes
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device
from ddplab.grading.calls import Call, Recorder
from ddplab.grading.checks import check, expect, listed
from ddplab.grading.symptoms import Gradients, expect_gradients, gradients, mean

# Input and factor of the loss, by rank: whole numbers, so that all sums are exact.
INPUTS = (1.0, 3.0, 11.0)
# Elements of the parameters of `small_module` as registered, the cap, and the elements of the
# buckets that follow; the last bucket is not full.
SIZES = [12, 4, 40, 10, 60, 6, 12, 2]
CAP_BYTES = 160
BUCKETS = [80, 50, 16]

ONE_EACH = "That is one call per parameter, and each pays the latency that a bucket shares."
# What other rules carry: elements of each call, and the rule.
OTHER_RULES = (
    (SIZES[::-1], ONE_EACH),
    (SIZES, ONE_EACH),
    (
        [sum(SIZES)],
        "That is one bucket of everything: `bucket_cap_bytes` counts bytes, of which a float32 element has four.",
    ),
    (
        [56, 70, 20],
        "The buckets were filled in the order of registration: then the first to be full is the last to be ready, and "
        "there is nothing to overlap with.",
    ),
    (
        [20, 60, 10, 40, 16],
        "These buckets close before they would exceed the cap; torch's close once they have reached it, so that none "
        "but the last is smaller.",
    ),
)


@dataclass
class Seen:
    """What a rank has seen of one backward."""

    local: Gradients
    after: Gradients
    calls: list[Call]
    events: list[tuple[str, int | str]]  # a note is the name of a parameter with a new gradient


def small_module() -> nn.Module:
    """Four layers whose weights are whole numbers."""
    shapes = (3, 4), (4, 10), (10, 6), (6, 2)
    return ones(nn.Sequential(*(nn.Linear(*shape) for shape in shapes)))


def ones(module: nn.Module) -> nn.Module:
    """The module with 1 for every weight, on the rank's device."""
    for p in module.parameters():
        nn.init.ones_(p)
    return module.to(device())


def backward(ddp: Any, twin: nn.Module, recorder: Recorder, value: float) -> Seen:
    """Run one backward of the learner's class, and one of a twin that is not wrapped."""
    x = torch.full((1, 3), value).to(device())
    (twin(x).float().sum() * value).backward()
    calls, events = len(recorder.calls), len(recorder.events)
    hooks = [p.register_hook(lambda grad, name=name: recorder.note(name)) for name, p in ddp.module.named_parameters()]
    (ddp(x).float().sum() * value).backward()
    for hook in hooks:
        hook.remove()
    return Seen(gradients(twin), gradients(ddp.module), recorder.calls[calls:], recorder.events[events:])


def one_step(learner: ModuleType, recorder: Recorder, module: nn.Module, cap_bytes: int = CAP_BYTES) -> Seen:
    """Wrap a copy of `module` and run one backward."""
    ddp = learner.BucketedDDP(copy.deepcopy(module), cap_bytes)
    return backward(ddp, module, recorder, INPUTS[dist.get_rank()])


def means(seen: Sequence[Seen], hint: str = "") -> None:
    """Judge the gradients after one backward."""
    local = [s.local for s in seen]
    after, calls = [s.after for s in seen], [s.calls for s in seen]
    expect_gradients(after, mean(local), local, calls, hint=hint)


@check("Two ranks end with the mean", ranks=2, judge=means, read="internals-backward")
def two_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """One backward through four layers, whose parameters fill three buckets."""
    return one_step(learner, recorder, small_module())


def one_call_per_bucket(seen: list[Seen]) -> None:
    """Judge how much each call carried."""
    made = [call.elements for call in seen[0].calls]
    rule = next((rule for sizes, rule in OTHER_RULES if sizes == made), "")
    expect(
        made == BUCKETS,
        f"The buckets hold {listed(BUCKETS)} elements; the calls carried {listed(made)}. {rule}",
        "internals-buckets",
    )


@check("One all-reduce per bucket", ranks=2, judge=one_call_per_bucket, read="internals-buckets")
def calls(learner: ModuleType, recorder: Recorder) -> Seen:
    """Parameters of 12, 4, 40, 10, 60, 6, 12 and 2 float32; the cap of 160 bytes is 40 of them."""
    return one_step(learner, recorder, small_module())


def overlapped(seen: list[Seen]) -> None:
    """Judge the order of launches, waits and gradients."""
    events = list(enumerate(seen[0].events))
    launches = [at for at, (kind, _) in events if kind == "launch"]
    waits = [at for at, (kind, _) in events if kind == "wait"]
    # When the first gradient of each layer was there. The buckets are layers 3 and 2, 1, and 0.
    notes = [(at, str(what)) for at, (kind, what) in events if kind == "note"]
    layer = [min(at for at, name in notes if name.startswith(f"{i}.")) for i in range(4)]
    blocking = sum(not call.asynchronous for call in seen[0].calls)
    hook = "Launch it in the hook of the gradient that completes it."
    expect(
        launches[0] < layer[0],
        "The first bucket was launched when the backward had reached the first layer, and nothing was left to overlap "
        f"with. {hook}",
    )
    expect(
        not blocking,
        f"{blocking} of {len(launches)} all-reduces were blocking: the backward waits until each is done. Pass "
        "`async_op=True`, and wait at the end.",
    )
    expect(
        launches[0] < layer[1] and launches[1] < layer[0],
        f"A bucket was full, but was launched only after a gradient of the next bucket had come. {hook}",
    )
    expect(
        all(at > layer[0] for at in waits),
        "A bucket was awaited while gradients were still to be computed. Keep what `all_reduce` returns, and call its "
        "`wait()` in what `after_backward` calls.",
    )


@check(
    "Launched as soon as it is full, awaited at the end",
    ranks=2,
    judge=overlapped,
    read="internals-backward",
)
def overlap(learner: ModuleType, recorder: Recorder) -> Seen:
    """One backward; launches, waits and gradients are noted in the order in which they come."""
    return one_step(learner, recorder, small_module())


def both_steps(seen: list[list[Seen]]) -> None:
    """Judge two steps in a row."""
    means([steps[0] for steps in seen])
    means(
        [steps[1] for steps in seen],
        "The first step was right: something of it, such as a counter or a list, was still there in the second.",
    )


@check("The next step works too", ranks=2, judge=both_steps, read="internals-backward")
def two_steps(learner: ModuleType, recorder: Recorder) -> list[Seen]:
    """Two steps with `zero_grad()` between them."""
    twin, value = small_module(), INPUTS[dist.get_rank()]
    ddp = learner.BucketedDDP(copy.deepcopy(twin), CAP_BYTES)
    first = backward(ddp, twin, recorder, value)
    twin.zero_grad()
    ddp.zero_grad()
    return [first, backward(ddp, twin, recorder, value + 2)]


class Branches(nn.Module):
    """Two layers whose outputs are added; rank 1 computes them in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 5), nn.Linear(3, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all outputs."""
        layers = (self.left, self.right) if dist.get_rank() != 1 else (self.right, self.left)
        first, second = (layer(x).sum() for layer in layers)
        return first + second


@check("The same order on all ranks", ranks=2, judge=means, read="internals-backward")
def branches(learner: ModuleType, recorder: Recorder) -> Seen:
    """Two branches, a bucket each; rank 1 uses them in the other order: bucket 1 is full first."""
    return one_step(learner, recorder, ones(Branches()), cap_bytes=80)


class TwoTypes(nn.Module):
    """A layer in float32 and one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(3, 4), nn.Linear(4, 2).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the second layer makes of the first."""
        return self.narrow(self.wide(x).bfloat16())


def two_calls(seen: list[Seen]) -> None:
    """Judge buckets of two data types."""
    means(seen)
    made = [f"{call.elements} {call.dtype}" for call in seen[0].calls]
    right = ["10 bfloat16", "16 float32"]
    expect(
        made == right,
        f"The calls should carry {listed(right)} elements; they carried {listed(made)}. `torch.cat` of two types "
        "takes the wider one, so more bytes travel than there are: give each bucket one data type.",
        "internals-buckets",
    )


@check("A bucket has one data type", ranks=2, judge=two_calls, read="internals-buckets")
def two_types(learner: ModuleType, recorder: Recorder) -> Seen:
    """A layer in float32 and one in bfloat16, together far below the cap."""
    return one_step(learner, recorder, ones(TwoTypes()), cap_bytes=2**20)


@check("Three ranks end with the mean of three", ranks=3, judge=means, read="internals-backward")
def three_ranks(learner: ModuleType, recorder: Recorder) -> Seen:
    """The first check again, on three ranks."""
    return one_step(learner, recorder, small_module())


def equal_to_ddp(seen: list[list[float]]) -> None:
    """Judge how far the weights are from those of torch's DDP after each step."""
    for step, gaps in enumerate(zip(*seen, strict=True), 1):
        expect(
            max(gaps) == 0,
            f"After step {step} of 3 the weights are up to {max(gaps):.3g} away from those that torch's DDP trains. "
            "The gradients were right, so look at what the replicas start from, and at what is left of the step "
            "before.",
            "internals-constructor",
        )


@check("Three training steps equal those of torch's DDP", ranks=2, judge=equal_to_ddp)
def training(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Three steps of SGD with momentum, from weights that differ until the constructor ran."""
    torch.manual_seed(dist.get_rank())
    layers = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    net = nn.Sequential(*layers).to(device())
    models = learner.BucketedDDP(copy.deepcopy(net), 512), DistributedDataParallel(net)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    gaps = []
    for _ in range(3):
        x = torch.randn(4, 8).to(device())
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        pairs = zip(models[0].module.parameters(), net.parameters(), strict=True)
        gaps.append(max((a - b).abs().max().item() for a, b in pairs))
    return gaps
