"""Caps that differ between ranks, and what overlap changes: shown on real ranks, never by timing."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients
from ddplab.apparatus.postmortem import postmortem
from ddplab.runtime.needs import ON_CPU

KIB = 1 / 1024  # in MiB; a layer of `network` has 4 KiB


def network(layers):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(layers))).to(device())


def batch(step=0):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(4, 32, generator=generator).to(device())


@proves("perf-rank-zeros-cap")
@pytest.mark.parametrize("caps_kib", [(8, 12), (12, 8), (8, None)])
def test_the_cap_of_rank_zero_is_that_of_all(caps_kib):
    """Ranks 1 and 2 pass another cap than rank 0: all launch the buckets of rank 0's."""

    def worker():
        cap, lengths = caps_kib[min(dist.get_rank(), 1)], []

        def launched(_, bucket):
            lengths[-1].append(len(bucket.parameters()))
            return allreduce_hook(None, bucket)

        ddp = DDP(network(10), bucket_cap_mb=None if cap is None else cap * KIB)
        ddp.register_comm_hook(None, launched)
        for step in range(4):
            lengths.append([])
            ddp(batch(step)).square().mean().backward()
        return lengths

    expected = {8: [2] * 5, 12: [3, 3, 3, 1]}[caps_kib[0]]
    for ranks in (2, 3):
        assert launch(worker, ranks) == [[[10], expected, expected, expected]] * ranks


@proves("perf-lists-must-agree")
@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1"),
    [
        ({"bucket_cap_mb_list": [4 * KIB, 8 * KIB]}, {"bucket_cap_mb_list": [8 * KIB, 4 * KIB]}),
        ({"bucket_cap_mb_list": [4 * KIB, 8 * KIB]}, {}),
        *[[{"bucket_cap_mb": kib * KIB, "find_unused_parameters": True} for kib in (8, 12)]],
    ],
    ids=["lists", "list-and-none", "unused"],
)
def test_layouts_that_differ_before_the_rebuild_fail(of_rank_0, of_rank_1):
    """Lists, or caps with unused parameters allowed, differ between ranks: none gets through its first backward."""

    def worker():
        ddp = DDP(network(10), **(of_rank_1 if dist.get_rank() else of_rank_0))
        ddp(batch()).square().mean().backward()

    endings = postmortem(worker, 2, env=ON_CPU)  # NCCL does not compare sizes
    assert {ending.how for ending in endings} <= {"raised", "died"}


def keep_back(state, bucket):
    """All-reduce every bucket, but start none before the last one is complete; note how many start together."""
    kept, together = state
    future = torch.futures.Future()
    kept.append((bucket.buffer().mul_(1 / dist.get_world_size()), future))
    if bucket.is_last():
        together.append(len(kept))
        for buffer, waiting in kept:
            work = dist.all_reduce(buffer, async_op=True)
            work.get_future().then(lambda done, waiting=waiting: waiting.set_result(done.value()[0]))
        kept.clear()
    return future


@proves("perf-overlap-changes-no-bit")
@pytest.mark.parametrize("ranks", [2, 3])
def test_overlap_changes_no_gradient(ranks):
    """Ten steps of SGD, the same buckets launched during the backward and behind it: gradients are the same bits."""

    def worker():
        models = [DDP(network(10), bucket_cap_mb=8 * KIB) for _ in range(2)]
        together = []
        models[1].register_comm_hook(([], together), keep_back)
        optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9) for ddp in models]
        equal = []
        for step in range(10):
            for ddp, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                ddp(batch(step)).square().mean().backward()
            equal.append(torch.equal(*map(flat_gradients, models)))
            for optimizer in optimizers:
                optimizer.step()
        return equal, together

    assert launch(worker, ranks) == [([True] * 10, [1, *[5] * 9])] * ranks
