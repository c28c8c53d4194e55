"""Reduce gradients in buckets, while the backward still runs: a solution"""

import torch
import torch.distributed as dist
from torch import nn

from ddplab.runtime.torch_private import after_backward

Bucket = list[nn.Parameter]


class BucketedDDP(nn.Module):
    """Averages the gradients of `module` over all ranks, in buckets, during the backward."""

    def __init__(self, module: nn.Module, bucket_cap_bytes: int) -> None:
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.buckets = self.assign(parameters, bucket_cap_bytes)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.flights: list[tuple[torch.Tensor, dist.Work]] = []
        self.missing: list[int] = []  # per bucket: gradients that are not ready yet
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.gradient_ready)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def assign(self, parameters: list[nn.Parameter], cap_bytes: int) -> list[Bucket]:
        """Distribute the parameters over buckets."""
        buckets: list[Bucket] = []
        for p in reversed(parameters):  # the last layer's gradients are ready first
            last = buckets[-1] if buckets else []
            full = sum(q.nbytes for q in last) >= cap_bytes
            if not last or full or last[0].dtype != p.dtype:
                buckets.append([])
            buckets[-1].append(p)
        return buckets

    def gradient_ready(self, p: nn.Parameter) -> None:
        """Autograd calls this when `p.grad` is complete for this backward."""
        if not self.missing:  # the first of this backward
            self.missing = [len(bucket) for bucket in self.buckets]
            after_backward(self.finish)
        self.missing[self.bucket_of[p]] -= 1
        # A full bucket waits for those before it: the ranks' order of arrival may differ, the
        # order of their all-reduces may not. One arrival can release several.
        while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:
            flat = torch.cat([q.grad.flatten() for q in self.buckets[len(self.flights)]])
            self.flights.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Autograd calls this when the backward has computed everything."""
        for bucket, (flat, work) in zip(self.buckets, self.flights, strict=True):
            work.wait()  # before this line nobody may touch `flat`
            flat /= dist.get_world_size()
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(piece.view_as(p))
        self.flights, self.missing = [], []  # the next backward starts anew
