"""Stage 6: buckets that leave while backward still runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..model.assignment import MIB, assign
from ..runtime.torch_private import after_backward


@dataclass
class Bucket:
    """Gradients that travel together: a flat buffer, and a view of it for each."""

    flat: torch.Tensor
    views: list[torch.Tensor]
    pending: int = 0  # how many gradients this backward has not brought yet
    reduction: dist.Work | None = None  # its all-reduce, once launched


class DDP(nn.Module):
    """Wrap ``module``; ``backward()`` itself leaves the mean in every ``.grad``."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25) -> None:
        super().__init__()
        self.module = module
        self._require_sync = True
        self._broadcast()
        trained = [p for p in module.parameters() if p.requires_grad]
        self._build_buckets(trained[::-1], int(bucket_cap_mb * MIB))
        self._in_backward = False
        for p in trained:
            p.register_post_accumulate_grad_hook(self._gradient_ready)

    def _broadcast(self) -> None:
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def _build_buckets(self, order: list[nn.Parameter], cap_bytes: int) -> None:
        self._buckets: list[Bucket] = []
        self._place: dict[nn.Parameter, tuple[Bucket, torch.Tensor]] = {}
        for positions in assign([p.nbytes for p in order], cap_bytes, cap_bytes):
            members = [order[i] for i in positions]
            numels = [p.numel() for p in members]
            flat = members[0].detach().new_zeros(sum(numels))
            pieces = torch.split(flat, numels)
            views = [piece.view(p.shape) for piece, p in zip(pieces, members, strict=True)]
            bucket = Bucket(flat, views)
            self._buckets.append(bucket)
            for p, view in zip(members, views, strict=True):
                self._place[p] = bucket, view

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients to the rank; the next sync outside averages their sum."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when the gradient of ``parameter`` is complete."""
        if not self._require_sync:
            return
        if not self._in_backward:
            self._begin_backward()
        parameter.grad = self._fill(parameter)

    def _begin_backward(self) -> None:
        self._in_backward, self._launched = True, 0
        for bucket in self._buckets:
            bucket.pending = len(bucket.views)
        after_backward(self._finish_backward)

    def _fill(self, parameter: nn.Parameter) -> torch.Tensor:
        """Put the gradient into its bucket, launch what is full; give the view."""
        bucket, view = self._place[parameter]
        view.copy_(parameter.grad / dist.get_world_size())
        bucket.pending -= 1
        if not bucket.pending:
            self._launch_full_buckets()
        return view

    def _launch_full_buckets(self) -> None:
        """Launch in the order of the list, which is the same on all ranks."""
        while self._launched < len(self._buckets):
            bucket = self._buckets[self._launched]
            if bucket.pending:
                break
            bucket.reduction = dist.all_reduce(bucket.flat, async_op=True)
            self._launched += 1

    def _finish_backward(self) -> None:
        """Autograd calls this once, when the whole backward is done."""
        self._in_backward = False
        for bucket in self._buckets:
            bucket.reduction.wait()
