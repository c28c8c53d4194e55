"""Average the gradients over all ranks: a solution"""

import torch
import torch.distributed as dist
from torch import nn


def sync_gradients(module: nn.Module) -> None:
    """Leave in every `.grad` of `module` its mean over all ranks."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        return

    # Ranks may lack different gradients, but all must make the same calls.
    # So they agree first: how many ranks have a gradient for each parameter?
    has = [float(p.grad is not None) for p in parameters]
    users = torch.tensor(has, device=parameters[0].device)
    dist.all_reduce(users)

    for parameter, used in zip(parameters, users.tolist(), strict=True):
        if not used:
            continue  # by no rank, and every rank knows it: None stays None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # this rank's part of the sum
        dist.all_reduce(parameter.grad)  # in place: the sum, on every rank
        parameter.grad /= dist.get_world_size()  # the mean, over all ranks, not the users
