"""Reduce gradients in buckets, while the backward still runs

Write `BucketedDDP(module, bucket_cap_bytes)`. Its backward leaves in every `.grad` the mean
over all ranks, and communicates like torch's DDP:

- Parameters enter buckets in the reverse order of registration. A bucket closes as soon as
  it holds at least `bucket_cap_bytes` bytes, and where the data type changes.
- Each bucket is one all-reduce of one flat tensor, launched asynchronously as soon as the
  last of its gradients is ready, and awaited only when the backward has computed everything.
- All ranks launch their buckets in the order of the list, even where gradients become ready
  in another order.

Every parameter takes part in every backward, on every rank. You may add and change methods.
"""

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
        self.buckets: list[Bucket] = self.assign(parameters, bucket_cap_bytes)
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.gradient_ready)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def assign(self, parameters: list[nn.Parameter], cap_bytes: int) -> list[Bucket]:
        """Distribute the parameters over buckets."""
        raise NotImplementedError

    def gradient_ready(self, p: nn.Parameter) -> None:
        """Autograd calls this when `p.grad` is complete for this backward."""
        # In the first call of each backward: after_backward(self.finish)
        raise NotImplementedError

    def finish(self) -> None:
        """Autograd calls this when the backward has computed everything."""
        raise NotImplementedError
