"""Which ``bucket_cap_mb`` suits a model on these ranks: measure, predict, measure again, and say how sure that is.

Every rank calls :func:`tune`. It measures when each gradient is ready, fits the link to a few all-reduces, predicts
the step for every cap (:mod:`ddplab.model.cost`), measures steps for the caps that look best and for DDP's default,
in turn, and compares them round by round. A step here is forward and backward, without the optimizer.
A step and an all-reduce take as long as they take on the slowest rank.

The first part of this file decides and needs no ranks; the second measures.
"""

# No "from __future__ import annotations" here, as in slowlink.py: DDP compares the annotations of hooks.

import copy
import importlib
import importlib.util
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
import torch._dynamo  # the first DDP constructor would import it, in time that is counted
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from ..runtime.clock import now, stamp
from ..runtime.clock import seconds as seconds_between
from ..runtime.group import device, gpu_uuid
from ..runtime.slowlink import SlowLink
from ..runtime.torch_private import ddp_facts
from .buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign
from .cost import Gradient, Link, Step, fit_link, simulate_step

GRID_MIB = [factor * 2.0**power for power in range(-6, 13) for factor in (1, 1.5)]  # caps that are predicted
MOST_CAPS = 6  # that are measured, the default among them
WARM_STEPS = 3  # DDP regroups its buckets at the second forward
LEAST_ROUNDS, MOST_ROUNDS = 8, 200  # 8 is the least for a 99 % interval, which is then the whole range
GOOD_ROUNDS = 20  # the interval then leaves out the three largest and smallest; rather fewer caps than fewer rounds
NO_RATE = 1e18  # bytes/s of a link whose rate does not show
WORTH = 0.01  # a gain below this share of the step is none
AT_ONCE = 3  # all-reduces in flight while the link is timed, as buckets are

T = TypeVar("T")


