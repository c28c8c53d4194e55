"""DDP and torch's hooks over an emulated link, and one timed step: what the labs on buckets measure with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..runtime.slowlink import SlowLink, Transfer


def over_link(
    model: nn.Module, batch: Tensor, hook: Callable[..., Any] = SlowLink.hook, **options: Any
) -> tuple[DistributedDataParallel, SlowLink]:
    """Wrap ``model`` in DDP with ``options``; return it and the link that ``hook`` sends its buckets over.

    The buckets are already those of the options: the first three steps, in which DDP rebuilds them, are done here.
    The link costs nothing until you set its ``latency_s`` and ``bytes_per_s``.
    """
    ddp, link = DistributedDataParallel(model, **options), SlowLink(0, 1e15)
    ddp.register_comm_hook(link, hook)
    for _ in range(3):
        ddp(batch).square().mean().backward()
    return ddp, link


def timed_step(ddp: nn.Module, link: SlowLink, batch: Tensor) -> tuple[float, list[Transfer]]:
    """Run a forward and a backward on all ranks; return their seconds, and what the link carried.

    The times of the transfers count from the start of the forward.
    """
    ddp.zero_grad()
    dist.barrier()
    link.log.clear()
    began = time.perf_counter()
    ddp(batch).square().mean().backward()
    whole_s = time.perf_counter() - began
    return whole_s, [Transfer(t.nbytes, t.launched_s - began, t.done_s - began) for t in link.log]


class DistOverLink:
    """``torch.distributed`` for torch's own hooks, with another ``all_reduce``: it goes over ``link``.

    PowerSGD waits for one all-reduce in the callback of another, so a thread of its own hands over each result.
    """

    def __init__(self, link: SlowLink) -> None:
        self.link = link

    def __getattr__(self, name: str) -> Any:  # noqa: D105
        return getattr(dist, name)

    def all_reduce(self, tensor: Tensor, group: Any = None, async_op: bool = True) -> DistOverLink:
        """Start to sum ``tensor`` over all ranks, in place; the returned object has the future of the result."""
        arrives = self.link.all_reduce(tensor)
        devices: Any = [tensor.device] if tensor.is_cuda else None
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=devices)
        threading.Thread(target=lambda: future.set_result([arrives.wait()]), daemon=True).start()
        self.future = future
        return self

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the future of the last all-reduce that was started."""
        return self.future
