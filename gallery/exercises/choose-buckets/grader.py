"""Checks of `choose_cap_mib` and `wrap`: predicted against the best cap, and read back from DDP.

:Level: deep, 30 minutes
"""

import contextlib
import itertools
import math
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
from ddplab.costmodel import Step, bucketed
from ddplab.grading import training
from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, counted, expect, load_sibling
from ddplab.grading.checks import milliseconds as ms

READ = "performance-overlap"
BUCKETS = "internals-buckets"
links = load_sibling(__file__, "links")
COMPUTING_S = 5.0  # of the processor's time, which a busy machine does not shorten


# -- choose_cap_mib --------------------------------------------------------------------------------


def ask(learner: ModuleType, cases: Sequence[links.Case]) -> list[float]:
    """On the rank: the learner's caps, each a number of MiB that DDP can take."""
    caps: list[float] = []
    with at_most_computing(lambda: cases[len(caps)]):
        for case in cases:
            caps.append(answer(learner, case))
    return caps


def answer(learner: ModuleType, case: links.Case) -> float:
    """One cap."""
    returned = learner.choose_cap_mib(list(case.gradients), case.latency_s, case.bytes_per_s)
    try:
        cap_mib = float(returned)
    except (TypeError, ValueError):
        cap_mib = math.nan
    if not 0 < cap_mib < 2**40:  # NaN, too
        raise Wrong(
            f"`choose_cap_mib` returned {returned!r:.60} for {case}. Return one number above 0: a cap in MiB.",
            BUCKETS,
        )
    return cap_mib


@contextlib.contextmanager
def at_most_computing(where: Callable[[], links.Case]) -> Iterator[None]:
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


def judge(cases: Sequence[links.Case]) -> Callable[[list[list[float]]], None]:
    """Make a judge of the caps for these cases."""

    def judge_caps(seen: list[list[float]]) -> None:
        caps = seen[0]
        wrong = [at for at, case in enumerate(cases) if not case.good(caps[at])]
        if not wrong:
            return
        worst = max(
            wrong,
            key=lambda at: (
                cases[at].with_cap(links.in_bytes(caps[at])).step_s / cases[at].with_cap(cases[at].best_cap).step_s
            ),
        )
        count = f"{len(wrong)} of {len(cases)} cases are more than 5 % above the best. The worst is"
        raise Wrong(f"{count} {compared(cases[worst], caps[worst])} {habit(cases, caps)}".rstrip(), READ)

    return judge_caps


def compared(case: links.Case, cap_mib: float) -> str:
    """What a cap leads to, what the best does, and why."""
    mine, best = case.with_cap(links.in_bytes(cap_mib)), case.with_cap(case.best_cap)
    longer = 100 * (mine.step_s / best.step_s - 1)
    text = (
        f"{case}: your cap of {cap_mib:.4g} MiB makes {counted(len(mine.timeline), 'bucket')}, and the backward with "
        f"its communication takes {ms(mine.step_s)}. A cap of {case.best_cap / MIB:.4g} MiB makes "
        f"{counted(len(best.timeline), 'bucket')} and takes {ms(best.step_s)}: yours is {longer:.0f} % longer."
    )
    return f"{text} {cause(case, mine, best)}"


def cause(case: links.Case, mine: Step, best: Step) -> str:
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


def habit(cases: Sequence[links.Case], caps: Sequence[float]) -> str:
    """What is the same in all answers."""
    answers = list(zip(cases, caps, strict=True))
    made = [len(case.with_cap(links.in_bytes(cap)).timeline) for case, cap in answers]
    if all(case.good(cap / MIB) for case, cap in answers):
        return "All your caps are right in bytes; MiB are asked, as `bucket_cap_mb` takes them."
    if len(set(caps)) == 1:
        return "You return the same cap for every link: no cap suits them all."
    if set(made) == {1}:
        return "You make one bucket of everything each time: nothing of it hides in the backward."
    if made == [len(case.gradients) for case in cases]:
        return "You give each gradient a bucket of its own each time, whatever the latency is."
    return ""


