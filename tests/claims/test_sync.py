"""When gradients are reduced, to what, and how to skip it on purpose or by mistake."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.runtime.torch_private import flight_records


def wrapped(**options):
    """A model of two small layers, equal on all ranks, in DDP."""
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device()), **options)


def batches(rank, count):
    """Data that differ between ranks, and that every rank can make for any other."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(4, 8, generator=generator).to(device()) for _ in range(count)]


def gradient(module):
    return torch.cat([p.grad.flatten().cpu() for p in module.parameters()])


def agree(gradients):
    return all(torch.equal(gradients[0], other) for other in gradients[1:])


@pytest.mark.core
@proves("grads-equal-after-backward")
def test_gradients_are_equal_when_backward_returns():
    """Local gradients, seen by a tensor hook, differ; what ``.grad`` holds after backward is equal bit for bit."""

    def worker():
        model, local = wrapped(), []
        for p in model.parameters():
            p.register_hook(lambda grad: local.append(grad.flatten().cpu().clone()))
        model(batches(dist.get_rank(), 1)[0]).square().mean().backward()
        return torch.cat(local), gradient(model)

    for ranks in (2, 3, 4):
        local, reduced = zip(*launch(worker, ranks), strict=True)
        assert not agree(local)
        assert agree(reduced)


@proves("step-communicates-nothing")
def test_the_optimizer_step_issues_no_collective():
    """The flight recorder sees the all-reduce of each backward, and nothing from three kinds of optimizer."""

    def worker(optimizer_class):
        model = wrapped()
        optimizer, issued = optimizer_class(model.parameters(), lr=0.01), []
        for x in batches(dist.get_rank(), 3):
            model(x).square().mean().backward()
            before = len(flight_records())
            optimizer.step()
            issued += flight_records()[before:]
        return [entry.operation for entry in flight_records()].count("all_reduce"), issued

    for optimizer_class in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        assert launch(worker, 2, optimizer_class) == [(3, [])] * 2


@pytest.mark.core
@proves("gradient-is-mean")
def test_the_gradient_is_the_mean_over_ranks():
    """One process computes every rank's gradient by itself; their mean is what DDP leaves on each rank."""

    def worker(ranks):
        model, alone = wrapped(), []
        for rank in range(ranks):
            model.zero_grad()
            model.module(batches(rank, 1)[0]).square().sum().backward()
            alone.append(gradient(model))
        model.zero_grad()
        model(batches(dist.get_rank(), 1)[0]).square().sum().backward()
        return gradient(model), torch.stack(alone).mean(dim=0)

    for ranks in (2, 3, 4):
        for reduced, mean in launch(worker, ranks, ranks):
            torch.testing.assert_close(reduced, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.core
@proves("no-sync-acts-on-forward")
def test_no_sync_takes_effect_in_the_forward():
    """Around backward only, the gradients are still reduced; around the forward only, they are not."""

    def worker(around_forward, around_backward):
        model = wrapped()
        with model.no_sync() if around_forward else contextlib.nullcontext():
            loss = model(batches(dist.get_rank(), 1)[0]).square().mean()
        with model.no_sync() if around_backward else contextlib.nullcontext():
            loss.backward()
        return gradient(model)

    for ranks in (2, 3):
        assert agree(launch(worker, ranks, False, False))
        assert agree(launch(worker, ranks, False, True))
        assert not agree(launch(worker, ranks, True, False))
        assert not agree(launch(worker, ranks, True, True))


@proves("no-sync-accumulates")
def test_the_next_synchronizing_backward_reduces_the_accumulated_sum():
    """Three micro-batches under no_sync and one outside: a single all-reduce, of the sum of all four."""

    def worker(ranks):
        model, copy = wrapped(), wrapped().module
        for rank in range(ranks):
            for x in batches(rank, 4):
                (copy(x).square().mean() / ranks).backward()
        *most, last = batches(dist.get_rank(), 4)
        before = len(flight_records())
        with model.no_sync():
            for x in most:
                model(x).square().mean().backward()
        silent = len(flight_records()) == before
        model(last).square().mean().backward()
        operations = [entry.operation for entry in flight_records()[before:]]
        return silent, operations.count("all_reduce"), gradient(model), gradient(copy)

    for ranks in (2, 3):
        for silent, allreduces, accumulated, expected in launch(worker, ranks, ranks):
            assert (silent, allreduces) == (True, 1)
            torch.testing.assert_close(accumulated, expected, rtol=1e-5, atol=1e-6)


@proves("module-bypasses-ddp")
def test_calling_the_inner_module_skips_the_synchronization():
    """Two training steps through ``ddp.module``: no error, no collective, and the parameters have drifted apart."""

    def worker(through_ddp):
        model = wrapped()
        optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), len(flight_records())
        for x in batches(dist.get_rank(), 2):
            optimizer.zero_grad()
            (model if through_ddp else model.module)(x).square().mean().backward()
            optimizer.step()
        weights = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
        return weights, len(flight_records()) - before

    for ranks in (2, 3):
        weights, _ = zip(*launch(worker, ranks, True), strict=True)
        assert agree(weights)
        weights, issued = zip(*launch(worker, ranks, False), strict=True)
        assert not any(issued)
        assert not agree(weights)
