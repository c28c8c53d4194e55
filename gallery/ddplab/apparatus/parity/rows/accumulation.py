"""Behaviours: training and accumulation."""

# mypy: disable-error-code="no-untyped-call"

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from ..models import accumulate, batch, gradients, loss, mlp, tensors, train
from ..observe import Local, Wrap
from ..table import Topic

TOPIC = Topic("Training and accumulation")

TOPIC.row("5 steps with momentum", "test_DistributedDataParallelCPU test_gloo_backend_cpu_module")(
    lambda wrap: [train(wrap(mlp(), bucket_cap_mb=cap), 5) for cap in (None, 0.0002)]
)
TOPIC.row("zero_grad(set_to_none=False)", "test_DistributedDataParallelCPU test_forward_backward_optimizer")(
    lambda wrap: train(wrap(mlp()), set_to_none=False)
)


TOPIC.row("Gradients never zeroed", "test_DistributedDataParallelCPU_grad_is_view")(
    lambda wrap: accumulate(wrap(mlp()), "sss")
)
TOPIC.row(
    "Accumulation, several patterns",
    "test_accumulate_gradients_no_sync test_accumulate_gradients_no_sync_grad_is_view",
)(lambda wrap: [accumulate(wrap(mlp()), steps) for steps in ("ns", "nnns", "sns", "snnsz", "nnz", "zns")])


@TOPIC.row("no_sync inside no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with model.no_sync():
        with model.no_sync():
            loss(model(batch(0))).backward()
        loss(model(batch(1))).backward()  # still under the outer one
    return Local(gradients(model)), accumulate(model, "s")


@TOPIC.row("An exception leaves no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with contextlib.suppress(ValueError), model.no_sync():
        loss(model(batch())).backward()
        raise ValueError
    return Local(gradients(model)), accumulate(model, "s")


@TOPIC.row("no_sync around the forward only")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with model.no_sync():
        output = loss(model(batch()))
    output.backward()
    return gradients(model)


@TOPIC.row("no_sync around the backward only")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = loss(model(batch()))
    with model.no_sync():
        output.backward()
    return gradients(model)


@TOPIC.row("no_grad inside no_sync", "test_accumulate_gradients_no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with torch.no_grad(), model.no_sync():
        model(batch())
    return accumulate(model, "ns")


@TOPIC.row("Gradient clipping before the step")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    optimizer = torch.optim.Adam(model.parameters())
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        loss(model(batch(step))).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    return norms, tensors(model)


@TOPIC.row(
    "An optimizer step in a gradient hook",
    "test_ddp_apply_optim_in_backward",
    differs=("ranks differ", "! backward 1"),
)
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())

    def step(parameter: Tensor) -> None:
        parameter.data -= 0.1 * parameter.grad  # type: ignore[operator]
        parameter.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    loss(model(batch())).backward()
    return tensors(model)
