"""Behaviours: parameters."""

# mypy: disable-error-code="no-untyped-call"

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....runtime.group import device
from ..models import loss, mlp, train
from ..observe import Wrap
from ..table import Topic

TOPIC = Topic("Parameters")


@TOPIC.row("Some parameters frozen", "test_ddp_build_debug_param_to_name_mapping_requires_grad")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    return train(wrap(model))


TOPIC.row("All parameters frozen", "test_DistributedDataParallel_requires_grad")(
    lambda wrap: wrap(mlp().requires_grad_(False))
)


@TOPIC.row("A parameter frozen after wrapping", differs=("! forward 2", "! backward 1"))
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    model.module[0].requires_grad_(False)
    return train(model)


@TOPIC.row("A parameter unfrozen after wrapping")
def _(wrap: Wrap) -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    wrapped = wrap(model)
    model[0].requires_grad_(True)
    return train(wrapped)


@TOPIC.row(
    "A parameter replaced after wrapping",
    "test_ddp_ignore_params_arg",
    differs=("! forward 2", "! backward 1"),
)
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    model.module[0].weight = nn.Parameter(model.module[0].weight.detach().clone())
    return train(model)


@TOPIC.row("Tied parameters", "test_ddp_checkpointing_weight_sharing")
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


TOPIC.row("A layer called three times")(lambda wrap: train(wrap(Recurrent())))


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


TOPIC.row("Parameters in float32 and float64", "test_multi_dtype_multi_bucket test_forward_backward")(
    lambda wrap: train(wrap(Cast(torch.float32, torch.float64)))
)
TOPIC.row("Parameters in bfloat16 and float16")(lambda wrap: train(wrap(Cast(torch.bfloat16, torch.float16))))


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


TOPIC.row(
    "Scalar, empty, complex, channels_last",
    "test_ddp_zero_output_features test_ddp_complex_params test_grad_layout_1devicemodule_1replicaperprocess",
)(lambda wrap: train(wrap(Odd())))
TOPIC.row("A lazy layer without its shape")(lambda wrap: wrap(nn.LazyLinear(3)))


@TOPIC.row(
    "Sparse gradients",
    "test_sparse_gradients test_sparse_gradients_grad_is_view test_ddp_comm_hook_sparse_gradients",
    refused="sparse",
)
def _(wrap: Wrap) -> Any:
    model = wrap(nn.EmbeddingBag(10, 4, sparse=True, device=device()))
    loss(model(torch.arange(4, device=device()).view(2, 2) + dist.get_rank())).backward()
    return model.module.weight.grad.to_dense()
