"""Claims of the internals chapter that belong to no single lab: orders, traps and 2.13's flags."""

import contextlib
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.runtime.needs import needs


def watched(model, **options):
    """Wrap ``model`` in DDP; the list returned with it gets every bucket that is launched, as parameter shapes."""
    ddp, launched = DistributedDataParallel(model.to(device()), **options), []

    def hook(state, bucket):
        launched.append([tuple(parameter.shape) for parameter in bucket.parameters()])
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, hook)
    return ddp, launched


def step(ddp, width=64, rows=2):
    ddp(torch.ones(rows, width, device=device())).sum().backward()


class Branches(nn.Module):
    """Two layers of different shapes, used in the order that the caller names."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(64, 48, bias=False)
        self.slim = nn.Linear(64, 32, bias=False)

    def forward(self, x, slim_first):
        layers = [self.slim, self.wide] if slim_first else [self.wide, self.slim]
        return sum(layer(x).sum() for layer in layers)


@proves("rebuilt-order-is-rank-zeros")
def test_rank_zero_decides_the_rebuilt_order():
    """Ranks use two layers in opposite orders; after the rebuild all launch them in rank 0's order."""

    def worker():
        ddp, launched = watched(Branches(), bucket_cap_mb=0.001)
        ready, x = [], torch.ones(2, 64, device=device())
        for parameter in ddp.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: ready.append([tuple(p.shape)]))
        for _ in range(2):
            ready.clear(), launched.clear()
            ddp(x, slim_first=dist.get_rank() > 0).backward()
        return ready, launched

    for ranks in (2, 3):
        (of_rank_0, _), *others = results = launch(worker, ranks)
        assert all(ready == of_rank_0[::-1] for ready, _ in others)  # rank 0 is outvoted
        assert all(launched == of_rank_0 for _, launched in results)


@proves("grad-hooks-see-local-gradients")
def test_a_gradient_hook_sees_the_local_gradient():
    """A post-accumulate hook reads this rank's own gradient; after backward ``.grad`` holds the mean."""

    def worker(views):
        rank, seen = dist.get_rank(), []
        model = nn.Linear(1, 1, bias=False).to(device())
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=views)
        weight = ddp.module.weight
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
        ddp(torch.full((1, 1), rank + 1.0, device=device())).sum().backward()
        return seen, weight.grad.item()

    for views in (False, True):
        assert launch(worker, 2, views) == [([1.0], 1.5), ([2.0], 1.5)]
        assert launch(worker, 3, views) == [([1.0], 2.0), ([2.0], 2.0), ([3.0], 2.0)]


@pytest.mark.core
@proves("one-backward-per-forward")
def test_two_forwards_then_two_backwards_synchronize_once():
    """The first backward disarms the reducer, so what the second adds stays local; one backward of the sum is fine."""

    def worker():
        x = torch.full((1, 1), dist.get_rank() + 1.0, device=device())
        ddp, launched = watched(nn.Linear(1, 1, bias=False))
        first, second = ddp(x).sum(), ddp(x).sum()
        first.backward()
        after_first = ddp.module.weight.grad.item()
        second.backward()
        after_second, launches = ddp.module.weight.grad.item(), len(launched)
        ddp.zero_grad()
        (ddp(x).sum() + ddp(x).sum()).backward()
        return launches, after_first, after_second, ddp.module.weight.grad.item()

    for ranks in (2, 3):
        mean = (ranks + 1) / 2
        assert launch(worker, ranks) == [(1, mean, mean + 1.0 + rank, 2 * mean) for rank in range(ranks)]


@proves("backward-per-head")
def test_a_backward_for_each_head_raises_or_stays_local():
    """Two heads on one encoder, two ranks, at the defaults and with each of the options that silence the error."""

    def worker(options):
        class Heads(nn.ModuleDict):
            def forward(self, x):
                code = self["encoder"](x)
                return self["first"](code), self["second"](code)

        model = Heads({name: nn.Linear(2, 2) for name in ("encoder", "first", "second")}).to(device())
        ddp = DistributedDataParallel(model, **options)
        first, second = ddp(torch.full((1, 2), dist.get_rank() + 1.0, device=device()))
        first.sum().backward(retain_graph=True)
        try:
            second.sum().backward()
        except RuntimeError as error:
            return str(error)
        return model["encoder"].weight.grad.tolist()

    for message in launch(worker, 2, {}):
        assert "Expected to mark a variable ready only once" in message
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        one, other = launch(worker, 2, options)
        assert isinstance(one, list)
        assert one != other


@proves("static-graph-first-backward-synchronizes")
def test_a_static_graph_wants_a_first_backward_that_synchronizes():
    """Two accumulation steps: the backward under ``no_sync`` raises if it is the first of all."""

    def worker(first_synchronizes):
        ddp, x = DistributedDataParallel(nn.Linear(2, 1).to(device()), static_graph=True), torch.ones(1, 2).to(device())
        if first_synchronizes:
            ddp(x).sum().backward()
        try:
            for _ in range(2):
                with ddp.no_sync():
                    ddp(x).sum().backward()
                ddp(x).sum().backward()
        except RuntimeError as error:
            return str(error)
        return "nothing raised"

    assert launch(worker, 2, True) == ["nothing raised"] * 2
    for message in launch(worker, 2, False):
        assert message.startswith("expect_autograd_hooks_ INTERNAL ASSERT FAILED")


def accumulate(ddp, batches, loss_of):
    """Add up the gradient of the mean loss over ``batches``; synchronize once, with the last of them."""
    for i, batch in enumerate(batches):
        last = i + 1 == len(batches)
        with contextlib.nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp(batch)) / len(batches)
            loss.backward()


