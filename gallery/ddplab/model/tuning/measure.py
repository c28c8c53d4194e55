"""Measurements on the ranks: when gradients are ready, what an all-reduce takes, how long a step takes with each cap.

A step here is forward and backward, without the optimizer.
A step and an all-reduce take as long as they take on the slowest rank.
"""

# No "from __future__ import annotations" here, as in slowlink.py: DDP compares the annotations of hooks.

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch._dynamo  # the first DDP constructor would import it, in time that is counted
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from ...runtime.clock import now, stamp
from ...runtime.clock import seconds as seconds_between
from ...runtime.group import device
from ...runtime.slowlink import SlowLink
from ...runtime.torch_private import ddp_facts
from ..assignment import MIB
from ..link import Link
from ..step import Gradient
from .plans import Plan, link_of
from .target import copy_sharing_parameters, in_user_code
from .together import Clock, TuningError, slowest

WARM_STEPS = 3  # DDP regroups its buckets at the second forward
LEAST_ROUNDS, MOST_ROUNDS = 8, 200  # 8 is the least for a 99 % interval, which is then the whole range
AT_ONCE = 3  # all-reduces in flight while the link is timed, as buckets are


def _wrap(model: nn.Module, cap_mb: float | None, state: Any, hook: Any) -> DistributedDataParallel:
    options = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(copy_sharing_parameters(model), **options)  # type: ignore[arg-type]
    if hook is not None:
        ddp.register_comm_hook(state, hook)
    return ddp


@dataclass(frozen=True)
class Profile:
    """A step without communication; gradients as (ready in s from the start of the backward, bytes), in ready order."""

    forward_s: float
    backward_s: float
    gradients: list[Gradient]
    kinds: list[Hashable] | None


def profile_step(clock: Clock, model: nn.Module, batch: Any, loss: Any) -> Profile:
    """Stamp every gradient of steps that communicate nothing: DDP with a hook that hands back what it got."""
    ddp = _wrap(model, None, None, noop_hook)
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
        with in_user_code("a forward"):
            value = loss(ddp, batch)
        middle = stamp()
        with in_user_code("a backward"):
            value.backward()
        end = stamp()
        now()
        if len(ready) < len(trained):
            raise TuningError(
                "some parameters got no gradient in a later step; the model must use all of them in every step"
            )
        times = [seconds_between(middle, ready[i]) for i in range(len(trained))]
        if step >= WARM_STEPS:
            rows.append(slowest([seconds_between(start, middle), seconds_between(middle, end), *times]))
    forward_s, backward_s, *ready_s = (median(column) for column in zip(*rows, strict=True))
    order = [sorted(range(len(trained)), key=lambda i: times[i])]
    dist.broadcast_object_list(order, 0)  # DDP, too, regroups in the order of rank 0
    gradients = [(max(0.0, ready_s[i]), trained[i].nbytes) for i in order[0]]
    kinds: list[Hashable] = [(trained[i].dtype, trained[i].device) for i in order[0]]
    return Profile(forward_s, max(backward_s, *ready_s), gradients, kinds if len(set(kinds)) > 1 else None)


def measure_link(clock: Clock, slow: SlowLink | None, model_bytes: int) -> tuple[Link, list[tuple[int, float]]]:
    """Time all-reduces of sizes that buckets have, several in flight at a time, and fit a link to the medians."""

    def all_reduces(tensor: torch.Tensor) -> float:
        now()
        dist.barrier()
        began = time.perf_counter()
        tensors = [tensor] + [torch.zeros_like(tensor) for _ in range(AT_ONCE - 1)]
        works: Any = [slow.all_reduce(x) if slow else dist.all_reduce(x, async_op=True) for x in tensors]
        for work in works:
            work.wait()
        return slowest([(now() - began) / AT_ONCE])[0]

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
    return link_of(samples, dist.get_world_size(), "link" if slow else "ring"), samples


def measure_steps(
    clock: Clock,
    chosen: Sequence[Plan],
    model: nn.Module,
    batch: Any,
    loss: Any,
    slow: SlowLink | None,
) -> tuple[list[list[float]], list[list[int]]]:
    """Measure one step of each plan in turn, round after round; return the seconds and the bytes of the buckets."""
    ddps = [_wrap(model, plan.cap_mb, slow, SlowLink.hook if slow else None) for plan in chosen]

    def step(ddp: DistributedDataParallel) -> float:
        now()
        dist.barrier()
        began = time.perf_counter()
        with in_user_code("a step"):
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
        for i, took_s in zip(turns, slowest([step(ddps[i]) for i in turns]), strict=True):
            rounds[i].append(took_s)
    sent = [[int(nbytes) for nbytes in str(ddp_facts(d)["rebuilt_bucket_sizes"]).split(",")] for d in ddps]
    return rounds, sent
