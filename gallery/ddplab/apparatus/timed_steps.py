"""Times of every event of DDP steps over an emulated link, for a list of loads: what predictions are compared with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..runtime.launcher import launch
from .over_link import over_link

Build = Callable[[], tuple[nn.Module, Tensor]]
Sample = tuple[Tensor, list[int], list[int]]
Load = tuple[float, tuple[float, float], int]  # bucket cap in MiB; the link's latency and rate; micro-batches


class Times(NamedTuple):
    """What the steps of one load took, on the slower rank: a row per round, in ms."""

    whole: Tensor  # shape [rounds]; from the start of the forward, as are launched and delivered
    forward: Tensor  # [rounds]; of the last micro-batch
    ready: Tensor  # [rounds, gradients]; since the end of that forward
    launched: Tensor  # [rounds, buckets]
    delivered: Tensor  # [rounds, buckets]
    gradient_bytes: list[int]  # in the order of ready
    bucket_bytes: list[int]


def time_steps(build: Build, loads: Sequence[Load], rounds: int, ranks: int = 2) -> list[Times]:
    """Run all loads in turn, ``rounds`` times, on new ranks; return the times of each load."""
    seen = launch(worker, ranks, build, loads, rounds)[0]
    found = []
    for samples in seen:
        times, gradients, buckets = zip(*samples, strict=True)
        sizes = [1, 1, len(gradients[0]), len(buckets[0]), len(buckets[0])]
        whole, forward, *lists = torch.split(1e3 * torch.stack(times), sizes, dim=1)
        ready, launched, delivered = lists
        found.append(Times(whole[:, 0], forward[:, 0], ready, launched, delivered, gradients[0], buckets[0]))
    return found


def worker(build: Build, loads: Sequence[Load], rounds: int) -> list[list[Sample]]:
    """Return, for each load and round, all times in s and the sizes in bytes."""
    models, ready = {}, []
    seen: list[list[Sample]] = [[] for _ in loads]

    def note(p: Tensor) -> None:
        ready.append((p.nbytes, time.perf_counter()))

    for cap in dict.fromkeys(cap for cap, _, _ in loads):
        model, batch = build()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        models[cap] = over_link(model, batch, bucket_cap_mb=cap)
    for at, (cap, like, count) in rounds * list(enumerate(loads)):
        (ddp, link), (link.latency_s, link.bytes_per_s) = models[cap], like
        dist.barrier()
        link.log.clear()
        began = time.perf_counter()
        for micro in range(count):
            ready.clear()
            with ddp.no_sync() if micro < count - 1 else contextlib.nullcontext():
                loss = ddp(batch).square().mean()
                middle = time.perf_counter()
                loss.backward()
        times = [time.perf_counter() - began, middle - began]
        times += [at_s - middle for _, at_s in ready]
        times += [t.launched_s - began for t in link.log]
        times += [t.done_s - began for t in link.log]
        slower = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        sizes = [nbytes for nbytes, _ in ready], [t.nbytes for t in link.log]
        seen[at].append((slower, *sizes))
    return seen