class NoTuning(Exception):  # noqa: N818  (as cli.BadInput)
    """Nothing can be tuned; the text is one line that names the reason and says what to do.

    ``everywhere``: all ranks raise it together, so they can part in good order.
    """

    def __init__(self, text: str, everywhere: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.everywhere = everywhere


# -- what to try, and what to advise: no ranks, nothing measured ---------------------------------------


@dataclass(frozen=True)
class Plan:
    """A cap, the buckets that it gives, and the step that is predicted for them."""

    cap_mb: float | None  # None: bucket_cap_mb is not given, so 1 MiB and then 25
    step: Step

    @property
    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in launch order."""
        return [transfer.nbytes for transfer in self.step.timeline]


def make_plans(
    gradients: Sequence[Gradient],
    kinds: Sequence[Hashable] | None,
    link: Link,
    forward_s: float,
    backward_s: float,
    caps_mb: Sequence[float] = (),
) -> list[Plan]:
    """Return DDP's default, then ``caps_mb``, then each cap of a grid that gives buckets which none before it gave.

    Args:
        gradients: (ready in s from the start of the backward, bytes), in ready order.
        kinds: as for :func:`ddplab.model.buckets.assign`.
        link: what carries the buckets.
        forward_s: seconds of one forward.
        backward_s: seconds of one backward without communication.
        caps_mb: caps that are wanted in any case, in MiB.
    """
    plans: list[Plan] = []
    seen = []
    wanted = dict.fromkeys([None, *caps_mb, *GRID_MIB])
    for position, cap_mb in enumerate(wanted):
        cap, first = (DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES) if cap_mb is None else 2 * (_cap_bytes(cap_mb),)
        buckets = assign([nbytes for _, nbytes in gradients], cap, first, kinds)
        if position <= len(set(caps_mb)) or buckets not in seen:
            step = simulate_step(forward_s, gradients, buckets, link, backward_s=backward_s)
            plans.append(Plan(cap_mb, step))
            seen.append(buckets)
    return plans


def _cap_bytes(cap_mb: float) -> int:
    return max(1, int(cap_mb * MIB))


def choose(plans: Sequence[Plan], caps_mb: Sequence[float] = (), most: int = MOST_CAPS) -> list[Plan]:
    """Return the plans to measure: the default, and ``caps_mb``; or, without these, the best and those around it.

    Neighbours on the grid differ little, so every second one is taken first, alternately above and below the best.
    At least the default and the best are returned.
    """
    default, others = plans[0], sorted(plans[1:], key=lambda plan: plan.cap_mb or 0)
    if caps_mb:
        return [default, *(plan for plan in others if plan.cap_mb in caps_mb)]
    if not others:
        return [default]
    best = min(range(len(others)), key=lambda i: others[i].step.step_s)
    distances = [*range(2, len(others), 2), *range(1, len(others), 2)]
    around = [best + sign * distance for distance in distances for sign in (1, -1)]
    chosen = [best, *(i for i in around if 0 <= i < len(others))][: max(1, most - 1)]
    return [default, *(others[i] for i in sorted(chosen))]


@dataclass(frozen=True)
class Advice:
    """What to do, and how sure that is; times in s, positive where the default is slower.

    Attributes:
        cap_mb: the recommended ``bucket_cap_mb``; None: leave it out.
        verdict: "clear", "default is best" or "within noise"; in the last two cases ``cap_mb`` is None.
        best_mb: of the caps that are not the default, the one that gains most; None if there is none.
        gain_s: median over rounds of default − best.
        low_s: lower end of the 99 % interval of that median; −inf with too few rounds.
        high_s: its upper end.
    """

    cap_mb: float | None
    verdict: str
    best_mb: float | None
    gain_s: float
    low_s: float
    high_s: float


def advise(default_s: Sequence[float], others_s: dict[float, Sequence[float]]) -> Advice:
    """Compare the cap that was best with the default, round by round.

    What disturbs a round disturbs all caps in it, so differences within rounds count, not those between medians.
    ``clear``: the whole interval is above 0, and its middle is worth having (:data:`WORTH`). ``default is best``: the
    whole interval is below that worth. Anything else is ``within noise``.

    Args:
        default_s: step times with the default, one a round.
        others_s: the same for each cap in MiB, in the same rounds.
    """
    if not others_s:
        return Advice(None, "default is best", None, 0.0, 0.0, 0.0)
    gains_s = {
        cap: [default - other for default, other in zip(default_s, took_s, strict=True)]
        for cap, took_s in others_s.items()
    }
    best = max(gains_s, key=lambda cap: median(gains_s[cap]))
    gain, (low, high), worth = median(gains_s[best]), median_interval(gains_s[best]), WORTH * median(default_s)
    if low > 0 and gain >= worth:
        return Advice(best, "clear", best, gain, low, high)
    return Advice(None, "default is best" if high < worth else "within noise", best, gain, low, high)


def median_interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """Return the interval that holds the true median with at least this confidence, whatever the distribution.

    Each value is below the true median with probability 1/2, so the k-th smallest of n is above it with the
    probability of less than k heads in n throws; the k-th smallest and the k-th largest enclose it, with the largest
    k that the confidence allows. With too few values, (−inf, inf).
    """
    n, outside, k = len(values), 0.0, 0
    while 2 * (outside := outside + math.comb(n, k) / 2**n) <= 1 - confidence:
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else (-math.inf, math.inf)


def fitted(samples: Sequence[tuple[int, float]], ranks: int, algorithm: str) -> Link:
    """Fit a link (:func:`ddplab.model.cost.fit_link`); where bytes cost nothing that shows, one of pure latency."""
    try:
        return fit_link(samples, ranks, algorithm)
    except ValueError:
        middle_s = median(took_s for _, took_s in samples)
        latency_s = middle_s / Link(1.0, NO_RATE, ranks, algorithm).seconds(0)
        residual = median(abs(middle_s / took_s - 1) for _, took_s in samples)
        return Link(latency_s, NO_RATE, ranks, algorithm, residual=residual)


# -- on the ranks -------------------------------------------------------------------------------------


def tune(
    target: str,
    folder: str,
    caps_mb: Sequence[float],
    seconds: float,
    emulate: tuple[float, float] | None,
    terminal: str | None,
) -> dict[str, Any]:
    """Tune the model that ``target`` builds; to be called on every rank of the default process group.

    Args:
        target: ``module:function``; the function returns (model, batch) or (model, batch, loss function).
        folder: where modules are looked for first.
        caps_mb: caps to measure, in MiB; empty: those that look best.
        seconds: how long to measure.
        emulate: (latency in s, bytes/s) of a link to emulate, or None for the real one.
        terminal: path of a terminal on which rank 0 shows its progress, or None.

    Returns:
        What ``ddplab tune-buckets --json`` prints.

    Raises:
        NoTuning: the model cannot be tuned, or not in this time.
    """
    model, batch, loss = _everywhere(lambda: _build(target, folder))
    _everywhere(lambda: _same_everywhere(model))
    clock = _Clock(seconds, terminal)
    clock.show("one step without DDP")
    one_s = _everywhere(lambda: _try_out(target, model, batch, loss))
    _enough(clock, one_s * (WARM_STEPS + 5 + 2 * (WARM_STEPS + LEAST_ROUNDS)), "the steps that are needed at least")

    profile = _profile(clock, model, batch, loss)
    slow = SlowLink(*emulate) if emulate else None
    link, samples = _fit(clock, slow, sum(nbytes for _, nbytes in profile.gradients))
    plans = make_plans(profile.gradients, profile.kinds, link, profile.forward_s, profile.backward_s, caps_mb)
    chosen = _affordable(clock, plans, caps_mb)
    rounds, sent = _sweep(clock, chosen, model, batch, loss, slow)

    default_s, *others_s = rounds
    found = advise(default_s, {p.cap_mb: s for p, s in zip(chosen[1:], others_s, strict=True) if p.cap_mb is not None})
    clock.show("done")
    uuids: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(uuids, gpu_uuid())
    facts = {
        "target": target,
        "ranks": dist.get_world_size(),
        "gpus": len({gpu for gpu in uuids if gpu}),
        "backend": "nccl" if "nccl" in dist.get_backend() else "gloo",
        "device": torch.cuda.get_device_name(device()) if device().type == "cuda" else "cpu",
        "torch": torch.__version__,
        "gradients": [[ready_s * 1e3, nbytes] for ready_s, nbytes in profile.gradients],
        "bytes": sum(nbytes for _, nbytes in profile.gradients),
        "forward_ms": profile.forward_s * 1e3,
        "backward_ms": profile.backward_s * 1e3,
        "lower_bound_ms": plans[0].step.lower_bound_s * 1e3,
        "link": {
            "emulated": slow is not None,
            "algorithm": link.algorithm,
            "latency_us": link.latency_s * 1e6,
            "gbit_per_s": link.bytes_per_s * 8 / 1e9 if link.bytes_per_s < NO_RATE else None,
            "residual": link.residual,
            "samples": [[nbytes, took_s * 1e3] for nbytes, took_s in samples],
        },
        "predicted": [_predicted(plan) for plan in plans],
        "measured": [
            {**_predicted(plan), **_measured(took_s, default_s), "bucket_bytes": nbytes}
            for plan, took_s, nbytes in zip(chosen, rounds, sent, strict=True)
        ],
        "recommended": {
            "bucket_cap_mb": found.cap_mb,
            "verdict": found.verdict,
            "best_bucket_cap_mb": found.best_mb,
            "gain_ms": found.gain_s * 1e3,
            "low_ms": found.low_s * 1e3 if math.isfinite(found.low_s) else None,
            "high_ms": found.high_s * 1e3 if math.isfinite(found.high_s) else None,
            "confidence": 0.99,
            "rounds": len(default_s),
        },
        "seconds": clock.spent_s(),
    }
    return {**facts, "notes": _notes(facts)}


def _predicted(plan: Plan) -> dict[str, Any]:
    return {
        "bucket_cap_mb": plan.cap_mb,
        "buckets": len(plan.bucket_bytes),
        "bucket_bytes": plan.bucket_bytes,
        "predicted_ms": plan.step.step_s * 1e3,
    }


def _measured(took_s: Sequence[float], default_s: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(took_s)
    quarter = (len(ordered) - 1) // 4
    return {
        "median_ms": median(ordered) * 1e3,
        "middle_half_ms": [ordered[quarter] * 1e3, ordered[-1 - quarter] * 1e3],
        "against_default_ms": median(a - b for a, b in zip(took_s, default_s, strict=True)) * 1e3,
        "steps_ms": [s * 1e3 for s in took_s],
    }


def _notes(facts: dict[str, Any]) -> list[str]:
    """What the reader should know before believing the numbers."""
    notes = []
    if facts["link"]["emulated"]:
        notes.append("The link is emulated: the advice is for a link like that, not for this machine.")
    if 0 < facts["gpus"] < facts["ranks"]:
        notes.append("Ranks share a GPU: with a GPU for each rank, other caps may be best.")
    if facts["link"]["residual"] > 0.15:
        share = round(100 * facts["link"]["residual"])
        notes.append(f"The all-reduces are {share} % off any latency and rate: the predicted column is rough.")
    if facts["recommended"]["rounds"] < LEAST_ROUNDS:
        notes.append(f"Only {facts['recommended']['rounds']} rounds fit into the time; give --seconds more.")
    if any(seen["bucket_bytes"] != _find(facts, seen)["bucket_bytes"] for seen in facts["measured"]):
        notes.append(
            "DDP made other buckets than predicted: gradients do not become ready in the same order each step."
        )
    return notes


def _find(facts: dict[str, Any], seen: dict[str, Any]) -> Any:
    return next(plan for plan in facts["predicted"] if plan["bucket_cap_mb"] == seen["bucket_cap_mb"])


# -- the reader's model -------------------------------------------------------------------------------


def _everywhere(work: Callable[[], T]) -> T:
    """Do ``work`` on every rank; a problem on one of them is raised on all, in the same words."""
    value, problem = None, None
    try:
        value = work()
    except NoTuning as found:
        problem = str(found)
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    ranks = [rank for rank, text in enumerate(problems) if text is not None]
    if ranks:
        some = "" if len(ranks) == len(problems) else f"on rank {', '.join(map(str, ranks))} only: "
        raise NoTuning(f"{some}{problems[ranks[0]]}", everywhere=True)
    return value  # type: ignore[return-value]


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Turn what the reader's code raises into one line that says where it comes from."""
    try:
        yield
    except NoTuning:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        kit = os.path.dirname(os.path.dirname(__file__))
        skipped = (kit, os.path.dirname(torch.__file__), os.path.dirname(os.__file__), "<frozen")
        own = [frame for frame in frames if not frame.filename.startswith(skipped)]
        where = f" (line {own[-1].lineno} of {os.path.basename(own[-1].filename)})" if own else ""
        words = " ".join(str(error).split())
        raise NoTuning(f"{what} raised {type(error).__name__}: {words[:300]}{where}") from error


def _build(target: str, folder: str) -> tuple[nn.Module, Any, Any]:
    """Import the function, call it, and check what it returns."""
    module_name, _, function_name = target.partition(":")
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    with _blamed(f"importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise NoTuning(
                f"there is no module {error.name!r}; looked in {folder} and on Python's path, "
                "start in the folder that holds it or set PYTHONPATH"
            ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        there = f"it defines {', '.join(own[:8])}" if own else "it defines none"
        raise NoTuning(f"module {module_name} has no function {function_name!r}; {there}")
    with _blamed(target):
        returned = function()

    contract = "it must return (model, batch) or (model, batch, loss function)"
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        size = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise NoTuning(f"{target} returned a {type(returned).__name__}{size}; {contract}")
    model, batch, loss = (*returned, None)[:3]
    if isinstance(model, DistributedDataParallel):
        raise NoTuning(f"{target} returned a model in DistributedDataParallel; return the model itself")
    if not isinstance(model, nn.Module):
        raise NoTuning(f"{target} returned a {type(model).__name__} as model; {contract}, the model an nn.Module")
    if loss is not None and not callable(loss):
        raise NoTuning(f"{target} returned a {type(loss).__name__} as loss function; it must be callable, or left out")
    if not any(p.requires_grad for p in model.parameters()):
        raise NoTuning(
            f"{target} returned a model without a parameter that requires a gradient: nothing is all-reduced"
        )
    with _blamed(f"moving the model and the batch of {target} to {device()}"):
        model, batch = model.to(device()), _moved(batch)
    if loss is None:
        return model, batch, _loss_of_output
    return model, batch, loss


def _moved(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _moved(value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(value) for value in batch) if type(batch) in (tuple, list) else batch
    return batch.to(device()) if hasattr(batch, "to") else batch


def _loss_of_output(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss where none is given: the output's own, or the mean of its squares."""
    if isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(**batch) if hasattr(batch, "keys") else model(batch)
    output = output.get("loss", output) if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(output, torch.Tensor):
        raise NoTuning(
            f"the model returns a {type(output).__name__}, of which no loss can be made; "
            "return (model, batch, loss function), where loss_function(model, batch) gives a scalar"
        )
    return output if output.ndim == 0 else output.float().square().mean()


def _same_everywhere(model: nn.Module) -> None:
    """DDP needs the same model on all ranks; on gloo, one rank that differs breaks the others without a reason."""
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    all_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, mine)
    for rank, other in enumerate(all_ranks):
        if other != all_ranks[0]:
            differs = next((f"{a} and {b}" for a, b in zip(all_ranks[0], other, strict=False) if a != b), "the number")
            raise NoTuning(f"ranks 0 and {rank} built models that differ in their parameters: {differs}")


def _copied(model: nn.Module) -> nn.Module:
    """A copy with gradients of its own, and the same memory for the parameters: many of them fit beside each other."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    with _blamed("copying the model (copy.deepcopy)"):
        return copy.deepcopy(model, memo)


def _try_out(target: str, model: nn.Module, batch: Any, loss: Any) -> float:
    """Run two steps on one rank alone; return the seconds of the second. All that can be wrong shows here."""
    trial, took_s = _copied(model), 0.0
    for _ in range(2):
        trial.zero_grad(set_to_none=True)
        began = time.perf_counter()
        with _blamed(f"the forward of {target}"):
            value = loss(trial, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
            raise NoTuning(
                f"the loss of {target} is a {type(value).__name__}{shape}; it must be a tensor of one number"
            )
        if not value.requires_grad:
            raise NoTuning(f"the loss of {target} has no gradient; is it detached, or made under no_grad?")
        with _blamed(f"the backward of {target}"):
            value.backward()  # type: ignore[no-untyped-call]
        took_s = now() - began
    trained = {name: p for name, p in trial.named_parameters() if p.requires_grad}
    unused = [name for name, p in trained.items() if p.grad is None]
    if len(unused) == len(trained):
        raise NoTuning(f"no parameter of {target} got a gradient; the loss must use the model that it is given")
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise NoTuning(
            f"the loss does not use {', '.join(unused[:3])}{more}; DDP would need find_unused_parameters=True, with "
            "which it never regroups its buckets; freeze them (requires_grad_(False)) or remove them, then tune"
        )
    sparse = [name for name, p in trained.items() if p.grad is not None and p.grad.is_sparse]
    if sparse:
        raise NoTuning(f"{sparse[0]} has a sparse gradient, which DDP puts in no bucket; build it with sparse=False")
    return took_s


# -- measuring ----------------------------------------------------------------------------------------


class _Clock:
    """The time that is spent, the same on all ranks, and the bar that shows it on rank 0."""

    def __init__(self, seconds: float, terminal: str | None) -> None:
        self.seconds = seconds
        self.terminal = terminal if dist.get_rank() == 0 else None
        self.began_s = time.perf_counter()
        self.done = 0.0  # of all that is to do, 0 to 1

    def spent_s(self) -> float:
        """Seconds since the start, on the slowest rank."""
        return _slowest([time.perf_counter() - self.began_s])[0]

    def rounds(self, what: str, until: float, least: int, most: int) -> Iterator[int]:
        """Count rounds: ``least`` of them, and up to ``most`` before this share of the seconds is spent."""
        first, begin_s, end_s = self.done, self.spent_s(), until * self.seconds
        for number in range(most):
            spent_s = self.spent_s()
            if number >= least and spent_s >= end_s:
                break
            part = max(number / most, (spent_s - begin_s) / max(end_s - begin_s, 1e-9))
            self.show(f"{what}, round {number + 1}", first + (until - first) * min(max(part, 0), 1))
            yield number
        self.done = until

    def show(self, what: str, done: float | None = None) -> None:
        """Redraw the bar."""
        self.done = self.done if done is None else done
        if self.terminal is None:
            return
        bar = ("#" * round(20 * self.done)).ljust(20, ".")
        try:
            with open(os.open(self.terminal, os.O_WRONLY | os.O_NOCTTY), "w") as stream:
                stream.write(f"\r{bar} {100 * self.done:3.0f} %  {what:48.48}")
        except OSError:  # the terminal is gone: nobody is looking
            self.terminal = None


def _enough(clock: _Clock, needed_s: float, what: str) -> None:
    """Every rank has the slowest's number, so all of them raise, or none."""
    (needed_s,) = _slowest([needed_s])
    if clock.spent_s() + needed_s > clock.seconds:
        ask = max(math.ceil(1.5 * (clock.spent_s() + needed_s)), math.ceil(clock.seconds) + 1)
        raise NoTuning(
            f"{clock.seconds:g} s are too short: {what} take about {needed_s:.1f} s; give --seconds {ask}",
            everywhere=True,
        )


def _slowest(times_s: Sequence[float]) -> list[float]:
    """The largest of each over all ranks."""
    largest = torch.tensor(times_s, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return [float(value) for value in largest.tolist()]


def _wrapped(model: nn.Module, cap_mb: float | None, state: Any, hook: Any) -> DistributedDataParallel:
    options = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(_copied(model), **options)  # type: ignore[arg-type]
    if hook is not None:
        ddp.register_comm_hook(state, hook)
    return ddp


@dataclass(frozen=True)
class _Profile:
    """A step without communication; gradients as (ready in s from the start of the backward, bytes), in ready order."""

    forward_s: float
    backward_s: float
    gradients: list[Gradient]
    kinds: list[Hashable] | None


def _profile(clock: _Clock, model: nn.Module, batch: Any, loss: Any) -> _Profile:
    """Stamp every gradient of steps that communicate nothing: DDP with a hook that hands back what it got."""
    ddp = _wrapped(model, None, None, noop_hook)
    trained = [p for p in ddp.parameters() if p.requires_grad]
    number = {p: i for i, p in enumerate(trained)}
    ready: dict[int, Any] = {}

    def note(p: torch.Tensor) -> None:
        ready[number[p]] = stamp()  # type: ignore[index]

    for p in trained:
        p.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
    rows = []
    for step in clock.rounds("ready times", 0.25, WARM_STEPS + 5, WARM_STEPS + 25):
        ready.clear()
        ddp.zero_grad(set_to_none=True)
        now()
        dist.barrier()
        start = stamp()
        with _blamed("a forward"):
            value = loss(ddp, batch)
        middle = stamp()
        with _blamed("a backward"):
            value.backward()
        end = stamp()
        now()
        if len(ready) < len(trained):
            raise NoTuning("in a later step some parameters got no gradient; the model must use all of them each step")
        times = [seconds_between(middle, ready[i]) for i in range(len(trained))]
        if step >= WARM_STEPS:
            rows.append(_slowest([seconds_between(start, middle), seconds_between(middle, end), *times]))
    forward_s, backward_s, *ready_s = (median(column) for column in zip(*rows, strict=True))
    order = [sorted(range(len(trained)), key=lambda i: times[i])]
    dist.broadcast_object_list(order, 0)  # DDP, too, regroups in the order of rank 0
    gradients = [(max(0.0, ready_s[i]), trained[i].nbytes) for i in order[0]]
    kinds: list[Hashable] = [(trained[i].dtype, trained[i].device) for i in order[0]]
    return _Profile(forward_s, max(backward_s, *ready_s), gradients, kinds if len(set(kinds)) > 1 else None)


def _fit(clock: _Clock, slow: SlowLink | None, model_bytes: int) -> tuple[Link, list[tuple[int, float]]]:
    """Time all-reduces of sizes that buckets have, several in flight at a time, and fit a link to the medians."""

    def all_reduces(tensor: torch.Tensor) -> float:
        now()
        dist.barrier()
        began = time.perf_counter()
        tensors = [tensor] + [torch.zeros_like(tensor) for _ in range(AT_ONCE - 1)]
        works: Any = [slow.all_reduce(x) if slow else dist.all_reduce(x, async_op=True) for x in tensors]
        for work in works:
            work.wait()
        return _slowest([(now() - began) / AT_ONCE])[0]

    tensors: list[torch.Tensor] = []
    spent_s = 0.0
    for nbytes in [4096 * 4**i for i in range(7)]:  # 4 KiB to 16 MiB; this first round also warms up
        too_long = len(tensors) >= 3 and 5 * 4 * spent_s * AT_ONCE > 0.2 * clock.seconds
        if too_long or nbytes > max(2 * model_bytes, MIB):
            break
        clock.show(f"all-reduces of {nbytes // 1024} KiB")
        tensors.append(torch.zeros(nbytes // 4, device=device()))
        spent_s += all_reduces(tensors[-1])
    rows = [[all_reduces(x) for x in tensors] for _ in clock.rounds("all-reduces", 0.4, 5, 25)]
    samples = [(x.nbytes, median(column)) for x, column in zip(tensors, zip(*rows, strict=True), strict=True)]
    return fitted(samples, dist.get_world_size(), "link" if slow else "ring"), samples


def _affordable(clock: _Clock, plans: Sequence[Plan], caps_mb: Sequence[float]) -> list[Plan]:
    """The plans to measure, as many as the time that is left allows."""

    def needed_s(chosen: Sequence[Plan], rounds: int) -> float:
        return sum(plan.step.step_s for plan in chosen) * (WARM_STEPS + rounds)

    left_s = clock.seconds - clock.spent_s()
    for most in range(MOST_CAPS, 1, -1):
        chosen = choose(plans, caps_mb, most)
        if caps_mb or needed_s(chosen, GOOD_ROUNDS) <= left_s:
            break
    _enough(clock, needed_s(chosen, LEAST_ROUNDS), f"{LEAST_ROUNDS} rounds of {len(chosen)} caps")
    return chosen


def _sweep(
    clock: _Clock, chosen: Sequence[Plan], model: nn.Module, batch: Any, loss: Any, slow: SlowLink | None
) -> tuple[list[list[float]], list[list[int]]]:
    """Measure one step of each plan in turn, round after round; return the seconds and the bytes of the buckets."""
    ddps = [_wrapped(model, plan.cap_mb, slow, SlowLink.hook if slow else None) for plan in chosen]

    def step(ddp: DistributedDataParallel) -> float:
        now()
        dist.barrier()
        began = time.perf_counter()
        with _blamed("a step"):
            loss(ddp, batch).backward()
        took_s = now() - began
        ddp.zero_grad(set_to_none=True)
        return took_s

    for ddp in ddps:
        clock.show("warming up")
        for _ in range(WARM_STEPS):
            step(ddp)
    rounds: list[list[float]] = [[] for _ in ddps]
    for number in clock.rounds(f"{len(ddps)} caps", 1, LEAST_ROUNDS, MOST_ROUNDS):
        turns = [(number + i) % len(ddps) for i in range(len(ddps))]  # no cap always follows the same one
        for i, took_s in zip(turns, _slowest([step(ddps[i]) for i in turns]), strict=True):
            rounds[i].append(took_s)
    sent = [[int(nbytes) for nbytes in str(ddp_facts(d)["rebuilt_bucket_sizes"]).split(",")] for d in ddps]
    return rounds, sent
