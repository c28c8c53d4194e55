"""Stage 8: parameters that a backward leaves out."""

from collections.abc import Iterable, Iterator
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

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.module, self.find_unused_parameters = module, find_unused_parameters
        self._require_sync = self._sync_backward = self._sync_buffers = True
        self._broadcast([*module.parameters(), *module.buffers()])
        self._names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self._build_buckets(list(reversed(self._names)), int(bucket_cap_mb * MIB))
        self._ready: set[nn.Parameter] = set()  # whose gradients this backward has brought
        self._in_backward = False
        for p in self._names:
            p.register_post_accumulate_grad_hook(self._gradient_ready)

    def _broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
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
        """Run the module's forward; decide whether its backward synchronizes."""
        self._sync_backward = torch.is_grad_enabled() and self._require_sync
        if self._sync_buffers:
            self._broadcast(self.module.buffers())
        self._sync_buffers = self._sync_backward
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients of the forwards in here local; a later one sends all."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when the gradient of ``parameter`` is complete."""
        if not self._sync_backward:
            return
        if not self._in_backward:
            self._begin_backward()
        self._ready.add(parameter)
        parameter.grad = self._fill(parameter)

    def _begin_backward(self) -> None:
        self._in_backward, self._launched = True, 0
        self._ready.clear()
        for bucket in self._buckets:
            bucket.pending = len(bucket.views)
        after_backward(self._finish_backward)

    def _fill(self, parameter: nn.Parameter) -> torch.Tensor:
        """Put the gradient into its bucket, launch what is full; give the view."""
        bucket, view = self._place[parameter]
        if parameter.grad is None:
            view.zero_()
        else:
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
        unused = [p for p in self._names if p not in self._ready]
        if unused and not self.find_unused_parameters:
            names = ", ".join(self._names[p] for p in unused)
            raise RuntimeError(f"DDP: {names} got no gradient; find_unused_parameters?")
        for p in unused:
            self._fill(p)
        for bucket in self._buckets:
            bucket.reduction.wait()
        if self.find_unused_parameters:
            used = torch.tensor([p in self._ready for p in self._names], dtype=torch.int32)
            dist.all_reduce(used)
            for p, ranks in zip(self._names, used.tolist(), strict=True):
                if ranks:  # what no rank used keeps the gradient that it had
                    p.grad = self._place[p][1]