@pytest.mark.core
@proves("accumulation-pattern")
def test_the_accumulation_pattern_synchronizes_once_and_gives_the_mean():
    """The function above on 2, 3 and 4 ranks: one launch of the one bucket, and the mean over all micro-batches."""

    def worker():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        everything = torch.randn(ranks, 3, 8, 4, generator=torch.Generator().manual_seed(0)).to(device())
        layer = nn.Linear(4, 1, bias=False)
        ddp, launched = watched(layer)
        accumulate(ddp, everything[rank], lambda out: out.square().mean())
        reference = torch.autograd.grad(layer(everything).square().mean(), layer.weight)[0]
        return len(launched), (layer.weight.grad - reference).abs().max().item()

    for ranks in (2, 3, 4):
        for launches, error in launch(worker, ranks):
            assert launches == 1
            assert error < 1e-6


@proves("forward-flag-keeps-init-sync")
def test_forward_sync_buffers_false_still_copies_buffers_at_construction():
    """2.13: ``forward_sync_buffers=False`` copies buffers once, the deprecated ``broadcast_buffers=False`` never."""
    needs(torch="2.13")  # the first that has the flag

    def worker(**options):
        warnings.simplefilter("ignore")
        norm = nn.BatchNorm1d(4).to(device())
        norm.running_mean.fill_(float(dist.get_rank()))
        return DistributedDataParallel(norm, **options).module.running_mean.mean().item()

    assert launch(lambda: worker(forward_sync_buffers=False), 2) == [0.0, 0.0]
    assert launch(lambda: worker(broadcast_buffers=False), 2) == [0.0, 1.0]


def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(tensor, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@proves("averaging-hook")
def test_an_averaging_hook_does_what_ddp_does():
    """The hook above, with its annotations, against no hook: 2 divides exactly, 3 rounds in another place."""

    def worker():
        gradients = []
        for hook in (None, average):
            torch.manual_seed(0)
            ddp = DistributedDataParallel(nn.Linear(8, 8).to(device()))
            if hook:
                ddp.register_comm_hook(None, hook)
            torch.manual_seed(dist.get_rank())
            ddp(torch.randn(4, 8).to(device())).square().mean().backward()
            gradients.append(ddp.module.weight.grad)
        return torch.equal(*gradients), torch.allclose(*gradients, rtol=1e-5, atol=1e-7)

    assert launch(worker, 2) == [(True, True)] * 2
    for ranks in (3, 4):
        assert all(close for _, close in launch(worker, ranks))


@proves("different-models-raise")
def test_a_different_number_of_parameters_raises_with_both_counts():
    """Rank 1 has one parameter more: every rank raises, and says how many it has and how many another one has."""

    def worker():
        try:
            DistributedDataParallel(nn.Linear(2, 2, bias=dist.get_rank() == 1).to(device()))
        except RuntimeError as error:
            return re.search(r"has (\d) params, .* inconsistent (\d) params", str(error)).groups()

    for ranks in (2, 3):
        assert launch(worker, ranks) == [("2", "1") if rank == 1 else ("1", "2") for rank in range(ranks)]


@proves("buckets-keep-the-parameter-dtype")
def test_buckets_have_the_dtype_of_the_parameters():
    """Autocast computes in bf16 and still reduces fp32; a module converted to bf16 is reduced in bf16."""

    def worker(dtype):
        dtypes = []

        def hook(state, bucket):
            dtypes.append(bucket.buffer().dtype)
            return allreduce_hook(None, bucket)

        ddp = DistributedDataParallel(nn.Linear(8, 8).to(device(), dtype))
        ddp.register_comm_hook(None, hook)
        with torch.autocast(device().type, dtype=torch.bfloat16, enabled=dtype == torch.float32):
            out = ddp(torch.ones(2, 8, device=device(), dtype=dtype))
        out.float().sum().backward()
        return out.dtype, dtypes

    assert launch(worker, 2, torch.float32) == [(torch.bfloat16, [torch.float32])] * 2
    assert launch(worker, 2, torch.bfloat16) == [(torch.bfloat16, [torch.bfloat16])] * 2


@proves("last-bucket-can-be-the-small-one")
def test_an_environment_variable_moves_the_small_bucket_to_the_end():
    """Eight layers of 1 MiB: by default the first rebuilt bucket is the small one, with the variable the last."""

    def worker():
        ddp, launched = watched(nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]))
        step(ddp, width=512)
        launched.clear()
        step(ddp, width=512)
        return [len(bucket) for bucket in launched]

    assert launch(worker, 2) == [[1, 7]] * 2
    assert launch(worker, 2, env={"DDP_SET_LAST_BUCKET_CAP": "1"}) == [[7, 1]] * 2


@proves("output-outside-the-loss")
def test_an_output_outside_the_loss_makes_its_parameters_unused():
    """Two outputs, one in the loss: where each setting stops, or what it leaves as the other layer's gradient."""

    class TwoOutputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    def worker(options):
        ddp = DistributedDataParallel(TwoOutputs().to(device()), **options)
        for step in (1, 2, 3, 4):
            try:
                used, _unused = ddp(torch.ones(1, 2, device=device()))
            except RuntimeError as error:
                return f"forward {step}", "Expected to have finished reduction" in str(error)
            used.sum().backward()
        return ddp.module.b.weight.grad

    assert launch(worker, 2, {"find_unused_parameters": True}) == [None] * 2
    assert launch(worker, 2, {}) == [("forward 2", True)] * 2
    assert launch(worker, 2, {"static_graph": True}) == [("forward 3", True)] * 2
