"""Buffers: who has which running statistics, and when they are copied."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import LaunchError, device, launch


def watched_norm():
    """A BatchNorm in DDP; the list returned with it gets the running mean as each forward of the BatchNorm starts."""
    model, at_start = DDP(nn.BatchNorm1d(1).to(device())), []
    norm = model.module
    norm.register_forward_pre_hook(lambda *_: at_start.append(norm.running_mean.item()))
    return model, at_start


def own_data():
    return torch.randn(8, 1, device=device()) + dist.get_rank()


@proves("buffers-synced-at-forward")
def test_running_statistics_differ_after_a_step_and_are_rank_zeros_in_the_next_forward():
    """After each step all ranks have their own running mean; as the next forward starts they have rank 0's."""

    def worker():
        torch.manual_seed(dist.get_rank())
        model, at_start = watched_norm()
        optimizer, at_end = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(3):
            model(own_data()).square().sum().backward()
            optimizer.step()
            at_end.append(model.module.running_mean.item())
        return at_start[1:], at_end[:-1]  # the start of each forward, and the end of the step before it

    for ranks in (2, 3, 4):
        starts, ends = zip(*launch(worker, ranks), strict=True)
        assert all(len(set(values)) == ranks for values in zip(*ends, strict=True))
        assert all(start == ends[0] for start in starts)


@proves("buffers-not-synced-after-no-sync")
def test_the_forward_after_one_under_no_sync_copies_no_buffers():
    """The forward after one under no_sync or no_grad starts with the ranks apart; the one after it is copied again."""

    def worker(no_grad):
        torch.manual_seed(dist.get_rank())
        model, at_start = watched_norm()
        for quiet in (False, True, False, False):
            with torch.no_grad() if quiet and no_grad else torch.enable_grad():
                if quiet and not no_grad:
                    with model.no_sync():
                        model(own_data()).square().sum().backward()
                elif quiet:
                    model(own_data())
                else:
                    model(own_data()).square().sum().backward()
        return at_start

    for no_grad in (False, True):
        first, second = launch(worker, 2, no_grad)
        assert [a == b for a, b in zip(first, second, strict=True)] == [True, True, False, True]


@proves("ignored-tensors-stay-local")
def test_tensors_that_ddp_is_told_to_ignore_stay_local():
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
        DDP._set_params_and_buffers_to_ignore_for_model(net, ["own.weight", "cache"])
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


@proves("syncbn-needs-gpu")
def test_sync_batchnorm_refuses_cpu_tensors_in_training():
    """A forward in training mode raises on a CPU tensor; in eval mode it does not."""

    def worker(training):
        norm = nn.SyncBatchNorm(1).train(training)
        return norm(torch.ones(4, 1)).shape[0]

    assert launch(worker, 2, False) == [4, 4]
    with pytest.raises(LaunchError, match="SyncBatchNorm expected input tensor to be on GPU"):
        launch(worker, 2, True)
