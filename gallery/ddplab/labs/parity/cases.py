"""What PyTorch's own tests make its DistributedDataParallel do, as short functions that any such class can run.

:data:`BEHAVIOURS` has a row for each: the title says what is done, the rest is described in
:class:`ddplab.behaviour.Behaviour`. The tests named are in torch/testing/_internal/distributed/distributed_test.py
(torch 2.13) and in PyTorch's repository, test/distributed/test_c10d_gloo.py, test_c10d_common.py and
test_c10d_nccl.py. What they check is taken over, their code is not.
"""

# mypy: disable-error-code="no-untyped-call"
# No ``from __future__ import annotations`` here: torch's DDP reads the annotations of a comm hook, and takes the
# string "dist.GradBucket" for a wrong type.

import contextlib
import copy
import io
import warnings
from collections import namedtuple
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.futures import Future
from torch.utils.checkpoint import checkpoint

from ...runtime.group import device
from ...runtime.launcher import launch
from ...runtime.needs import ON_CPU
from .observe import (
    Behaviour,
    Branches,
    Local,
    Seen,
    Wrap,
    batch,
    gradients,
    loss,
    mlp,
    normed,
    observe,
    tensors,
    train,
)

BEHAVIOURS: dict[str, Behaviour] = {}  # by title


def observe_all(titles: Collection[str], *classes: type[nn.Module], ranks: int = 2) -> dict[str, list[list[Seen]]]:
    """Return, by title, what each rank saw of each class; the rows that ask for it have launches of their own.

    The ranks are on the CPU, with gloo, whatever the machine has: a rank whose peer has raised then hears of it.
    """

    def worker(titles: list[str], classes: Sequence[type[nn.Module]]) -> list[list[Seen]]:
        warnings.simplefilter("ignore")
        return [[observe(BEHAVIOURS[title], cls) for title in titles] for cls in classes]

    quietly: Any = {"env": ON_CPU, "quiet": True}
    together = [title for title in titles if not BEHAVIOURS[title].alone]
    by_rank = launch(worker, ranks, together, classes, timeout_s=60, **quietly)
    seen = {title: [[rank[c][t] for rank in by_rank] for c in range(len(classes))] for t, title in enumerate(together)}
    for title in titles:
        if title not in seen:
            launches = [launch(worker, ranks, [title], [cls], timeout_s=20, **quietly) for cls in classes]
            seen[title] = [[rank[0][0] for rank in by_rank] for by_rank in launches]
    return {title: seen[title] for title in titles}


def row(
    title: str,
    tests: str = "",
    refused: str = "",
    differs: tuple[str, str] | None = None,
    alone: bool = False,
    since: str = "2.8",
) -> Callable[[Callable[[Wrap], Any]], None]:
    """Enter the function that follows into :data:`BEHAVIOURS`, under the current topic.

    An older torch than ``since`` does it differently, or cannot: there it is left out.
    """

    def enter(run: Callable[[Wrap], Any]) -> None:
        if torch.__version__ >= since:
            BEHAVIOURS[title] = Behaviour(topic, run, tuple(tests.split()), refused, differs, alone)

    return enter


topic = "Training and accumulation"

row("5 steps with momentum", "test_DistributedDataParallelCPU test_gloo_backend_cpu_module")(
    lambda wrap: [train(wrap(mlp(), bucket_cap_mb=cap), 5) for cap in (None, 0.0002)]
)
row("zero_grad(set_to_none=False)", "test_DistributedDataParallelCPU test_forward_backward_optimizer")(
    lambda wrap: train(wrap(mlp()), set_to_none=False)
)


def accumulate(model: Any, steps: str) -> list[Any]:
    """Run a step per letter: s synchronizes, n is under no_sync, z zeroes the gradients and synchronizes."""
    seen: list[Any] = []
    for step, letter in enumerate(steps):
        if letter == "z":
            model.zero_grad()
        with model.no_sync() if letter == "n" else contextlib.nullcontext():
            loss(model(batch(step))).backward()
        seen.append(Local(gradients(model)) if letter == "n" else gradients(model))
    return seen


