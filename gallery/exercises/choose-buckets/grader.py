"""Checks of `choose_cap_mib` and `wrap`: predicted against the best cap, and read back from DDP."""

import contextlib
import functools
import itertools
import math
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device
from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ddplab.costmodel import Gradient, Link, Step, bucketed, equal_layers, simulate_step
from ddplab.grading import training
from ddplab.grading.checks import Wrong, check, expect
from ddplab.grading.recorder import Recorder

READ = "performance-overlap"
BUCKETS = "internals-buckets"
MARGIN = 1.05
COMPUTING_S = 5.0  # of the processor's time, which a busy machine does not shorten


@dataclass(frozen=True)
class Case:
    """The arguments of `choose_cap_mib`."""

    gradients: tuple[Gradient, ...]
    latency_s: float
    bytes_per_s: float

    def __str__(self) -> str:  # noqa: D105
        nbytes = sum(n for _, n in self.gradients)
        return (
            f"{len(self.gradients)} gradients of {nbytes / MIB:.3g} MiB in all, ready from {ms(self.gradients[0][0])} "
            f"to {ms(self.gradients[-1][0])}, latency {ms(self.latency_s)}, {self.bytes_per_s:g} bytes/s"
        )

    def step(self, buckets: Sequence[Sequence[int]]) -> Step:
        """What the cost model says of these buckets; there is no forward in it."""
        link = Link(self.latency_s, self.bytes_per_s, algorithm="link")
        return simulate_step(0.0, self.gradients, buckets, link)

    def with_cap(self, cap_bytes: int) -> Step:
        """What the cost model says of this cap."""
        return self.step(bucketed(self.gradients, cap_bytes))

    @functools.cached_property
    def best_cap(self) -> int:
        """The best cap in bytes. Buckets change only where the cap passes a sum of neighbours."""
        ends = [0, *itertools.accumulate(n for _, n in self.gradients)]
        sums = {end - start for start, end in itertools.combinations(ends, 2)} - {0}
        return min(sorted(sums), key=lambda cap: self.with_cap(cap).step_s)

    def good(self, cap_mib: float) -> bool:
        """Whether the step is at most 5 % longer than the best one."""
        cap_bytes = in_bytes(cap_mib)
        return self.with_cap(cap_bytes).step_s <= MARGIN * self.with_cap(self.best_cap).step_s


def in_bytes(cap_mib: float) -> int:
    """A cap as DDP's constructor converts it; at least a byte, which is as good as nothing."""
    return max(1, int(cap_mib * MIB))


# -- choose_cap_mib --------------------------------------------------------------------------------


def ask(learner: ModuleType, cases: Sequence[Case]) -> list[float]:
    """On the rank: the learner's caps, each a number of MiB that DDP can take."""
    caps: list[float] = []
    with at_most_computing(lambda: cases[len(caps)]):
        for case in cases:
            caps.append(answer(learner, case))
    return caps


def answer(learner: ModuleType, case: Case) -> float:
    """One cap."""
    returned = learner.choose_cap_mib(list(case.gradients), case.latency_s, case.bytes_per_s)
    try:
        cap_mib = float(returned)
    except (TypeError, ValueError):
        cap_mib = math.nan
    if not 0 < cap_mib < 2**40:  # NaN, too
        raise Wrong(
            f"`choose_cap_mib` returned {returned!r:.60} for {case}. It is to return one number above 0: a cap in MiB.",
            BUCKETS,
        )
    return cap_mib


