"""What the DDP constructor does to a model, and what it refuses."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import LaunchError, device, launch
from ddplab.runtime.torch_private import flight_records


@proves("ctor-broadcasts-state")
def test_the_constructor_copies_the_state_of_rank_zero():
    """Differently seeded ranks have different weights and statistics before, and those of rank 0 after."""

    def worker():
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(device())
        model[0].bias.requires_grad_(False)  # frozen parameters are copied too
        model[1].running_mean.normal_()
        before = [tensor.clone() for tensor in model.state_dict().values()]
        DistributedDataParallel(model)
        return before, list(model.state_dict().values())

    for ranks in (2, 3, 4):
        (of_rank_0, kept), *others = launch(worker, ranks)
        assert all(map(torch.equal, kept, of_rank_0))
        for before, after in others:
            assert not all(map(torch.equal, before, of_rank_0))
            assert all(map(torch.equal, after, of_rank_0))


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


@proves("ctor-verifies-shapes")
def test_a_rank_of_other_shapes_raises_and_keeps_its_values():
    """The last rank has a wider layer: it raises by itself, and its weights are still its own."""

    def worker():
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        model = nn.Linear(4, 5 if rank == last else 4).to(device())
        nn.init.constant_(model.weight, rank)
        try:
            DistributedDataParallel(model)
        finally:
            print("weight", model.weight[0, 0].item())

    for ranks in (2, 3, 4):
        with pytest.raises(LaunchError, match=r"\[5, 4\] appears not to match sizes of the same param") as failure:
            launch(worker, ranks)
        assert failure.value.rank == ranks - 1
        assert failure.value.outputs[-1] == f"weight {ranks - 1:.1f}\n"
