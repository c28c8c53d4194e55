"""The museum of wrong DDP, second half: data order, start, evaluation, clipping and losses."""

from functools import partial

import torch
import torch.distributed as dist
from patience import launch, patient_group, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import device
from ddplab.labs.gaps import flat_gradients, flat_weights, gap


def network(seed=0, middle=nn.Tanh):
    """Two small layers in float64, so that rounding is plain to tell."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), middle(), nn.Linear(8, 1)).double().to(device())


def shards(parts):
    """Inputs of shape [parts, 6, 4] and targets of shape [parts, 6, 1], equal on all ranks."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(parts, 6, 4, dtype=torch.float64, generator=generator).to(device())
    return x, x.sum(dim=2, keepdim=True).sin() + 1


def train(model, make_optimizer, steps):
    """Train on this rank's shard; return the weights before the first step and after each, and all gradients."""
    x, y = (whole[dist.get_rank()] for whole in shards(dist.get_world_size()))
    optimizer, weights, gradients = make_optimizer(model.parameters(), lr=0.05), [flat_weights(model)], []
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        weights.append(flat_weights(model))
        gradients.append(flat_gradients(model))
    return weights, gradients


def gaps(of_ranks):
    """The gap between ranks at each moment."""
    return [gap(moment) for moment in zip(*of_ranks, strict=True)]


def far(a, b):
    return (a - b).norm() > 0.01 * b.norm()


def close(a, b):
    return (a - b).norm() < 1e-12 * b.norm()


@proves("museum-missing-set-epoch")
def test_without_set_epoch_every_epoch_is_the_first():
    """Four epochs on each rank: all the same without the call, no two the same with it."""

    def worker(set_epoch):
        sampler = DistributedSampler(range(24), shuffle=True)
        loader, epochs = DataLoader(range(24), 4, sampler=sampler), []
        for epoch in range(4):
            if set_epoch:
                sampler.set_epoch(epoch)
            epochs.append(tuple(torch.cat(list(loader)).tolist()))
        return len(set(epochs))

    for ranks in (2, 3):
        assert launch(worker, ranks, False) == [1] * ranks
        assert launch(worker, ranks, True) == [4] * ranks


@proves("museum-different-seeds")
def test_weights_drawn_after_wrapping_stay_as_far_apart_as_they_start():
    """Ten steps with two optimizers: gradients are equal bit for bit, the gap in weights moves by rounding only."""

    def worker(init_first, make_optimizer):
        model = DDP(network(seed=dist.get_rank()))
        if not init_first:
            torch.manual_seed(dist.get_rank())
            model.module[2].reset_parameters()
        return train(model, make_optimizer, 10)

    for ranks, make_optimizer in (2, torch.optim.SGD), (3, torch.optim.SGD), (3, torch.optim.Adam):
        weights, gradients = zip(*launch(worker, ranks, False, make_optimizer), strict=True)
        start, *later = gaps(weights)
        assert start > 0.1
        assert all(abs(at_step - start) < 1e-12 for at_step in later)
        assert not any(gaps(gradients))
        weights, _ = zip(*launch(worker, ranks, True, make_optimizer), strict=True)
        assert not any(gaps(weights))


@proves("museum-rank-0-only-forward")
def test_a_forward_of_the_wrapper_on_rank_0_alone_stalls_all_at_the_next_barrier():
    """The group's timeout ends the wait; without BatchNorm, or past the wrapper, all ranks get through."""

    def worker(layer, through_wrapper, hangs):
        group = patient_group()
        model = DDP(network(middle=layer), process_group=group)
        for _ in range(3):
            model(shards(1)[0][0]).mean().backward()
        if hangs:
            shorten(group, 1)
        try:
            if dist.get_rank() == 0:
                at = "evaluation"
                with torch.no_grad():
                    (model if through_wrapper else model.module)(shards(1)[0][0])
            at = "barrier"
            dist.barrier(group)
        except RuntimeError:
            return at
        return "behind both"

    def norm():
        return nn.BatchNorm1d(8)

    cases = [(2, norm, True, True), (3, norm, True, True)]
    cases += [(2, norm, False, False), (3, norm, False, False), (2, nn.Tanh, True, False)]
    two, three, *others = side_by_side(*(partial(launch, worker, *case) for case in cases))
    assert two == ["evaluation", "barrier"]
    assert three == ["evaluation", "barrier", "barrier"]
    for through in others:
        assert through == ["behind both"] * len(through)