row("Gradients never zeroed", "test_DistributedDataParallelCPU_grad_is_view")(
    lambda wrap: accumulate(wrap(mlp()), "sss")
)
row(
    "Accumulation, several patterns",
    "test_accumulate_gradients_no_sync test_accumulate_gradients_no_sync_grad_is_view",
)(lambda wrap: [accumulate(wrap(mlp()), steps) for steps in ("ns", "nnns", "sns", "snnsz", "nnz", "zns")])


@row("no_sync inside no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with model.no_sync():
        with model.no_sync():
            loss(model(batch(0))).backward()
        loss(model(batch(1))).backward()  # still under the outer one
    return Local(gradients(model)), accumulate(model, "s")


@row("An exception leaves no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with contextlib.suppress(ValueError), model.no_sync():
        loss(model(batch())).backward()
        raise ValueError
    return Local(gradients(model)), accumulate(model, "s")


@row("no_sync around the forward only")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with model.no_sync():
        output = loss(model(batch()))
    output.backward()
    return gradients(model)


@row("no_sync around the backward only")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = loss(model(batch()))
    with model.no_sync():
        output.backward()
    return gradients(model)


@row("no_grad inside no_sync", "test_accumulate_gradients_no_sync")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with torch.no_grad(), model.no_sync():
        model(batch())
    return accumulate(model, "ns")


@row("Gradient clipping before the step")
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


@row(
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


topic = "Unused parameters"

row(
    "Unused, without find_unused_parameters",
    "test_ddp_unused_params_rebuild_buckets_exception test_ddp_control_flow_same_across_ranks"
    " test_ddp_multiple_nested_unused_params_error",
    differs=("! forward 2", "! backward 1"),
)(lambda wrap: train(wrap(Branches()), heads="a"))
row(
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


row(
    "find_unused: unused on all ranks",
    "test_global_local_unused_params_grad test_forward_backward_unused_parameters",
)(lambda wrap: searching(wrap, *[("a", "a")] * 3))
row(
    "find_unused: each rank another head",
    "test_global_local_unused_params_grad test_different_graph_across_ranks",
)(lambda wrap: searching(wrap, *[("a", "b")] * 3))
row("find_unused: rank 1 does not use all", "test_find_unused_parameters_when_unused_parameters_empty")(
    lambda wrap: searching(wrap, *[("ab", "a")] * 3)
)
row(
    "find_unused: changes by step and rank",
    "test_ddp_control_flow_different_across_ranks test_ddp_control_flow_same_across_ranks"
    " test_detect_ddp_is_actually_static",
)(lambda wrap: searching(wrap, ("a", "ab"), ("a", "a"), ("b", "a"), ("ab", "ab"), ("b", "b")))


@row("find_unused: unused and tied", "test_ddp_shared_grad_acc_unused_params")
def _(wrap: Wrap) -> Any:
    model = Branches()
    model.b.bias = model.a.bias
    return searching(wrap, ("a", "a"), ("b", "a"), model=model)


@row(
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


@row("find_unused: used under no_sync only", "test_grads_same_across_ranks_with_no_sync")
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


row("find_unused: undefined gradients", "test_undefined_grad_parity_unused_parameters")(
    lambda wrap: undefined(wrap, find_unused_parameters=True)
)
row("Undefined gradients", differs=("ranks agree", "! backward 1"))(undefined)


topic = "Parameters"


@row("Some parameters frozen", "test_ddp_build_debug_param_to_name_mapping_requires_grad")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    return train(wrap(model))


row("All parameters frozen", "test_DistributedDataParallel_requires_grad")(
    lambda wrap: wrap(mlp().requires_grad_(False))
)


@row("A parameter frozen after wrapping", differs=("! forward 2", "! backward 1"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    model.module[0].requires_grad_(False)
    return train(model)


@row("A parameter unfrozen after wrapping")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    wrapped = wrap(model)
    model[0].requires_grad_(True)
    return train(wrapped)


@row(
    "A parameter replaced after wrapping",
    "test_ddp_ignore_params_arg",
    differs=("! forward 2", "! backward 1"),
)
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    model.module[0].weight = nn.Parameter(model.module[0].weight.detach().clone())
    return train(model)


@row("Tied parameters", "test_ddp_checkpointing_weight_sharing")
def _(wrap: Wrap) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).to(device())
    model[2].weight = model[0].weight
    return train(wrap(model))


class Recurrent(nn.Module):
    """Call one layer three times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6, device=device())

    def forward(self, x: Tensor) -> Tensor:
        """Return x after three rounds."""
        for _ in range(3):
            x = self.layer(x).tanh()
        return x


row("A layer called three times")(lambda wrap: train(wrap(Recurrent())))


class Cast(nn.Module):
    """The mlp in one dtype, or a layer in one and a layer in another."""

    def __init__(self, first: torch.dtype, second: torch.dtype) -> None:
        super().__init__()
        layers: Any = mlp()
        self.first, self.second = layers[0].to(first), layers[2].to(second)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output in float32."""
        x = self.first(x.to(self.first.weight.dtype))
        output: Tensor = self.second(x.to(self.second.weight.dtype))
        return output.float()


row("Parameters in float32 and float64", "test_multi_dtype_multi_bucket test_forward_backward")(
    lambda wrap: train(wrap(Cast(torch.float32, torch.float64)))
)
row("Parameters in bfloat16 and float16")(lambda wrap: train(wrap(Cast(torch.bfloat16, torch.float16))))


class Odd(nn.Module):
    """Parameters that are a scalar, empty, complex, channels_last and transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.spectrum = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.to(device())

    def forward(self, x: Tensor) -> Tensor:
        """Use each of them once."""
        x = torch.fft.irfft(torch.fft.rfft(x) * self.spectrum) * self.scalar + self.empty.sum()
        output: Tensor = self.conv(x.view(4, 1, 2, 3).expand(4, 2, 2, 3)).flatten(1) @ self.turned
        return output


row(
    "Scalar, empty, complex, channels_last",
    "test_ddp_zero_output_features test_ddp_complex_params test_grad_layout_1devicemodule_1replicaperprocess",
)(lambda wrap: train(wrap(Odd())))
row("A lazy layer without its shape")(lambda wrap: wrap(nn.LazyLinear(3)))


@row(
    "Sparse gradients",
    "test_sparse_gradients test_sparse_gradients_grad_is_view test_ddp_comm_hook_sparse_gradients",
    refused="sparse",
)
def _(wrap: Wrap) -> Any:
    model = wrap(nn.EmbeddingBag(10, 4, sparse=True, device=device()))
    loss(model(torch.arange(4, device=device()).view(2, 2) + dist.get_rank())).backward()
    return model.module.weight.grad.to_dense()


topic = "Buffers"


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


row(
    "The constructor copies rank 0's state",
    "test_ddp_sync_module_states test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
)(lambda wrap: tensors(wrap(Buffered())))


@row("Buffers: replaced, non-persistent, int", "test_ddp_broadcast_buffer")
def _(wrap: Wrap) -> Any:
    model = wrap(Buffered())
    seen: list[Any] = []
    model.module.register_forward_pre_hook(lambda module, _: seen.append(tensors(module)))
    return train(model), seen


@row("forward_sync_buffers=False", "test_ddp_init_sync_buffers_with_forward_sync_buffers_false", since="2.13")
def _(wrap: Wrap) -> Any:
    model = wrap(Buffered(), forward_sync_buffers=False)
    train(model)
    return tensors(model)


@row("BatchNorm: training, no_sync, eval")
def _(wrap: Wrap) -> Any:
    model = wrap(normed())
    seen = train(model) + accumulate(model, "nns")
    model.eval()
    with torch.no_grad():
        model(batch())
    return seen, [b.clone() for b in model.buffers()], train(model.train(), 2)


@row("BatchNorm: two forwards, one backward", "test_ddp_buffer_sync_multi_forward_with_batchnorm", since="2.13")
def _(wrap: Wrap) -> Any:
    model = wrap(normed())
    (loss(model(batch(0))) + loss(model(batch(1)))).backward()
    return gradients(model), Local(tensors(model))


row(
    "SyncBatchNorm on the CPU",
    "test_DistributedDataParallel_SyncBatchNorm",
    differs=("! constructor", "! forward 1"),
)(lambda wrap: train(wrap(nn.SyncBatchNorm.convert_sync_batchnorm(normed()))))


topic = "Forwards and backwards, in which order"


@row("Inference on rank 0 only", "test_ddp_inference")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    train(model, 2)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model(batch())
        model.train()
    return train(model, 2)


@row("A no_grad forward before the backward")
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


@row("Forwards without a backward", "test_ignored_output test_ignored_output_with_unused_parameters")
def _(wrap: Wrap) -> Any:
    plain, searching = wrap(mlp()), wrap(Branches(), find_unused_parameters=True)
    for step in range(3):
        plain(batch(step))
        searching(batch(step), heads="a")
    return train(plain), train(searching, heads="a")


@row("Two forwards, one backward", "test_static_graph_multi_forward")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    (loss(model(batch(0))) + loss(model(batch(1)))).backward()
    return gradients(model), train(model)


@row("Two forwards, one backward; no_sync 2nd")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = model(batch(0))
    with model.no_sync():
        output = output + model(batch(1))
    loss(output).backward()
    return gradients(model), accumulate(model, "nz")


@row("Two forwards, two backwards", differs=("ranks differ", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    losses = [loss(model(batch(step))) for step in range(2)]
    for one in losses:
        one.backward()
    return gradients(model)


@row("One forward, two backwards", differs=("ranks differ", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    output = loss(model(batch()))
    output.backward(retain_graph=True)
    output.backward()
    return gradients(model)


row("The inner module trained: ddp.module(x)")(lambda wrap: train(wrap(mlp()).module))


@row("torch.autograd.grad, then steps")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    return Local(torch.autograd.grad(loss(model(batch())), list(model.parameters()))), train(model)


def twice_differentiable(wrap: Wrap, module: nn.Module) -> Any:
    """Return the gradients of a backward that keeps its own graph."""
    model = wrap(module)
    loss(model(batch())).backward(create_graph=True)
    return gradients(model)


row("create_graph=True, one parameter", "test_ddp_create_graph", refused="create_graph")(
    lambda wrap: twice_differentiable(wrap, nn.Linear(6, 3, bias=False, device=device()))
)
row("create_graph=True, several parameters", "test_ddp_create_graph")(lambda wrap: twice_differentiable(wrap, mlp()))
row("Ranks run the heads in other orders")(
    lambda wrap: train(wrap(Branches()), 4, heads=("ab", "ba")[dist.get_rank() % 2])
)


@row("A forward raises, then steps", "test_ddp_uneven_input_exception")
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


@row("A backward raises at once, then steps")
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with contextlib.suppress(ValueError):
        loss(Boom.apply(model(batch()))).backward()
    return train(model)


@row("A backward raises half-way, then steps", "test_ddp_has_finalized")
def _(wrap: Wrap) -> Any:
    model = wrap(Explosive())
    with contextlib.suppress(ValueError):
        loss(model(batch())).backward()
    model.module.armed = False
    return train(model)


@row("Wrapped anew after a broken backward", "test_ddp_remove_autograd_hooks")
def _(wrap: Wrap) -> Any:
    model = Explosive()
    with contextlib.suppress(ValueError):
        loss(wrap(model)(batch())).backward()
    model.armed = False
    model.zero_grad()
    return train(wrap(model))


row("A module wrapped, then wrapped again")(lambda wrap: train(wrap(wrap(mlp()).module)))
row("A wrapper around a wrapper", "test_ddp_static_graph_nested_types", refused="wrapped already")(
    lambda wrap: train(wrap(wrap(mlp())))
)


topic = "Inputs, outputs, checkpointing"

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


@row(
    "Nested inputs and outputs, keywords",
    "test_ddp_static_graph_nested_types test_ddp_namedtuple test_ddp_device"
    " test_ddp_returns_tensor_with_no_grad test_ddp_new_tensor_in_fwd",
)
def _(wrap: Wrap) -> Any:
    model = wrap(Nested())
    for step, kind in enumerate((tuple, dict, tuple)):
        loss(model(Pair(batch(step), batch(step + 10)), scale=2.0, kind=kind)).backward()
    return gradients(model)


@row("A dataclass as output", "test_dataclass_output test_dataclass_output_unused_param")
def _(wrap: Wrap) -> Any:
    seen = []
    for find_unused in (False, True):
        model = wrap(Nested(), find_unused_parameters=find_unused)
        output = model(Pair(batch(0), batch(1)), scale=2.0, kind=Output)
        loss([output.main, output.more]).backward()
        seen.append(gradients(model))
    return seen


@row("find_unused: half a dataclass in the loss", differs=("! forward 2", "ranks agree"))
def _(wrap: Wrap) -> Any:
    model = wrap(Nested(), find_unused_parameters=True)
    for step in range(2):
        loss(model(Pair(batch(step), batch(step + 10)), scale=2.0, kind=Output).main).backward()
    return gradients(model)


@row("Hooks on modules and tensors", "test_ddp_forward_backward_hook")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))  # type: ignore[index]
    model[2].weight.register_hook(lambda grad: grad * 3)  # type: ignore[operator]
    return train(wrap(model))


@row("functional_call with other parameters", "test_stateless_api_with_ddp")
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


row("Checkpoint: each layer once", "test_ddp_checkpointing_once")(
    lambda wrap: [train(wrap(Checkpointed(order, False))) for order in ("abC", "aBc", "ABC")]
)
row("Checkpoint: a layer twice", "test_ddp_checkpointing_twice")(lambda wrap: train(wrap(Checkpointed("aBBC", False))))


@row(
    "Checkpoint: changing, find_unused",
    "test_ddp_checkpointing_dynamic_module test_ddp_checkpointing_dynamic_weight_sharing"
    " test_ddp_checkpointing_unused_params",
)
def _(wrap: Wrap) -> Any:
    model = wrap(Checkpointed("", False), find_unused_parameters=True)
    return [train(model, 1, order=order) for order in ("aB", "aCb", "BB", "aBC")]


row("Reentrant checkpoint, not last layer", "test_ddp_checkpointing_once")(
    lambda wrap: train(wrap(Checkpointed("aBc", True)))
)
row("Reentrant checkpoint of the last layer", "test_ddp_checkpointing_once", refused="use_reentrant")(
    lambda wrap: train(wrap(Checkpointed("abC", True)))
)
row(
    "Reentrant checkpoint, find_unused",
    "test_ddp_checkpointing_unused_params",
    differs=("! backward 1", "ranks agree"),
)(lambda wrap: train(wrap(Checkpointed("abC", True), find_unused_parameters=True)))
row("Reentrant checkpoint: a layer twice", "test_ddp_checkpointing_twice")(
    lambda wrap: train(wrap(Checkpointed("aBBc", True)))
)


@row("Checkpoint around the wrapped model", "test_ddp_checkpointing_weight_sharing")
def _(wrap: Wrap) -> Any:
    seen = []
    for use_reentrant in (True, False):
        model = wrap(Checkpointed("abca", False))
        for step in range(3):
            x = batch(step).requires_grad_()
            loss(checkpoint(model, x, use_reentrant=use_reentrant)).backward()
            seen.append(gradients(model))
    return seen


topic = "Comm hooks"


def hooked(wrap: Wrap, state: Any, *hooks: Any, steps: str = "sns") -> Any:
    """Train with a comm hook, or try to register several."""
    model = wrap(mlp())
    for hook in hooks:
        model.register_comm_hook(state, hook)
    return accumulate(model, steps)


def future(value: Any) -> Future[Any]:
    """Return a future that is done; an exception as value makes it fail."""
    done: Future[Any] = Future()
    done.set_exception(value) if isinstance(value, Exception) else done.set_result(value)
    return done


def chained(state: int, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Sum, double, and divide by twice ``state``, in three futures."""
    summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    doubled: Future[Tensor] = summed.then(lambda f: 2 * f.value()[0])
    return doubled.then(lambda f: f.value() / (2 * state))


row("torch's allreduce_hook", "test_ddp_hook_parity_allreduce test_accumulate_gradients_no_sync_allreduce_hook")(
    lambda wrap: hooked(wrap, None, default_hooks.allreduce_hook)
)
row("torch's fp16_compress_hook", "test_ddp_hook_with_optimizer_parity_sgd")(
    lambda wrap: hooked(wrap, None, default_hooks.fp16_compress_hook)
)
row("torch's PowerSGD with error feedback", "test_ddp_hook_parity_powerSGD")(
    lambda wrap: hooked(
        wrap, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook, steps="sssss"
    )
)
row("A hook that chains futures", "test_accumulate_gradients_no_sync_allreduce_with_then_hook")(
    lambda wrap: hooked(wrap, dist.get_world_size(), chained)
)
row("A hook that does not communicate", "test_ddp_comm_hook_future_passing_cpu")(
    lambda wrap: hooked(wrap, 2.0, lambda state, bucket: future(torch.full_like(bucket.buffer(), state)))
)
row("A hook that returns no future", "test_ddp_invalid_comm_hook_return_type")(
    lambda wrap: hooked(wrap, None, lambda state, bucket: 1)
)
row("A hook whose future fails")(
    lambda wrap: hooked(wrap, None, lambda state, bucket: future(ValueError("no network")))
)
row("A hook that cannot be called", "test_ddp_invalid_comm_hook_init test_ddp_python_error_logged")(
    lambda wrap: hooked(wrap, None, 1)
)
row("A second hook", "test_ddp_comm_hook_register_just_once")(
    lambda wrap: hooked(wrap, None, default_hooks.allreduce_hook, default_hooks.allreduce_hook)
)


def quoted(state: None, bucket: "dist.GradBucket") -> "Future[Tensor]":  # type: ignore[name-defined]
    """Do what torch's hook does, with annotations that are strings, as ``from __future__`` makes all of them."""
    return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]


row("A hook whose annotations are strings", differs=("! register_comm_hook", "ranks agree"))(
    lambda wrap: hooked(wrap, None, quoted)
)


@row("What a hook sees of rebuilt buckets")
def _(wrap: Wrap) -> Any:
    model, seen = wrap(mlp()), []

    def look(state: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        names = {p: name for name, p in model.named_parameters()}
        shapes = [tuple(g.shape) for g in bucket.gradients()]
        seen.append(f"{bucket.index()} {bucket.is_last()} {shapes} {[names[p] for p in bucket.parameters()]}")
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model.register_comm_hook(None, look)
    for step in range(2):
        seen.clear()
        loss(model(batch(step))).backward()
    return seen


topic = "Ranks, copies, uneven inputs, options"


@row("process_group= of this rank alone")
def _(wrap: Wrap) -> Any:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return Local(train(wrap(normed(), process_group=groups[dist.get_rank()])))


row("process_group= without rank 1")(lambda wrap: wrap(mlp(), process_group=dist.new_group([0])) and None)
row(
    "Ranks with different shapes",
    "test_ddp_model_diff_shape_across_ranks test_verify_model_across_rank_without_logger",
    alone=True,
)(lambda wrap: tensors(wrap(nn.Linear(6, 8 + dist.get_rank()))))
row("Ranks with more or fewer parameters", "test_ddp_model_diff_num_params_across_ranks", alone=True)(
    lambda wrap: tensors(wrap(mlp()[: 1 + 2 * dist.get_rank()]))
)


@row("Ranks with different frozen shapes", alone=True, differs=("ranks differ", "! constructor"))
def _(wrap: Wrap) -> Any:
    frozen = nn.Linear(3, 3 + 20 * dist.get_rank()).requires_grad_(False)
    return tensors(wrap(nn.Sequential(*mlp(), frozen)))


@row("state_dict: names, into bare model", "test_save_load_checkpoint")
def _(wrap: Wrap) -> Any:
    model, other, bare = wrap(mlp()), wrap(mlp()), mlp()
    train(model)
    stored = copy.deepcopy(model.state_dict())
    names = list(stored)
    other.load_state_dict(stored)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(stored, "module.")
    bare.load_state_dict(stored)
    return names, tensors(bare), train(other), train(model)


@row("copy.deepcopy of the wrapper", refused="copied")
def _(wrap: Wrap) -> Any:
    return train(copy.deepcopy(wrap(mlp())))


@row("torch.save of the wrapper", "test_DistributedDataParallelCPU", refused="pickled")
def _(wrap: Wrap) -> Any:
    file = io.BytesIO()
    torch.save(wrap(mlp()), file)
    file.seek(0)
    return train(torch.load(file, weights_only=False))


@row(
    "Join: rank 1 has more batches",
    "test_ddp_join_model_equivalence test_ddp_uneven_inputs test_ddp_grad_div_uneven_inputs",
    refused="Join",
)
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with Join([model]):
        train(model, 2 + dist.get_rank())
    return tensors(model)


row("static_graph=True", "test_static_graph_api_cpu test_static_graph_multi_forward", refused="static_graph")(
    lambda wrap: train(wrap(mlp(), static_graph=True), 4)
)
row("gradient_as_bucket_view=True", "test_DistributedDataParallelCPU_grad_is_view", refused="gradient_as_bucket_view")(
    lambda wrap: train(wrap(mlp(), gradient_as_bucket_view=True))
)
