"""Behaviours: ranks, copies, uneven inputs, options."""

# mypy: disable-error-code="no-untyped-call"

import copy
import io
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

from ..models import mlp, normed, tensors, train
from ..observe import Local, Wrap
from ..table import Topic

TOPIC = Topic("Ranks, copies, uneven inputs, options")


@TOPIC.row("process_group= of this rank alone")
def _(wrap: Wrap) -> Any:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return Local(train(wrap(normed(), process_group=groups[dist.get_rank()])))


TOPIC.row("process_group= without rank 1")(lambda wrap: wrap(mlp(), process_group=dist.new_group([0])) and None)
TOPIC.row(
    "Ranks with different shapes",
    "test_ddp_model_diff_shape_across_ranks test_verify_model_across_rank_without_logger",
    alone=True,
)(lambda wrap: tensors(wrap(nn.Linear(6, 8 + dist.get_rank()))))
TOPIC.row("Ranks with more or fewer parameters", "test_ddp_model_diff_num_params_across_ranks", alone=True)(
    lambda wrap: tensors(wrap(mlp()[: 1 + 2 * dist.get_rank()]))
)


@TOPIC.row("Ranks with different frozen shapes", alone=True, differs=("ranks differ", "! constructor"))
def _(wrap: Wrap) -> Any:
    frozen = nn.Linear(3, 3 + 20 * dist.get_rank()).requires_grad_(False)
    return tensors(wrap(nn.Sequential(*mlp(), frozen)))


@TOPIC.row("state_dict: names, into bare model", "test_save_load_checkpoint")
def _(wrap: Wrap) -> Any:
    model, other, bare = wrap(mlp()), wrap(mlp()), mlp()
    train(model)
    stored = copy.deepcopy(model.state_dict())
    names = list(stored)
    other.load_state_dict(stored)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(stored, "module.")
    bare.load_state_dict(stored)
    return names, tensors(bare), train(other), train(model)


@TOPIC.row("copy.deepcopy of the wrapper", refused="copied")
def _(wrap: Wrap) -> Any:
    return train(copy.deepcopy(wrap(mlp())))


@TOPIC.row("torch.save of the wrapper", "test_DistributedDataParallelCPU", refused="pickled")
def _(wrap: Wrap) -> Any:
    file = io.BytesIO()
    torch.save(wrap(mlp()), file)
    file.seek(0)
    return train(torch.load(file, weights_only=False))


@TOPIC.row(
    "Join: rank 1 has more batches",
    "test_ddp_join_model_equivalence test_ddp_uneven_inputs test_ddp_grad_div_uneven_inputs",
    refused="Join",
)
def _(wrap: Wrap) -> Any:
    model = wrap(mlp())
    with Join([model]):
        train(model, 2 + dist.get_rank())
    return tensors(model)


TOPIC.row("static_graph=True", "test_static_graph_api_cpu test_static_graph_multi_forward", refused="static_graph")(
    lambda wrap: train(wrap(mlp(), static_graph=True), 4)
)
TOPIC.row(
    "gradient_as_bucket_view=True", "test_DistributedDataParallelCPU_grad_is_view", refused="gradient_as_bucket_view"
)(lambda wrap: train(wrap(mlp(), gradient_as_bucket_view=True)))
