"""The emulated slow link: what it leaves alone, and what the cost model takes for granted."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients
from ddplab.apparatus.published import points, published
from ddplab.apparatus.sleeping import SleepingLayers
from ddplab.buckets import MIB
from ddplab.costmodel import Link, allreduce_seconds, bucketed, simulate_step
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.slowlink import SlowLink


def network(width=32, layers=6):
    """Equal on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device())


def batch(step):
    """Data that differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(5, 32, generator=generator).to(device())


def slow(model, latency_s, bytes_per_s, cap_mib=0.005):
    """The model under DDP, over a slow link."""
    ddp, link = DDP(model, bucket_cap_mb=cap_mib), SlowLink(latency_s, bytes_per_s)
    ddp.register_comm_hook(link, SlowLink.hook)
    return ddp, link


@proves("perf-slow-link-is-ddp")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_slow_link_changes_no_gradient(ranks):
    """Ten steps of SGD with momentum, with and without the link: gradients are equal bit for bit."""

    def worker():
        plain, (hooked, link) = DDP(network(), bucket_cap_mb=0.005), slow(network(), 1e-3, 1e7)
        optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9) for ddp in (plain, hooked)]
        equal = []
        for step in range(10):
            for ddp, optimizer in zip((plain, hooked), optimizers, strict=True):
                optimizer.zero_grad()
                ddp(batch(step)).square().mean().backward()
            equal.append(torch.equal(flat_gradients(plain), flat_gradients(hooked)))
            for optimizer in optimizers:
                optimizer.step()
        return equal, len(link.log)

    for equal, transfers in launch(worker, ranks):
        assert equal == [True] * 10
        assert transfers > 10  # several buckets in a step


@proves("perf-link-one-at-a-time")
def test_the_link_serves_in_order_and_nothing_is_early():
    """Warm steps of a model that is faster than its link: each transfer against the earliest time for it."""

    def worker():
        ddp, link = slow(network(), 2e-3, 1e6)
        for step in range(4):
            link.log.clear()
            ddp(batch(step)).square().mean().backward()
        return link.log, [link.seconds(transfer.nbytes) for transfer in link.log]

    for log, takes in launch(worker, 2):
        assert len(log) >= 3
        launched = [transfer.launched_s for transfer in log]
        assert launched == sorted(launched)
        free = 0.0
        for transfer, seconds in zip(log, takes, strict=True):
            assert transfer.done_s >= transfer.launched_s + seconds  # latency + bytes/rate, at the least
            free = max(free, transfer.launched_s) + seconds
            assert transfer.done_s >= free  # and those before it have left the link


@proves("perf-step-not-below-bound")
def test_no_step_is_shorter_than_its_compute_and_its_link():
    """The layers' compute is a sleep: forward + first layer + all transfers one after the other is the least."""

    def worker(cap_mib):
        layers, nbytes, forward_s, backward_s = 6, 2**14, 2e-3, 3e-3
        model = SleepingLayers(layers, nbytes, forward_s, backward_s)
        ddp, link = slow(model, 1e-3, 4e6, cap_mib)
        for _ in range(3):
            link.log.clear()
            loss = ddp(torch.ones(1)).sum()
            began = model.until_s - layers * forward_s
            loss.backward()
        gradients = [(backward_s * (i + 1), nbytes) for i in range(layers)]
        buckets = bucketed(gradients, int(cap_mib * MIB))
        step = simulate_step(layers * forward_s, gradients, buckets, Link(1e-3, 4e6, 2, "link"))
        return link.log[-1].done_s - began, step.step_s, [transfer.nbytes for transfer in link.log], step.timeline

    for cap_mib in (0.015625, 0.03125, 0.09375):
        for took, least, sent, timeline in launch(worker, 2, cap_mib, env=ON_CPU):
            assert took >= least - 1e-9
            assert sent == [transfer.nbytes for transfer in timeline]


@proves("perf-accumulation-divides-transfers")
def test_accumulating_k_micro_batches_makes_one_kth_of_the_transfers():
    """Twelve micro-batches, in steps of k: the link carries 12/k times the transfers and bytes of one step."""

    def worker(k):
        ddp, link = slow(network(), 1e-4, 1e8)
        for step in range(3):
            ddp(batch(step)).square().mean().backward()
        link.log.clear()
        for micro in range(12):
            with ddp.no_sync() if (micro + 1) % k else contextlib.nullcontext():
                ddp(batch(micro)).square().mean().backward()
        return len(link.log), sum(transfer.nbytes for transfer in link.log)

    seen = {k: launch(worker, 2, k) for k in (1, 2, 3, 4, 12)}
    ((transfers, nbytes), _) = seen[1]
    assert transfers > 12
    for k, ranks in seen.items():
        assert ranks == [(transfers // k, nbytes // k)] * 2


@proves("perf-nccl-ring-hides-latency")
def test_the_model_of_nccl_predicts_the_throttled_tables():
    """Published times, 128 and 256 MiB on 4 to 32 ranks: errors of the model, and of the ring's law."""
    errors = {"nccl": [], "ring": []}
    for table in published("published.json", "throttled").values():
        network = table["inputs"]["latency_ms"] * 1e-3, table["inputs"]["node_gbit_per_s"] * 125e6
        for point in (point for row in table["rows"] for point in points(row)):
            for algorithm, found in errors.items():
                model_s = allreduce_seconds(point.nbytes, point.ranks, *network, algorithm)
                found.append(abs(model_s / point.seconds - 1))
    assert len(errors["nccl"]) == 24
    assert sum(errors["nccl"]) / 24 < 0.02
    assert max(errors["nccl"]) < 0.04
    assert max(errors["ring"]) > 0.26
