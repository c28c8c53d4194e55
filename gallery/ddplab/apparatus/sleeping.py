"""Models whose time is known because they sleep: it needs no core, and their gradients are real.

What a model computes does not matter to the schedule of a DDP step, only when each gradient is ready.
So a layer here waits until its time is over, as a layer on a GPU keeps the host waiting.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class SleepingLayers(nn.Module):
    """Equal layers in a row; each forward and backward keeps its time, and gives a gradient of ones.

    A sleep ends late by some 0.1 ms; a layer makes up for that by sleeping less in the next one, so the sum is kept.

    Args:
        layers: how many.
        layer_bytes: bytes of each layer's one parameter, in float32.
        forward_s: seconds of one layer's forward.
        backward_s: seconds of one layer's backward.
    """

    def __init__(self, layers: int, layer_bytes: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(layer_bytes // 4) for _ in range(layers))
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.until_s = 0.0  # when the layer that computes now is done

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` once all layers have computed."""
        self.until_s = time.perf_counter()
        for weight in self.weights:
            x = _Layer.apply(x, weight, self)  # type: ignore[no-untyped-call]
        return x

    def compute(self, seconds: float) -> None:
        """Sleep until the layer is done, counted from the moment when the one before it should have been."""
        self.until_s += seconds
        time.sleep(max(0.0, self.until_s - time.perf_counter()))


def paced(model: nn.Module, forward_s: float, backward_s: float) -> nn.Module:
    """Let a model keep its time: it computes, and waits until a slower device would have been done.

    A forward lasts ``forward_s``. A backward lasts ``backward_s``, of which each parameter has a share in proportion to
    its size, and its gradient is ready when its share, and that of all before it, is over.
    As long as the machine computes faster than that, nothing that disturbs the machine changes a time.

    Returns ``model``, with hooks.
    """
    size = sum(p.numel() for p in model.parameters())
    until_s = 0.0  # when what is computed now is done

    def wait(seconds: float) -> None:
        nonlocal until_s
        until_s += seconds
        time.sleep(max(0.0, until_s - time.perf_counter()))

    def begin(*_: Any) -> None:
        nonlocal until_s
        until_s = time.perf_counter()

    def ready(share: float, _: Tensor) -> None:
        wait(share * backward_s)

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(lambda *_: wait(forward_s))
    for p in model.parameters():
        p.register_hook(partial(ready, p.numel() / size))  # type: ignore[no-untyped-call]
    return model


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, model: SleepingLayers) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.model = model
        model.compute(model.forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        ctx.model.compute(ctx.model.backward_s)
        return gradients[0], torch.ones_like(weight), None
