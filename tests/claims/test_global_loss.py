"""Losses that look at the samples of all ranks: what is gathered, what carries a gradient, and by what factor."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch


def encoder():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double().to(device())


def samples(rank):
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)).to(device())


def contrast(features):
    """Each sample against all others: no sum of losses of parts."""
    return (features @ features.T).logsumexp(1).mean()


def gathered(own, how):
    """The features of all ranks, with the gradient that ``how`` leaves."""
    if how == "differentiable":
        return torch.cat(dist_nn.all_gather(own))
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.detach())
    if how == "own slice":
        parts[dist.get_rank()] = own
    return torch.cat(parts)


@proves("global-loss-gradients")
def test_gradients_of_a_loss_over_all_ranks_samples():
    """Against one process with all samples: whole with the differentiable gather, a p-th with the own slice alone."""

    def worker(how):
        model = DDP(encoder())
        contrast(gathered(model(samples(dist.get_rank())), how)).backward()
        return model.module.weight.grad

    for ranks in (2, 3):
        net = encoder()
        contrast(net(torch.cat([samples(rank) for rank in range(ranks)]))).backward()
        whole = net.weight.grad
        for how, share in (("differentiable", 1), ("own slice", 1 / ranks)):
            for gradient in launch(worker, ranks, how):
                torch.testing.assert_close(gradient, whole * share)


@proves("reduced-loss-has-the-local-gradient")
def test_a_loss_that_is_all_reduced_first_has_its_local_gradient():
    """The value becomes the sum over ranks; backward knows nothing of it."""

    def worker(reduce):
        model, x = encoder(), samples(dist.get_rank())
        loss = model(x).square().mean()
        if reduce:
            dist.all_reduce(loss)
        loss.backward()
        return loss.item(), model.weight.grad

    for ranks in (2, 3):
        alone, reduced = launch(worker, ranks, False), launch(worker, ranks, True)
        for (_, local), (total, gradient) in zip(alone, reduced, strict=True):
            assert abs(total - sum(loss for loss, _ in alone)) < 1e-12
            assert torch.equal(gradient, local)
