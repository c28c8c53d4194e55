"""Bucket caps, lists of caps, and what overlap changes: shown on real ranks, never by timing."""

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


def watched(steps=4, layers=10, **options):
    """Per step, what happened in it: the number of a layer whose gradient is ready, or the list of those that left."""
    ddp = DDP(network(layers), **options)
    number, events = {p: i for i, p in enumerate(ddp.parameters())}, []

    def launched(_, bucket):
        events[-1].append([number[p] for p in bucket.parameters()])
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, launched)
    for p in number:
        p.register_post_accumulate_grad_hook(lambda p: events[-1].append(number[p]))
    for step in range(steps):
        events.append([])
        ddp(batch(step)).square().mean().backward()
    return events


def buckets(events):
    """The buckets of one step, as launched."""
    return [event for event in events if isinstance(event, list)]


def lengths(events):
    return [len(bucket) for bucket in buckets(events)]


@proves("perf-cap-list-counts-from-the-first-to-leave")
def test_a_list_of_caps_goes_with_launch_order_once_rebuilt():
    """Caps of 1, 2 and 3 layers for ten: later backwards launch 1, 2, 3, 3 and the rest, last layer first."""

    def worker():
        return [buckets(events) for events in watched(bucket_cap_mb_list=[4 * KIB, 8 * KIB, 12 * KIB])[1:]]

    for later in launch(worker, 2):
        assert later == [[[9], [8, 7], [6, 5, 4], [3, 2, 1], [0]]] * 3


@proves("perf-cap-list-from-the-other-end")
def test_before_the_rebuild_a_list_of_caps_counts_from_the_end():
    """The first backward has the first cap in the bucket that leaves last; with unused parameters allowed, all have."""

    def worker(**options):
        return [buckets(events) for events in watched(bucket_cap_mb_list=[4 * KIB, 8 * KIB, 12 * KIB], **options)]

    mirrored = [[9], [6, 7, 8], [3, 4, 5], [1, 2], [0]]
    for steps in launch(worker, 2):
        assert steps[0] == mirrored
        assert steps[1] != mirrored
    for steps in launch(lambda: worker(find_unused_parameters=True), 2):
        assert steps == [mirrored] * 4


@proves("perf-cap-list-wins")
def test_a_list_of_caps_replaces_the_single_cap():
    """With both given, buckets are those of the list; with an empty list, those of the single cap."""

    def worker(**options):
        return [lengths(events) for events in watched(**options)]

    both = launch(lambda: worker(bucket_cap_mb_list=[4 * KIB, 8 * KIB], bucket_cap_mb=20 * KIB), 2)
    assert both == launch(lambda: worker(bucket_cap_mb_list=[4 * KIB, 8 * KIB]), 2)
    assert both[0][-1] == [1, 2, 2, 2, 2, 1]
    assert launch(lambda: worker(bucket_cap_mb_list=[], bucket_cap_mb=20 * KIB), 2) == [[[10], *[[5, 5]] * 3]] * 2


@proves("perf-rank-zeros-cap")
@pytest.mark.parametrize("caps_kib", [(8, 12), (12, 8), (8, None)])
def test_the_cap_of_rank_zero_is_that_of_all(caps_kib):
    """Ranks 1 and 2 pass another cap than rank 0: all launch the buckets of rank 0's."""

    def worker():
        cap = caps_kib[min(dist.get_rank(), 1)]
        return [lengths(events) for events in watched(bucket_cap_mb=None if cap is None else cap * KIB)]

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


@proves("perf-last-bucket-is-exposed")
@pytest.mark.parametrize("cap_kib", [4, 8, 12, 16, 40])
def test_the_last_bucket_leaves_behind_the_last_gradient(cap_kib):
    """For caps of one to ten layers: the last launch comes after every gradient, all other launches before the last."""

    def worker():
        return watched(bucket_cap_mb=cap_kib * KIB)[1:]

    for steps in launch(worker, 2):
        for events in steps:
            last_gradient = events.index(0)  # the first layer's is ready last
            launches = [place for place, event in enumerate(events) if isinstance(event, list)]
            assert launches[-1] > last_gradient
            assert all(place < last_gradient for place in launches[:-1])
            assert len(launches) == -(-40 // cap_kib)


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
