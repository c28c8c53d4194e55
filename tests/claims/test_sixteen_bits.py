"""Compression to bfloat16: who may use torch's hook, and what a sum that is rounded on the way loses."""

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import LaunchError, launch
from ddplab.runtime.needs import ON_CPU


@proves("perf-bf16-hook-by-name")
@pytest.mark.parametrize("built_with_nccl", [False, True])
def test_the_bf16_hook_is_refused_by_its_name(built_with_nccl):
    """On gloo, with the answers of either wheel: accepted where torch was built with CUDA and NCCL, else refused.

    Wrapped in a function of another name it reduces in bf16 on both.
    """

    def renamed(state, bucket):
        return default_hooks.bf16_compress_hook(state, bucket)

    def worker(hook):
        torch.version.cuda = "13.0" if built_with_nccl else None  # what DDP asks of the wheel, and nothing else
        torch.version.hip = None
        dist.is_nccl_available = lambda: built_with_nccl
        dist.is_xccl_available = lambda: False
        torch.cuda.nccl.version = lambda: (2, 29, 7)
        model = DDP(nn.Linear(3, 1, bias=False))
        model.register_comm_hook(None, hook)
        model(torch.full((1, 3), 1 / 3)).sum().backward()
        return model.module.weight.grad[0, 0].item()

    rounded = torch.tensor(1 / 3).bfloat16().item()
    assert rounded != pytest.approx(1 / 3, rel=1e-6)
    assert launch(worker, 2, renamed, env=ON_CPU) == [rounded] * 2
    if built_with_nccl:
        assert launch(worker, 2, default_hooks.bf16_compress_hook, env=ON_CPU) == [rounded] * 2
    else:
        with pytest.raises(LaunchError, match="TypeError: BF16 all reduce communication hook required"):
            launch(worker, 2, default_hooks.bf16_compress_hook, env=ON_CPU)


def of_rank(rank):
    """An independent gradient."""
    return torch.randn(50_000, generator=torch.Generator().manual_seed(rank))


def lost(mean, ranks):
    """The distance from the exact mean of the gradients of ``ranks`` ranks, relative to its norm."""
    exact = sum(of_rank(r).double() for r in range(ranks)) / ranks
    return ((mean.double() - exact).norm() / exact.norm()).item()


@proves("perf-16-bit-error-grows")
def test_a_sum_that_is_rounded_at_each_hop_loses_more_on_more_ranks():
    """The hook on 2 and 4 real ranks, and the additions of a ring on 2 to 512: each result is rounded to bfloat16."""

    def worker():
        model = DDP(nn.Linear(50_000, 1, bias=False))
        model.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
        model(of_rank(dist.get_rank())[None]).sum().backward()
        return lost(model.module.weight.grad[0], dist.get_world_size())

    def ring(ranks):
        parts = [of_rank(r).bfloat16() / ranks for r in range(ranks)]
        return lost(sum(parts[1:], parts[0]), ranks)

    by_hand = {ranks: ring(ranks) for ranks in (2, 4, 128, 512)}
    for ranks in (2, 4):
        assert launch(worker, ranks, env=ON_CPU) == pytest.approx([by_hand[ranks]] * ranks, rel=0.2)
    assert 0.002 < by_hand[2] < 0.003
    assert 0.012 < by_hand[128] < 0.015
    assert 0.024 < by_hand[512] < 0.029
