"""What DDP leaves out where a program asks it to."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch


def name_them(net, names):
    net._ddp_params_and_buffers_to_ignore = names


@proves("ignored-tensors-stay-local")
@proves("ignored-parameters-stay-local")
@pytest.mark.parametrize("ignore", [DDP._set_params_and_buffers_to_ignore_for_model, name_them])
def test_tensors_that_ddp_is_told_to_ignore_stay_local(ignore):
    """A named buffer and a named layer keep this rank's values and gradients; the other layer is rank 0's, averaged."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.own = (nn.Linear(1, 1, bias=False) for _ in range(2))
            self.register_buffer("cache", torch.zeros(1))

        def forward(self, x):
            return self.shared(x) + self.own(x)

    def worker():
        rank, net = dist.get_rank(), Net().to(device())
        for tensor in (net.shared.weight, net.own.weight, net.cache):
            tensor.data.fill_(rank)
        ignore(net, ["own.weight", "cache"])
        model = DDP(net)
        for _ in range(3):
            model.zero_grad()
            model(torch.full((1, 1), rank + 1.0, device=device())).sum().backward()
        tensors = net.shared.weight, net.shared.weight.grad, net.own.weight, net.own.weight.grad, net.cache
        return [tensor.item() for tensor in tensors]

    for ranks in (2, 3):
        mean = sum(range(1, ranks + 1)) / ranks
        for rank, found in enumerate(launch(worker, ranks)):
            assert found == pytest.approx([0, mean, rank, rank + 1, rank])
