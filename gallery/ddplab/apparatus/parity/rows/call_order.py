"""Behaviours: forwards and backwards, in which order."""

# mypy: disable-error-code="no-untyped-call"

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....runtime.group import device
from ..models import Branches, accumulate, batch, gradients, loss, mlp, train
from ..observe import Local, Wrap
from ..table import Topic

TOPIC = Topic("Forwards and backwards, in which order")


@TOPIC.row("Inference on rank 0 only", "test_ddp_inference")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    train(model, 2)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model(batch())
        model.train()
    return train(model, 2)


@TOPIC.row("A no_grad forward before the backward")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    seen = []
    for step in range(2):
        output = model(batch(step))
        with torch.no_grad():
            target = model(batch(step + 10))
        loss(output - target).backward()
        seen.append(gradients(model))
    return seen


@TOPIC.row("Forwards without a backward", "test_ignored_output test_ignored_output_with_unused_parameters")
def _(wrap: Wrap) -> Any:
    plain, searching = wrap(mlp()), wrap(Branches(), find_unused_parameters=True)
    for step in range(3):
        plain(batch(step))
        searching(batch(step), heads="a")
    return train(plain), train(searching, heads="a")


@TOPIC.row("Two forwards, one backward", "test_static_graph_multi_forward")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    (loss(model(batch(0))) + loss(model(batch(1)))).backward()
    return gradients(model), train(model)


@TOPIC.row("Two forwards, one backward; no_sync 2nd")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = model(batch(0))
    with model.no_sync():
        output = output + model(batch(1))
    loss(output).backward()
    return gradients(model), accumulate(model, "nz")


@TOPIC.row("Two forwards, two backwards", differs=("ranks differ", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    losses = [loss(model(batch(step))) for step in range(2)]
    for one in losses:
        one.backward()
    return gradients(model)


@TOPIC.row("One forward, two backwards", differs=("ranks differ", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = loss(model(batch()))
    output.backward(retain_graph=True)
    output.backward()
    return gradients(model)


TOPIC.row("The inner module trained: ddp.module(x)")(lambda wrap: train(wrap(mlp()).module))


@TOPIC.row("torch.autograd.grad, then steps")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    return Local(torch.autograd.grad(loss(model(batch())), list(model.parameters()))), train(model)


def twice_differentiable(wrap: Wrap, module: nn.Module) -> Any:
    """Return the gradients of a backward that keeps its own graph."""
    model = wrap(module)
    loss(model(batch())).backward(create_graph=True)
    return gradients(model)


TOPIC.row("create_graph=True, one parameter", "test_ddp_create_graph", refused="create_graph")(
    lambda wrap: twice_differentiable(wrap, nn.Linear(6, 3, bias=False, device=device()))
)
TOPIC.row("create_graph=True, several parameters", "test_ddp_create_graph")(
    lambda wrap: twice_differentiable(wrap, mlp())
)
TOPIC.row("Ranks run the heads in other orders")(
    lambda wrap: train(wrap(Branches()), 4, heads=("ab", "ba")[dist.get_rank() % 2])
)


@TOPIC.row("A forward raises, then steps", "test_ddp_uneven_input_exception")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            model(torch.zeros(1, 1, device=device()))
    return train(model)


class Boom(torch.autograd.Function):
    """Pass the input through; raise in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise."""
        raise ValueError("boom")


class Explosive(nn.Module):
    """The mlp, whose backward raises after the gradients of one layer, until it is defused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tanh, self.last = mlp()
        self.armed = True

    def forward(self, x: Tensor) -> Any:
        """Return what the mlp does."""
        x = self.tanh(self.first(x))
        return self.last(Boom.apply(x) if self.armed else x)


@TOPIC.row("A backward raises at once, then steps")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with contextlib.suppress(ValueError):
        loss(Boom.apply(model(batch()))).backward()
    return train(model)


@TOPIC.row("A backward raises half-way, then steps", "test_ddp_has_finalized")
def _(wrap: Wrap) -> Any:
    model = wrap(Explosive())
    with contextlib.suppress(ValueError):
        loss(model(batch())).backward()
    model.module.armed = False
    return train(model)


@TOPIC.row("Wrapped anew after a broken backward", "test_ddp_remove_autograd_hooks")
def _(wrap: Wrap) -> Any:
    model = Explosive()
    with contextlib.suppress(ValueError):
        loss(wrap(model)(batch())).backward()
    model.armed = False
    model.zero_grad()
    return train(wrap(model))


TOPIC.row("A module wrapped, then wrapped again")(lambda wrap: train(wrap(wrap(mlp()).module)))
TOPIC.row("A wrapper around a wrapper", "test_ddp_static_graph_nested_types", refused="wrapped already")(
    lambda wrap: train(wrap(wrap(mlp())))
)
