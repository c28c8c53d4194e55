"""Behaviours: inputs, outputs, checkpointing."""

# mypy: disable-error-code="no-untyped-call"

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ....runtime.group import device
from ..models import Branches, batch, gradients, loss, mlp, train
from ..observe import Local, Wrap
from ..table import Topic

TOPIC = Topic("Inputs, outputs, checkpointing")

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    """An output that is no tuple, list or dict."""

    main: Tensor
    more: dict[str, Tensor]


class Nested(nn.Module):
    """Take and give nested structures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Branches()

    def forward(self, pair: Pair, *, scale: float, kind: type) -> Any:
        """Return the outputs as ``kind`` says."""
        main, other = self.inner(pair.left + pair.right)
        if kind is tuple:
            return main * scale, (other, torch.ones(1, device=device()))
        if kind is dict:
            return {"main": main * scale, "more": {"other": [other, other.detach()]}}
        return Output(main * scale, {"other": other})


@TOPIC.row(
    "Nested inputs and outputs, keywords",
    "test_ddp_static_graph_nested_types test_ddp_namedtuple test_ddp_device"
    " test_ddp_returns_tensor_with_no_grad test_ddp_new_tensor_in_fwd",
)
def _(wrap: Wrap) -> Any:
    model = wrap(Nested())
    for step, kind in enumerate((tuple, dict, tuple)):
        loss(model(Pair(batch(step), batch(step + 10)), scale=2.0, kind=kind)).backward()
    return gradients(model)


@TOPIC.row("A dataclass as output", "test_dataclass_output test_dataclass_output_unused_param")
def _(wrap: Wrap) -> Any:
    seen = []
    for find_unused in (False, True):
        model = wrap(Nested(), find_unused_parameters=find_unused)
        output = model(Pair(batch(0), batch(1)), scale=2.0, kind=Output)
        loss([output.main, output.more]).backward()
        seen.append(gradients(model))
    return seen


@TOPIC.row("find_unused: half a dataclass in the loss", differs=("! forward 2", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(Nested(), find_unused_parameters=True)
    for step in range(2):
        loss(model(Pair(batch(step), batch(step + 10)), scale=2.0, kind=Output).main).backward()
    return gradients(model)


@TOPIC.row("Hooks on modules and tensors", "test_ddp_forward_backward_hook")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))  # type: ignore[index]
    model[2].weight.register_hook(lambda grad: grad * 3)  # type: ignore[operator]
    return train(wrap(model))


@TOPIC.row("functional_call with other parameters", "test_stateless_api_with_ddp")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    others = {name: torch.full_like(p, 0.1, requires_grad=True) for name, p in model.named_parameters()}
    loss(torch.func.functional_call(model, others, batch())).backward()
    return Local([p.grad for p in others.values()]), gradients(model)


class Checkpointed(nn.Module):
    """Layers a, b, c in the order given; a capital letter is recomputed in the backward."""

    def __init__(self, order: str, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]).to(device())
        self.order, self.use_reentrant = order, use_reentrant

    def forward(self, x: Tensor, order: str = "") -> Any:
        """Apply layer after layer."""
        for letter in order or self.order:
            layer = self.layers["abc".index(letter.lower())]
            x = layer(x) if letter.islower() else checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


TOPIC.row("Checkpoint: each layer once", "test_ddp_checkpointing_once")(
    lambda wrap: [train(wrap(Checkpointed(order, False))) for order in ("abC", "aBc", "ABC")]
)
TOPIC.row("Checkpoint: a layer twice", "test_ddp_checkpointing_twice")(
    lambda wrap: train(wrap(Checkpointed("aBBC", False)))
)


@TOPIC.row(
    "Checkpoint: changing, find_unused",
    "test_ddp_checkpointing_dynamic_module test_ddp_checkpointing_dynamic_weight_sharing"
    " test_ddp_checkpointing_unused_params",
)
def _(wrap: Wrap) -> Any:
    model = wrap(Checkpointed("", False), find_unused_parameters=True)
    return [train(model, 1, order=order) for order in ("aB", "aCb", "BB", "aBC")]


TOPIC.row("Reentrant checkpoint, not last layer", "test_ddp_checkpointing_once")(
    lambda wrap: train(wrap(Checkpointed("aBc", True)))
)
TOPIC.row("Reentrant checkpoint of the last layer", "test_ddp_checkpointing_once", refused="use_reentrant")(
    lambda wrap: train(wrap(Checkpointed("abC", True)))
)
TOPIC.row(
    "Reentrant checkpoint, find_unused",
    "test_ddp_checkpointing_unused_params",
    differs=("! backward 1", "ranks agree"),
)(lambda wrap: train(wrap(Checkpointed("abC", True), find_unused_parameters=True)))
TOPIC.row("Reentrant checkpoint: a layer twice", "test_ddp_checkpointing_twice")(
    lambda wrap: train(wrap(Checkpointed("aBBc", True)))
)


@TOPIC.row("Checkpoint around the wrapped model", "test_ddp_checkpointing_weight_sharing")
def _(wrap: Wrap) -> Any:
    seen = []
    for use_reentrant in (True, False):
        model = wrap(Checkpointed("abca", False))
        for step in range(3):
            x = batch(step).requires_grad_()
            loss(checkpoint(model, x, use_reentrant=use_reentrant)).backward()
            seen.append(gradients(model))
    return seen