@check("Ordinary links", ranks=1, judge=judge(links.ORDINARY), read=READ)
def ordinary(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Four models of equal layers over four links; latency, rate and backward all count."""
    return ask(learner, links.ORDINARY)


@check("Latency is everything", ranks=1, judge=judge(links.LATENCY), read=READ)
def latency(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Links whose latency is longer than the backward, and whose bytes cost next to nothing."""
    return ask(learner, links.LATENCY)


@check("Bytes are everything", ranks=1, judge=judge(links.BYTES), read=READ)
def rate(learner: ModuleType, recorder: Recorder) -> list[float]:
    """Links without latency, or with a microsecond."""
    return ask(learner, links.BYTES)


@check("Uneven models", ranks=1, judge=judge(links.UNEVEN), read=READ)
def uneven_models(learner: ModuleType, recorder: Recorder) -> list[float]:
    """A transformer whose embedding comes last or first, and layers that double or halve."""
    return ask(learner, links.UNEVEN)


@check("40 links and models of all kinds", ranks=1, judge=judge(links.ANYTHING), read=READ)
def all_kinds(learner: ModuleType, recorder: Recorder) -> list[float]:
    """One gradient to 32, ready at any time, equal or not; latencies of 0.01 % to 300 %."""
    return ask(learner, links.ANYTHING)


# -- wrap ------------------------------------------------------------------------------------------

LAYERS, WIDTH = 16, 256  # a layer has 256 KiB
# The best cap of the first link makes several buckets, that of the second one.
LINKS = [(1e-3, 400e6), (20e-3, 400e6)]
WRAPPED = [links.even(LAYERS, 4 * WIDTH**2, 16e-3, *link) for link in LINKS]


@dataclass
class Wrapped:
    """What a rank has seen of one call of `wrap`."""

    cap_bytes: int  # of the DDP that was returned
    chosen_bytes: int  # what `choose_cap_mib` says
    sent: list[int]  # bytes of each bucket of the third step, in order; not asked if caps differ


def wrapped(learner: ModuleType, case: links.Case) -> Wrapped:
    """Call `wrap`, and run three steps: from the second on the buckets follow the ready order."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model.to(device())
    (chosen,) = ask(learner, [case])
    with training.visible_ddp() as reductions:
        ddp = learner.wrap(model, list(case.gradients), case.latency_s, case.bytes_per_s)
        if not isinstance(ddp, DistributedDataParallel) or ddp.module is not model:
            raise Wrong(
                f"`wrap` returned a {type(ddp).__name__}. It should return the model in `DistributedDataParallel`.",
                "internals-constructor",
            )
        caps: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(caps, ddp.bucket_bytes_cap)
        for _ in range(3 if len(set(caps)) == 1 else 0):
            reductions.sent.clear()
            ddp(torch.ones(1, WIDTH).to(device())).sum().backward()
    sent = [bucket.nbytes for bucket in reductions.sent]
    return Wrapped(ddp.bucket_bytes_cap, links.in_bytes(chosen), sent)


def one_for_all(seen: Sequence[Wrapped]) -> None:
    """Judge that all ranks have made the same buckets."""
    caps = [rank.cap_bytes for rank in seen]
    expect(
        len(set(caps)) == 1,
        f"Rank 0 wraps with a cap of {caps[0]} bytes, rank 1 with {caps[1]}. DDP takes rank 0's without a message, or, "
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
        if case.step(buckets).step_s <= links.MARGIN * case.with_cap(case.best_cap).step_s:
            continue
        asked = case.with_cap(made.chosen_bytes)
        ideas = [
            (
                buckets == bucketed(gradients, DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES),
                "Those are the buckets of a DDP with its default caps: a first one of 1 MiB, then 25 MiB. Give "
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
            f"{case}: `choose_cap_mib` says {made.chosen_bytes / MIB:.4g} MiB, which makes "
            f"{counted(len(asked.timeline), 'bucket')}. The DDP that `wrap` returned has a cap of "
            f"{made.cap_bytes / MIB:.4g} MiB and sent {counted(len(made.sent), 'bucket')}, of "
            f"{', '.join(map(str, made.sent))} bytes. "
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
    return wrapped(learner, links.even(LAYERS, 4 * WIDTH**2, backward_s, *LINKS[0]))
