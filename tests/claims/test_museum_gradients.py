"""The museum of wrong DDP, exhibits 1 to 7: each wrong version against its fix, on real ranks."""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.labs.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.torch_private import flight_records

RANKS = (2, 3, 4)


def network():
    """Equal on all ranks; in float64, so that rounding is plain to tell from a difference."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double().to(device())


def batches(rank, count):
    """Data that differ between ranks, and that every rank can make for any other."""
    generator = torch.Generator().manual_seed(1 + rank)
    return [torch.randn(6, 4, dtype=torch.float64, generator=generator).to(device()) for _ in range(count)]


def allreduces():
    return sum(entry.operation == "all_reduce" for entry in flight_records())


@proves("museum-reduces-the-parameter")
def test_a_hook_on_the_parameter_equals_weights_in_backward_only():
    """Three steps: weights are equal when backward returns with either hook, and after the step with one of them."""

    def train(reduce_gradient):
        def hook(p):
            tensor = p.grad if reduce_gradient else p.data
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()

        model = network()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        optimizer, after_backward, after_step = torch.optim.SGD(model.parameters(), lr=0.1), [], []
        for x in batches(dist.get_rank(), 3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            after_backward.append(flat_weights(model))
            optimizer.step()
            after_step.append(flat_weights(model))
        return after_backward, after_step

    for ranks in RANKS:
        for reduce_gradient in (False, True):
            after_backward, after_step = zip(*launch(train, ranks, reduce_gradient), strict=True)
            assert all(gap(weights) == 0 for weights in zip(*after_backward, strict=True))
            for weights in zip(*after_step, strict=True):
                assert (gap(weights) == 0) == reduce_gradient


@proves("museum-no-sync-around-backward")
def test_no_sync_around_backward_wastes_all_reduces():
    """Four micro-batches, one bucket: four all-reduces or one, and the same gradient on every rank."""

    def accumulate(around_forward):
        model, before = DDP(network()), allreduces()
        *most, last = batches(dist.get_rank(), 4)
        for x in most:
            with model.no_sync() if around_forward else contextlib.nullcontext():
                loss = model(x).square().mean()
            with model.no_sync():
                loss.backward()
        model(last).square().mean().backward()
        return flat_gradients(model), allreduces() - before

    for ranks in RANKS:
        wrong, wasted = zip(*launch(accumulate, ranks, False), strict=True)
        fixed, needed = zip(*launch(accumulate, ranks, True), strict=True)
        assert set(wasted) == {4}
        assert set(needed) == {1}
        assert gap(wrong) == gap(fixed) == 0
        torch.testing.assert_close(wrong[0], fixed[0])


@proves("museum-step-as-sync")
def test_the_step_does_not_make_up_for_a_missing_backward():
    """All micro-batches under no_sync, or all but the last: what step() sends, and whether ranks are equal after it."""

    def train(last_outside):
        model, in_step = DDP(network()), 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            *most, last = batches(dist.get_rank(), 4)
            with model.no_sync():
                for x in most:
                    model(x).square().mean().backward()
            with contextlib.nullcontext() if last_outside else model.no_sync():
                model(last).square().mean().backward()
            before = len(flight_records())
            optimizer.step()
            in_step += len(flight_records()) - before
        return flat_weights(model), in_step

    for ranks in RANKS:
        for last_outside in (False, True):
            weights, in_step = zip(*launch(train, ranks, last_outside), strict=True)
            assert set(in_step) == {0}
            assert (gap(weights) == 0) == last_outside


@proves("museum-calls-the-inner-module")
def test_ranks_that_train_through_the_inner_module_evaluate_differently():
    """Three steps, then the loss of each rank on one and the same batch, and how many all-reduces there were."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x)

        def loss(self, x):
            return self(x).square().mean()

    def train(through_wrapper):
        ddp, before = DDP(Model()), allreduces()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x in batches(dist.get_rank(), 3):
            optimizer.zero_grad()
            loss = ddp(x).square().mean() if through_wrapper else ddp.module.loss(x)
            loss.backward()
            optimizer.step()
        return ddp.module.loss(batches(99, 1)[0]).item(), allreduces() - before

    for ranks in RANKS:
        losses, issued = zip(*launch(train, ranks, False), strict=True)
        assert len(set(losses)) == ranks
        assert set(issued) == {0}
        losses, issued = zip(*launch(train, ranks, True), strict=True)
        assert len(set(losses)) == 1
        assert set(issued) == {3}


