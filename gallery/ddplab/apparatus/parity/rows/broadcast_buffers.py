"""Behaviours: buffers."""

# mypy: disable-error-code="no-untyped-call"

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....runtime.group import device
from ..models import accumulate, batch, gradients, loss, normed, tensors, train
from ..observe import Local, Wrap
from ..table import Topic

TOPIC = Topic("Buffers")


class Buffered(nn.Module):
    """A layer and buffers of several kinds, all of them different on each rank."""

    scale: Tensor
    shift: Tensor
    count: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.layer = nn.Linear(6, 3)
        self.register_buffer("scale", torch.rand(3))
        self.register_buffer("shift", torch.rand(3), persistent=False)
        self.register_buffer("count", torch.tensor(dist.get_rank()))
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("nothing", None)
        self.to(device())

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return what was made with the buffers as they came in; then change one in place and replace another."""
        output = self.layer(x) * self.scale * self.mask + self.shift * self.count
        self.count += dist.get_rank() + 1
        self.scale = self.scale + x.detach().mean()
        return [output]


TOPIC.row(
    "The constructor copies rank 0's state",
    "test_ddp_sync_module_states test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
)(lambda wrap: tensors(wrap(Buffered())))


@TOPIC.row("Buffers: replaced, non-persistent, int", "test_ddp_broadcast_buffer")
def _(wrap: Wrap) -> Any:
    model = wrap(Buffered())
    seen: list[Any] = []
    model.module.register_forward_pre_hook(lambda module, _: seen.append(tensors(module)))
    return train(model), seen


@TOPIC.row("forward_sync_buffers=False", "test_ddp_init_sync_buffers_with_forward_sync_buffers_false", since="2.13")
def _(wrap: Wrap) -> Any:
    model = wrap(Buffered(), forward_sync_buffers=False)
    train(model)
    return tensors(model)


@TOPIC.row("BatchNorm: training, no_sync, eval")
def _(wrap: Wrap) -> Any:
    model = wrap(normed())
    seen = train(model) + accumulate(model, "nns")
    model.eval()
    with torch.no_grad():
        model(batch())
    return seen, [b.clone() for b in model.buffers()], train(model.train(), 2)


@TOPIC.row("BatchNorm: two forwards, one backward", "test_ddp_buffer_sync_multi_forward_with_batchnorm", since="2.13")
def _(wrap: Wrap) -> Any:
    model = wrap(normed())
    (loss(model(batch(0))) + loss(model(batch(1)))).backward()
    return gradients(model), Local(tensors(model))


TOPIC.row(
    "SyncBatchNorm on the CPU",
    "test_DistributedDataParallel_SyncBatchNorm",
    differs=("! constructor", "! forward 1"),
)(lambda wrap: train(wrap(nn.SyncBatchNorm.convert_sync_batchnorm(normed()))))