@contextlib.contextmanager
def at_most_computing(where: Callable[[], Case]) -> Iterator[None]:
    """Stop a search that never ends."""

    def stop(number: int, frame: Any) -> None:
        raise Wrong(
            f"No answer after {COMPUTING_S:g} s of computing: {where()}. The best cap need not be found to the byte. "
            "Buckets change only where the cap passes a sum of neighbouring gradients, and near its lowest point the "
            "curve is flat: some hundred caps, each a few per cent above the last, are enough.",
            READ,
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, COMPUTING_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def judge(cases: Sequence[Case]) -> Callable[[list[list[float]]], None]:
    """Make a judge of the caps for these cases."""

    def judge_caps(seen: list[list[float]]) -> None:
        caps = seen[0]
        wrong = [at for at, case in enumerate(cases) if not case.good(caps[at])]
        if not wrong:
            return
        worst = max(
            wrong,
            key=lambda at: (
                cases[at].with_cap(in_bytes(caps[at])).step_s / cases[at].with_cap(cases[at].best_cap).step_s
            ),
        )
        count = f"{len(wrong)} of {len(cases)} cases are more than 5 % above the best. The worst is"
        raise Wrong(f"{count} {said(cases[worst], caps[worst])} {habit(cases, caps)}".rstrip(), READ)

    return judge_caps


def said(case: Case, cap_mib: float) -> str:
    """What a cap leads to, what the best does, and why."""
    mine, best = case.with_cap(in_bytes(cap_mib)), case.with_cap(case.best_cap)
    longer = 100 * (mine.step_s / best.step_s - 1)
    text = (
        f"{case}: your cap of {cap_mib:.4g} MiB makes {counted(mine)}, and the backward with its communication takes "
        f"{ms(mine.step_s)}. A cap of {case.best_cap / MIB:.4g} MiB makes {counted(best)} and takes "
        f"{ms(best.step_s)}: yours is {longer:.0f} % longer."
    )
    return f"{text} {cause(case, mine, best)}"


def cause(case: Case, mine: Step, best: Step) -> str:
    """Where the time has gone."""
    more = len(mine.timeline) - len(best.timeline)
    if more > 0:
        paid = len(mine.timeline) * case.latency_s
        return (
            f"Each bucket pays the latency: {len(mine.timeline)} of them pay {ms(paid)}, where {len(best.timeline)} "
            f"would pay {ms(len(best.timeline) * case.latency_s)}."
        )
    first, last = mine.timeline[0], mine.timeline[-1]
    return (
        f"With yours the link idles until the first bucket is full at {ms(first.ready_s)}, and the last one, of "
        f"{last.nbytes} bytes, arrives {ms(mine.exposed_s)} after the backward."
    )


def habit(cases: Sequence[Case], caps: Sequence[float]) -> str:
    """What is the same in all answers."""
    answers = list(zip(cases, caps, strict=True))
    made = [len(case.with_cap(in_bytes(cap)).timeline) for case, cap in answers]
    if all(case.good(cap / MIB) for case, cap in answers):
        return "All your caps are right in bytes; MiB are asked, as `bucket_cap_mb` takes them."
    if len(set(caps)) == 1:
        return "You return the same cap for every link: no cap suits them all."
    if set(made) == {1}:
        return "You make one bucket of everything each time: nothing of it hides in the backward."
    if made == [len(case.gradients) for case in cases]:
        return "You give each gradient a bucket of its own each time, whatever the latency is."
    return ""


def counted(step: Step) -> str:
    """`8 buckets`."""
    return f"{len(step.timeline)} bucket{'s' * (len(step.timeline) > 1)}"


def ms(seconds: float) -> str:
    """A time to read."""
    return f"{1e3 * seconds:.4g} ms"


def even(layers: int, layer_bytes: int, backward_s: float, *link: float) -> Case:
    """Equal layers, and a link: latency and rate."""
    return Case(tuple(equal_layers(layers, layer_bytes, backward_s)), *link)


def uneven(sizes: Sequence[int], backward_s: float, *link: float) -> Case:
    """Gradients of these sizes; the backward of each takes as long as it has bytes."""
    ready = [backward_s * done / sum(sizes) for done in itertools.accumulate(sizes)]
    return Case(tuple(zip(ready, sizes, strict=True)), *link)


ORDINARY = [
    even(24, 131_072, 48e-3, 2e-3, 40e6),
    even(12, 524_288, 96e-3, 4e-4, 100e6),
    even(32, 131_072, 48e-3, 8e-3, 100e6),
    even(48, 262_144, 12e-3, 5e-4, 1e9),
]
LATENCY = [
    even(24, 131_072, 20e-3, 30e-3, 1e12),
    even(16, 2**20, 50e-3, 80e-3, 1e12),
    even(40, 4_096, 5e-3, 20e-3, 1e9),
]
BYTES = [
    even(24, 131_072, 48e-3, 0.0, 100e6),
    even(32, 2**20, 100e-3, 0.0, 300e6),
    even(40, 65_536, 20e-3, 1e-6, 150e6),
]
EMBEDDING = 8 * 2**20
BLOCK = [2**20, 4096, 2**20, 4096, 2**18, 1024, 2**18, 1024, 1024, 1024]  # of a transformer
UNEVEN = [
    uneven([*BLOCK * 4, EMBEDDING], 80e-3, 2e-3, 200e6),
    uneven([EMBEDDING, *BLOCK * 4], 80e-3, 2e-3, 200e6),
    uneven([*BLOCK * 4, EMBEDDING], 30e-3, 4e-3, 1e9),
    uneven([2**k for k in range(10, 23)], 40e-3, 1e-3, 150e6),
    uneven([2**k for k in range(22, 9, -1)], 40e-3, 3e-3, 300e6),
]


def anything() -> list[Case]:
    """40 cases of all kinds, the same each time."""
    draw = random.Random(7)
    cases = []
    for number in range(40):
        sizes = [2 ** draw.randint(8, 20) for _ in range(draw.randint(1, 32))]
        if number % 2:
            sizes = [sizes[0]] * len(sizes)
        backward_s = 10 ** draw.uniform(-2.5, -0.5)
        ready = [*sorted(backward_s * draw.random() for _ in sizes[1:]), backward_s]
        latency_s = backward_s * 10 ** draw.uniform(-4, 0.5)
        rate = sum(sizes) / backward_s * 10 ** draw.uniform(-1, 1)  # slower or faster than it
        cases.append(Case(tuple(zip(ready, sizes, strict=True)), latency_s, rate))
    return cases


ANYTHING = anything()


@check("Ordinary links", ranks=1, judge=judge(ORDINARY), read=READ)
def ordinary(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Four models of equal layers over four links; latency, rate and backward all count."""
    return ask(learner, ORDINARY)


@check("Latency is everything", ranks=1, judge=judge(LATENCY), read=READ)
def latency(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Links whose latency is longer than the backward, and whose bytes cost next to nothing."""
    return ask(learner, LATENCY)


@check("Bytes are everything", ranks=1, judge=judge(BYTES), read=READ)
def rate(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Links without latency, or with a microsecond."""
    return ask(learner, BYTES)


@check("Uneven models", ranks=1, judge=judge(UNEVEN), read=READ)
def uneven_models(learner: ModuleType, recorder: Recorder) -> list[float]:
    """A transformer whose embedding comes last or first, and layers that double or halve."""
    return ask(learner, UNEVEN)


@check("40 links and models of all kinds", ranks=1, judge=judge(ANYTHING), read=READ)
def all_kinds(learner: ModuleType, recorder: Recorder) -> list[float]:
    """One gradient to 32, ready at any time, equal or not; latencies of 0.01 % to 300 %."""
    return ask(learner, ANYTHING)


# -- wrap ------------------------------------------------------------------------------------------

LAYERS, WIDTH = 16, 256  # a layer has 256 KiB
# The best cap of the first link makes several buckets, that of the second one.
LINKS = [(1e-3, 400e6), (20e-3, 400e6)]
WRAPPED = [even(LAYERS, 4 * WIDTH**2, 16e-3, *link) for link in LINKS]


@dataclass
class Wrapped:
    """What a rank has seen of one call of `wrap`."""

    cap_bytes: int  # of the DDP that was returned
    chosen_bytes: int  # what `choose_cap_mib` says
    sent: list[int]  # bytes of each bucket of the third step, in order; not asked if caps differ


def wrapped(learner: ModuleType, case: Case) -> Wrapped:
    """Call `wrap`, and run three steps: from the second on the buckets follow the ready order."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model.to(device())
    (chosen,) = ask(learner, [case])
    with training.visible_ddp() as reductions:
        ddp = learner.wrap(model, list(case.gradients), case.latency_s, case.bytes_per_s)
        if not isinstance(ddp, DistributedDataParallel) or ddp.module is not model:
            raise Wrong(
                f"`wrap` returned a {type(ddp).__name__}. It is to return the model in `DistributedDataParallel`.",
                "internals-constructor",
            )
        caps: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(caps, ddp.bucket_bytes_cap)
        for _ in range(3 if len(set(caps)) == 1 else 0):
            reductions.sent.clear()
            ddp(torch.ones(1, WIDTH).to(device())).sum().backward()
    sent = [bucket.nbytes for bucket in reductions.sent]
    return Wrapped(ddp.bucket_bytes_cap, in_bytes(chosen), sent)


def one_for_all(seen: Sequence[Wrapped]) -> None:
    """Judge that all ranks have made the same buckets."""
    caps = [rank.cap_bytes for rank in seen]
    expect(
        len(set(caps)) == 1,
        f"Rank 0 wraps with a cap of {caps[0]} bytes, rank 1 with {caps[1]}. DDP takes rank 0's without a word, or, "
        "with `find_unused_parameters=True`, fails in the first backward. A profile is a measurement, and each rank "
        "has its own; one must decide for all. Let rank 0 broadcast its cap, or choose by a profile that all share.",
        "idea-replicated",
    )


def read_back(seen: list[list[Wrapped]]) -> None:
    """Judge the buckets that DDP has made."""
    for case, *ranks in zip(WRAPPED, *seen, strict=True):
        one_for_all(ranks)
        made, gradients = ranks[0], case.gradients
        ends = [round(end / gradients[0][1]) for end in itertools.accumulate(made.sent)]
        buckets = [list(range(*ends)) for ends in itertools.pairwise([0, *ends])]
        if case.step(buckets).step_s <= MARGIN * case.with_cap(case.best_cap).step_s:
            continue
        asked = case.with_cap(made.chosen_bytes)
        ideas = [
            (
                buckets == bucketed(gradients, DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES),
                "Those are the buckets of a DDP that was told nothing: a first one of 1 MiB, then 25 MiB. Give "
                "`bucket_cap_mb` to the constructor.",
            ),
            (
                made.cap_bytes >= MIB * made.chosen_bytes,
                "`bucket_cap_mb` takes MiB, and got bytes.",
            ),
            (
                made.cap_bytes == made.chosen_bytes // MIB * MIB,
                "The cap was rounded down: `bucket_cap_mb` takes fractions.",
            ),
        ]
        raise Wrong(
            f"{case}: `choose_cap_mib` says {made.chosen_bytes / MIB:.4g} MiB, which makes {counted(asked)}. The DDP "
            f"that `wrap` returned has a cap of {made.cap_bytes / MIB:.4g} MiB and sent "
            f"{counted(case.step(buckets))}, of {', '.join(map(str, made.sent))} bytes. "
            + next((says for holds, says in ideas if holds), "Pass on what was chosen."),
            BUCKETS,
        )


@check("The buckets that DDP makes", ranks=2, judge=read_back, read=BUCKETS)
def buckets_of_ddp(learner: ModuleType, recorder: Recorder) -> list[Wrapped]:
    """`wrap` for two links, three steps on two ranks; the buckets of the third are read back."""
    return [wrapped(learner, case) for case in WRAPPED]


@check("One cap for all ranks", ranks=2, judge=one_for_all, read="idea-replicated")
def one_cap(learner: ModuleType, recorder: Recorder) -> Wrapped:
    """Rank 1 is four times as slow as rank 0, and its profile says so."""
    backward_s = 16e-3 * 4 ** dist.get_rank()
    return wrapped(learner, even(LAYERS, 4 * WIDTH**2, backward_s, *LINKS[0]))