@proves("museum-two-forwards-two-backwards")
def test_two_forwards_then_two_backwards_leave_gradients_different():
    """Two backwards, one of the sum, or each behind its forward: gradients, and how many all-reduces they took."""

    def worker(order):
        model, before = DDP(network()), allreduces()
        x, y = batches(dist.get_rank(), 2)
        if order == "in turn":
            model(x).square().mean().backward()
            model(y).square().mean().backward()
        else:
            first, second = model(x).square().mean(), model(y).square().mean()
            for loss in [first, second] if order == "two backwards" else [first + second]:
                loss.backward()
        return flat_gradients(model), allreduces() - before

    for ranks in RANKS:
        fixed = {}
        orders = {"two backwards": 1, "one backward": 1, "in turn": 2}
        runs = side_by_side(*(partial(launch, worker, ranks, order) for order in orders))
        for (order, expected), results in zip(orders.items(), runs, strict=True):
            gradients, issued = zip(*results, strict=True)
            assert set(issued) == {expected}
            assert (gap(gradients) == 0) == (order != "two backwards")
            fixed[order] = gradients[0]
        torch.testing.assert_close(fixed["one backward"], fixed["in turn"])


@proves("museum-backward-twice")
def test_a_second_backward_over_one_forward_stays_local():
    """What it leaves is the mean gradient of the first loss plus the rank's own gradient of the second."""

    def worker(twice):
        rank, ranks, model, alone = dist.get_rank(), dist.get_world_size(), DDP(network()), network()

        def losses(model, at):
            out = model(batches(at, 1)[0])
            return out.square().mean(), out.abs().mean()

        first, second = losses(model, rank)
        if twice:
            first.backward(retain_graph=True)
            second.backward()
        else:
            (first + second).backward()

        for at in range(ranks):  # the same by hand, on one copy of the model
            first, second = losses(alone, at)
            (first / ranks).backward(retain_graph=True)
            if twice and at == rank:
                second.backward()
            if not twice:
                (second / ranks).backward()
        return flat_gradients(model), flat_gradients(alone)

    for ranks in RANKS:
        for twice in (True, False):
            gradients, by_hand = zip(*launch(worker, ranks, twice), strict=True)
            assert (gap(gradients) == 0) == (not twice)
            torch.testing.assert_close(gradients, by_hand)


@proves("museum-averaging-twice")
def test_averaging_twice_is_off_by_the_world_size_and_adam_hides_it():
    """One process with all batches tells the right gradient and weights; ranks agree with each other in any case."""

    def train(optimizer_class, data_of, divisor):
        model = DDP(network())
        optimizer, first = optimizer_class(model.parameters(), lr=0.02), None
        x = torch.cat([batches(rank, 1)[0] for rank in data_of or [dist.get_rank()]])
        for _ in range(10):
            optimizer.zero_grad()
            ((model(x) - 1).square().mean() / divisor).backward()
            first = flat_gradients(model) if first is None else first
            optimizer.step()
        return first, flat_weights(model)

    for ranks in RANKS:
        off = {}
        for optimizer in (torch.optim.SGD, torch.optim.AdamW):
            [(gradient, answer)], *divided = side_by_side(
                partial(launch, train, 1, optimizer, range(ranks), 1),
                partial(launch, train, ranks, optimizer, None, ranks),
                partial(launch, train, ranks, optimizer, None, 1),
            )
            for divisor, results in zip((ranks, 1), divided, strict=True):
                first, weights = zip(*results, strict=True)
                torch.testing.assert_close(divisor * first[0], gradient)
                assert gap(weights) == 0
                off[optimizer, divisor] = gap([weights[0], answer])
            assert off[optimizer, 1] < 1e-12
        assert off[torch.optim.SGD, ranks] > 1e-2
        assert 1e-12 < off[torch.optim.AdamW, ranks] < 1e-4
