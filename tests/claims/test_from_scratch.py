"""The stages of the class from scratch, and what the class itself takes of torch's."""

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients, gap
from ddplab.runtime.torch_private import flight_records
from ddplab.scratch import DDP, naive, overlap, verify


def network(seed=0, width=64):
    """Two blocks with BatchNorm and a head: 10 parameters, 6 buffers."""
    torch.manual_seed(seed)
    first = [nn.Linear(16, width), nn.BatchNorm1d(width), nn.Tanh()]
    second = [nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh()]
    return nn.Sequential(*first, *second, nn.Linear(width, 4)).to(device())


def batches(count):
    """Data of this rank's own."""
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    return torch.randn(count, 8, 16, generator=generator).to(device())


# -- the stages ---------------------------------------------------------------------------------------


@proves("scratch-verifies")
def test_different_models_raise_on_every_rank():
    """Stage 1 compares values, the whole class names, shapes and types; all ranks say what rank 1 has otherwise."""

    def worker(wrap, build):
        try:
            wrap(build(dist.get_rank()))
        except ValueError as error:
            return str(error)
        return "equal"

    def width(rank):
        return network(width=64 + rank % 2)

    def buffer(rank):
        net = nn.Linear(2, 2)
        net.register_buffer("seen", torch.zeros(2 + rank % 2))
        return net.to(device())

    def dtype(rank):
        return network().to(torch.float64 if rank == 1 else torch.float32)

    cases = [
        (verify.DDP, lambda rank: network(seed=rank % 2), "0.weight on rank 1 differs from rank 0"),
        (DDP, width, "0.weight (64, 16) torch.float32 trained on rank 0, but 0.weight (65, 16)"),
        (DDP, buffer, "seen (2,) torch.float32 on rank 0, but seen (3,) torch.float32 on rank 1"),
        (DDP, dtype, "0.weight (64, 16) torch.float32 trained on rank 0, but 0.weight (64, 16) torch.float64"),
        (DDP, lambda rank: nn.Linear(2, 2, bias=rank != 1), "bias (2,) torch.float32 trained on rank 0, but missing"),
        (verify.DDP, lambda rank: network(), "equal"),
        (DDP, lambda rank: network(), "equal"),
    ]
    for wrap, build, text in cases:
        assert all(text in said for said in launch(worker, 3, wrap, build))


@proves("naive-equals-ddp")
def test_one_allreduce_per_parameter_gives_the_gradients_of_ddp():
    """One backward of each: equal bit for bit on two ranks, where a sum has one order; within rounding on more."""

    def gradients(wrap):
        model = wrap(network())
        model(batches(1)[0]).square().mean().backward()
        if wrap is naive.DDP:
            model.sync_gradients()
        return flat_gradients(model)

    def worker():
        return gradients(naive.DDP), gradients(DistributedDataParallel)

    for ranks in (2, 3, 4):
        for ours, torchs in launch(worker, ranks):
            torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-7)
            assert ranks > 2 or torch.equal(ours, torchs)


# -- overlap ------------------------------------------------------------------------------------------


class Fork(nn.Module):
    """Two branches: on rank 0 the gradient of ``a`` is ready first, on the others that of ``b``."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 8, bias=False), nn.Linear(16, 4, bias=False)

    def forward(self, x):
        branches = [self.b, self.a] if dist.get_rank() == 0 else [self.a, self.b]
        return sum(branch(x).square().mean() for branch in branches)


def run_fork(wrap, steps=3):
    """Return for each step which gradient was ready first, the sizes of the all-reduces in order, the gradients."""
    torch.manual_seed(0)
    model, x, ready, seen = wrap(Fork().to(device()), bucket_cap_mb=1e-4), batches(1)[0], [], []
    for p in model.parameters():
        p.register_hook(lambda grad: ready.append(grad.numel()))
    for _ in range(steps):
        model.zero_grad()
        loss, before = model(x), len(flight_records())
        loss.backward()
        sent = [entry.elements for entry in flight_records()[before:] if entry.operation == "all_reduce"]
        seen.append((ready[-2:], sent, flat_gradients(model)))
    return seen


@proves("scratch-launch-order-agreed")
def test_ranks_launch_the_same_buckets_in_the_same_order():
    """Gradients arrive in different orders; the all-reduces of both ranks pair up, and the sums are torch's."""
    torchs = launch(run_fork, 2, DistributedDataParallel)[0]
    for wrap in (overlap.DDP, DDP):
        for (ready, sent, mean), (also_ready, also_sent, also_mean), expected in zip(
            *launch(run_fork, 2, wrap), torchs, strict=True
        ):
            assert ready == also_ready[::-1]
            assert sent == also_sent
            assert len(sent) == 2
            assert torch.equal(mean, expected[2])
            assert torch.equal(also_mean, expected[2])


@proves("scratch-rebuilds")
def test_buckets_follow_rank_0s_ready_order_from_the_second_forward_on():
    """First in the reverse order of registration, b before a; then a first, as rank 0 found it, on every rank."""
    a, b = 16 * 8, 16 * 4
    for ranks in (2, 3):
        for seen in launch(run_fork, ranks, DDP):
            assert [sent for _, sent, _ in seen] == [[b, a], [a, b], [a, b]]


# -- torch's hooks -----------------------------------------------------------------------------------


@proves("scratch-takes-torch-hooks")
def test_torchs_own_comm_hooks_run_on_our_buckets():
    """Plain, compressed to fp16, and PowerSGD with a warm start: four steps, and torch's gradients bit for bit."""

    def gradients(wrap, make_state, hook):
        model, x = wrap(network()), batches(1)[0]
        model.register_comm_hook(make_state(), hook)
        for _ in range(4):
            model.zero_grad()
            model(x).square().mean().backward()
        return flat_gradients(model)

    def low_rank():
        return PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)

    def worker():
        hooks = [(lambda: None, allreduce_hook), (lambda: None, fp16_compress_hook), (low_rank, powerSGD_hook)]
        return [[gradients(wrap, *hook) for wrap in (DDP, DistributedDataParallel)] for hook in hooks]

    for plain, fp16, power in launch(worker, 2, quiet=True):
        for ours, torchs in (plain, fp16, power):
            assert torch.equal(ours, torchs)
        assert 0 < gap([plain[0], fp16[0]]) < 1e-3
        assert gap([plain[0], power[0]]) > 1e-3
