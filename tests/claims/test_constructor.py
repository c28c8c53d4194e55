"""The DDP constructor without its copy of rank 0."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.runtime.torch_private import flight_records


@proves("init-sync-off")
def test_init_sync_off_sends_nothing():
    """No collective; each rank keeps its weights, and the first backward averages gradients."""

    def worker():
        rank = dist.get_rank()
        layer = nn.Linear(1, 1, bias=False).to(device())
        nn.init.constant_(layer.weight, rank)
        before = len(flight_records())
        model = DistributedDataParallel(layer, init_sync=False)
        sent = len(flight_records()) - before
        model(torch.full((1, 1), rank + 1.0, device=device())).sum().backward()
        return sent, layer.weight.item(), layer.weight.grad.item()

    for ranks in (2, 3):
        mean = sum(range(1, ranks + 1)) / ranks
        found = launch(worker, ranks)
        assert [(sent, weight) for sent, weight, _ in found] == [(0, rank) for rank in range(ranks)]
        assert [gradient for *_, gradient in found] == pytest.approx([mean] * ranks)