@proves("museum-clipping-before-the-sync")
def test_clipping_before_the_sync_gives_all_ranks_the_same_wrong_gradient():
    """By norm between micro-batches, by value in a tensor hook; the right answer is that of one process, clipped."""

    def by_norm(early):
        model, rank, ranks = DDP(network()), dist.get_rank(), dist.get_world_size()
        x, y = shards(2 * ranks)
        with model.no_sync():
            (nn.functional.mse_loss(model(x[rank]), y[rank]) / 2).backward()
        if early:
            clip_grad_norm_(model.parameters(), 0.1)
        (nn.functional.mse_loss(model(x[ranks + rank]), y[ranks + rank]) / 2).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        return model, whole(x, y, clip_grad_norm_, 0.1)

    def by_value(early):
        model, rank = DDP(network()), dist.get_rank()
        x, y = shards(dist.get_world_size())
        if early:
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        nn.functional.mse_loss(model(x[rank]), y[rank]).backward()
        clip_grad_value_(model.parameters(), 0.1)
        return model, whole(x, y, clip_grad_value_, 0.1)

    def whole(x, y, clip, threshold):
        net = network()
        nn.functional.mse_loss(net(x), y).backward()
        clip(net.parameters(), threshold)
        return net

    def worker(clipped, early):
        return tuple(map(flat_gradients, clipped(early)))

    for clipped in (by_norm, by_value):
        for ranks in (2, 3):
            gradients, (right, *_) = zip(*launch(worker, ranks, clipped, True), strict=True)
            assert gap(gradients) == 0
            assert far(gradients[0], right)
            for gradient, right in launch(worker, ranks, clipped, False):
                assert close(gradient, right)


@proves("museum-local-loss-as-global")
def test_a_scheduler_that_is_fed_local_losses_makes_the_ranks_drift():
    """Samples drawn anew in each step make every rank's loss rise now and then, on each at another time."""

    def worker(reduce_loss):
        model, ranks = DDP(network()), dist.get_world_size()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(10):
            x = torch.randn(4, 4, dtype=torch.float64, generator=generator).to(device())
            loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metric = loss.detach()
            if reduce_loss:
                dist.all_reduce(metric)
                metric /= ranks
            scheduler.step(metric)
        return optimizer.param_groups[0]["lr"], flat_weights(model)

    for ranks in (2, 3):
        rates, weights = zip(*launch(worker, ranks, False), strict=True)
        assert len(set(rates)) > 1
        assert gap(weights) > 1e-3
        rates, weights = zip(*launch(worker, ranks, True), strict=True)
        assert len(set(rates)) == 1
        assert gap(weights) == 0


@proves("museum-mean-of-token-means")
def test_the_mean_of_token_means_is_not_the_mean_over_tokens():
    """Two micro-batches per rank with 1, 2, 3, … tokens; the right answer is one process with all tokens at once."""

    def worker(count_tokens):
        model, rank, ranks = DDP(network()), dist.get_rank(), dist.get_world_size()
        x, y = shards(2 * ranks)
        kept = torch.arange(6, device=device()) <= torch.arange(2 * ranks, device=device()).view(-1, 1)
        total = kept[2 * rank : 2 * rank + 2].sum()
        dist.all_reduce(total)
        for i in (2 * rank, 2 * rank + 1):
            losses = (model(x[i]) - y[i]).square()[kept[i]]
            (losses.sum() * ranks / total if count_tokens else losses.mean() / 2).backward()
        net = network()
        (net(x) - y).square()[kept].mean().backward()
        return flat_gradients(model), flat_gradients(net)

    for ranks in (2, 3):
        for gradient, right in launch(worker, ranks, False):
            assert far(gradient, right)
        for gradient, right in launch(worker, ranks, True):
            assert close(gradient, right)


@proves("museum-loading-on-rank-0-after-wrapping")
def test_what_rank_0_loads_after_wrapping_reaches_no_other_rank():
    """The gap is there after loading and after each of ten steps; loaded before wrapping, all ranks start from it."""

    def worker(checkpoint, load_first):
        net = network()
        if load_first and dist.get_rank() == 0:
            net.load_state_dict(checkpoint)
        model = DDP(net)
        if not load_first and dist.get_rank() == 0:
            model.module.load_state_dict(checkpoint)
        return train(model, torch.optim.SGD, 10)[0]

    checkpoint = network(seed=1).cpu().state_dict()
    loaded = flat_weights(network(seed=1))
    for ranks in (2, 3):
        first, *others = weights = launch(worker, ranks, checkpoint, False)
        assert torch.equal(first[0], loaded)
        assert all(torch.equal(other[0], flat_weights(network())) for other in others)
        assert min(gaps(weights)) > 0.1
        weights = launch(worker, ranks, checkpoint, True)
        assert torch.equal(weights[-1][0], loaded)
        assert not any(gaps(weights))
