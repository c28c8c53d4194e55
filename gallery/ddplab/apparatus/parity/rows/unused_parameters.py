"""Behaviours: unused parameters."""

# mypy: disable-error-code="no-untyped-call"

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..models import Branches, batch, gradients, loss, mlp, tensors, train
from ..observe import Wrap
from ..table import Topic

TOPIC = Topic("Unused parameters")

TOPIC.row(
    "Unused, without find_unused_parameters",
    "test_ddp_unused_params_rebuild_buckets_exception test_ddp_control_flow_same_across_ranks"
    " test_ddp_multiple_nested_unused_params_error",
    differs=("! forward 2", "! backward 1"),
)(lambda wrap: train(wrap(Branches()), heads="a"))
TOPIC.row(
    "Unused on rank 1 only",
    "test_ddp_control_flow_different_across_ranks",
    alone=True,
    differs=("! backward 1, forward 2", "! backward 1"),
)(lambda wrap: train(wrap(Branches()), heads="a" if dist.get_rank() == 1 else "ab"))


def searching(wrap: Wrap, *steps: tuple[str, str], model: nn.Module | None = None) -> list[Any]:
    """Train with find_unused_parameters; each step names the heads of even and of odd ranks."""
    wrapped = wrap(model or Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for step, heads in enumerate(steps):
        optimizer.zero_grad()
        loss(wrapped(batch(step), heads=heads[dist.get_rank() % 2])).backward()
        optimizer.step()
        seen += [gradients(wrapped), tensors(wrapped)]
    return seen


TOPIC.row(
    "find_unused: unused on all ranks",
    "test_global_local_unused_params_grad test_forward_backward_unused_parameters",
)(lambda wrap: searching(wrap, *[("a", "a")] * 3))
TOPIC.row(
    "find_unused: each rank another head",
    "test_global_local_unused_params_grad test_different_graph_across_ranks",
)(lambda wrap: searching(wrap, *[("a", "b")] * 3))
TOPIC.row("find_unused: rank 1 does not use all", "test_find_unused_parameters_when_unused_parameters_empty")(
    lambda wrap: searching(wrap, *[("ab", "a")] * 3)
)
TOPIC.row(
    "find_unused: changes by step and rank",
    "test_ddp_control_flow_different_across_ranks test_ddp_control_flow_same_across_ranks"
    " test_detect_ddp_is_actually_static",
)(lambda wrap: searching(wrap, ("a", "ab"), ("a", "a"), ("b", "a"), ("ab", "ab"), ("b", "b")))


@TOPIC.row("find_unused: unused and tied", "test_ddp_shared_grad_acc_unused_params")
def _(wrap: Wrap) -> Any:
    model = Branches()
    model.b.bias = model.a.bias
    return searching(wrap, ("a", "a"), ("b", "a"), model=model)


@TOPIC.row(
    "find_unused: an output not in the loss",
    "test_output_unused_in_loss_tuple_module test_output_unused_in_loss_dict_module",
)
def _(wrap: Wrap) -> Any:
    model = wrap(Branches(), find_unused_parameters=True)
    seen = []
    for step, used in enumerate([slice(1), slice(2), slice(1, 2), slice(1, 2)]):
        loss(model(batch(step))[used]).backward()
        seen.append(gradients(model))
    return seen


@TOPIC.row("find_unused: used under no_sync only", "test_grads_same_across_ranks_with_no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(Branches(), find_unused_parameters=True)
    with model.no_sync():
        loss(model(batch(0), heads="ab"[dist.get_rank() % 2])).backward()
    loss(model(batch(1), heads="b")).backward()
    return gradients(model)


class NoGradient(torch.autograd.Function):
    """Pass the input through; give it no gradient, which is not the same as zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        """Return None."""


def undefined(wrap: Wrap, **options: bool) -> Any:
    """Two backwards in which autograd runs to the parameters, but brings nothing."""
    model = wrap(mlp(), **options)
    for step in range(2):
        loss(NoGradient.apply(model(batch(step)))).backward()
    return gradients(model)


TOPIC.row("find_unused: undefined gradients", "test_undefined_grad_parity_unused_parameters")(
    lambda wrap: undefined(wrap, find_unused_parameters=True)
)
TOPIC.row("Undefined gradients", differs=("ranks agree", "! backward 1"))(undefined)
