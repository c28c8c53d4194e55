"""Making it fast: the profiler's plan, views, the scaler, compression, compiled graphs, slow ranks, alternatives."""

import json
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from proof import proves, side_by_side
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import LaunchError, device, launch
from ddplab.labs.gaps import flat_gradients
from ddplab.labs.postmortem import postmortem
from ddplab.runtime.needs import ON_CPU, a_gpu_each
from ddplab.runtime.torch_private import flight_records


def averaged(bucket):
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def network(layers, width=64, **linear):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, **linear) for _ in range(layers)]).to(device())


@proves("perf-profiler-keeps-the-plan")
def test_a_trace_holds_the_active_steps_and_no_others(tmp_path):
    """Two cycles of two active steps after a skip, a wait and a warm-up: one file each, with those steps in it."""

    def worker(folder):
        model = DDP(network(1))

        def keep(profiler):
            profiler.export_chrome_trace(f"{folder}/{dist.get_rank()}-{profiler.step_num}.json")

        plan = torch.profiler.schedule(skip_first=2, wait=1, warmup=1, active=2, repeat=2)
        with torch.profiler.profile(schedule=plan, on_trace_ready=keep) as profiler:
            for _ in range(13):
                model(torch.ones(2, 64, device=device())).sum().backward()
                profiler.step()

    launch(worker, 2, str(tmp_path), quiet=True)
    for rank in range(2):
        kept = []
        for file in sorted(Path(tmp_path).glob(f"{rank}-*.json"), key=lambda f: int(f.stem[2:])):
            events = json.loads(file.read_text())["traceEvents"]
            steps = {e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep#")}
            kept.append(sorted(int(name[13:]) for name in steps))
        assert kept == [[4, 5], [8, 9]]


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


def power_sgd(rank, **options):
    options = {"start_powerSGD_iter": 2, "orthogonalization_epsilon": 1e-8, **options}
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, **options)


@proves("perf-powersgd-bytes")
def test_powersgd_sends_two_thin_matrices_in_place_of_a_square_one():
    """The flight recorder's element counts of one step, three all-reduces: biases, all P, all Q."""

    def worker(rank):
        model = DDP(network(3))
        model.register_comm_hook(power_sgd(rank), powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            before = len(flight_records())
            model(torch.ones(2, 64)).sum().backward()
        return [(entry.operation, entry.elements) for entry in flight_records()[before:]]

    for rank in (1, 4):
        thin = ("all_reduce", 3 * 64 * rank)
        assert launch(worker, 2, rank, env=ON_CPU) == [[("all_reduce", 3 * 64), thin, thin]] * 2


@proves("perf-powersgd-feedback")
def test_what_error_feedback_has_not_sent_it_still_has():
    """Exact gradients added up are what was sent, added up, and the mean over ranks of what each kept back."""

    def worker(feedback):
        model, state = DDP(network(3, bias=False)), power_sgd(1, use_error_feedback=feedback)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        torch.manual_seed(dist.get_rank() + 1)
        difference = 0
        for step in range(8):
            x = torch.randn(32, 64)
            with model.no_sync():
                model(x).square().mean().backward()
            exact = flat_gradients(model)
            dist.all_reduce(exact.div_(dist.get_world_size()))
            model.zero_grad()
            model(x).square().mean().backward()
            if step >= 2:
                difference += exact - flat_gradients(model)
            model.zero_grad()
        kept = next(iter(state.error_dict.values()), torch.zeros(()))
        # The bucket holds the gradients in another order; a norm does not mind.
        dist.all_reduce(kept.div_(dist.get_world_size()))
        return difference.norm().item(), kept.norm().item()

    for missing, kept in launch(worker, 2, True, env=ON_CPU):
        assert missing > 0
        assert missing == pytest.approx(kept, rel=1e-3)
    with_feedback, without = (launch(worker, 2, f, env=ON_CPU)[0][0] for f in (True, False))
    assert with_feedback < without


@proves("perf-powersgd-one-bucket-on-gloo")
def test_powersgd_with_several_buckets_does_not_finish_on_gloo():
    """Twenty steps pass with one bucket; with six buckets a rank hangs, aborts or raises, by chance."""

    def worker(cap):
        model = DDP(network(6, width=256), bucket_cap_mb=cap)
        model.register_comm_hook(power_sgd(2), powerSGD_hook.powerSGD_hook)
        for _ in range(20):
            model(torch.ones(2, 256)).sum().backward()

    one, six = side_by_side(
        lambda: postmortem(worker, 2, 25, timeout_s=60, env=ON_CPU),
        lambda: postmortem(worker, 2, 0.25, timeout_s=5, env=ON_CPU),
    )
    assert {e.how for e in one} == {"returned"}
    assert {e.how for e in six} != {"returned"}


@proves("perf-everyone-waits-for-the-last")
def test_no_rank_has_its_gradients_before_the_slowest_launched_its_last_bucket():
    """Stamps of three ranks on one clock, another one late in every step.

    On gloo when ``backward()`` returns; on the backend of this machine when a gradient can be read.
    """

    def worker(read):
        model, launched, ended = DDP(network(2)), [], []

        def hook(state, bucket):
            if bucket.is_last():
                launched.append(time.monotonic())
            return averaged(bucket)

        model.register_comm_hook(None, hook)
        for step in range(6):
            time.sleep(0.1 * (dist.get_rank() == step % 3))
            model(torch.ones(2, 64, device=device())).sum().backward()
            if read:
                model.module[0].weight.grad.sum().item()
            ended.append(time.monotonic())
        return launched, ended

    for ranks in (launch(worker, 3, False, env=ON_CPU), launch(worker, 3, True)):
        for step in range(6):
            assert min(ended[step] for _, ended in ranks) > max(launched[step] for launched, _ in ranks)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2, foreach=False)


def train(way, steps=4):
    """Losses of this rank, and the bytes of its weights, gradients and optimizer states."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = network(4)
    if way == "accelerate":
        from accelerate import Accelerator

        model, optimizer = Accelerator(cpu=device().type == "cpu").prepare(model, adam(model.parameters()))
    elif way == "fsdp2":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = adam(model.parameters())
    else:
        model = DDP(model)
        optimizer = adam(model.parameters())
        if way == "zero":
            options = {"lr": 1e-2, "foreach": False}
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **options)
    own, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        x = torch.randn(8, 64, generator=own).to(device())
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    local = [t.to_local() if hasattr(t, "to_local") else t for t in model.parameters()]
    grads = [t.grad.to_local() if hasattr(t.grad, "to_local") else t.grad for t in model.parameters()]
    inner = getattr(optimizer, "optim", optimizer) if way == "zero" else optimizer
    moments = [entry[name] for entry in inner.state.values() for name in ("exp_avg", "exp_avg_sq")]
    states = [t.to_local() if hasattr(t, "to_local") else t for t in moments]
    return losses, [sum(t.nbytes for t in tensors) for tensors in (local, grads, states)]


def beside_ddp(way):
    """What each of two ranks gets of DDP, and of another way."""
    return launch(lambda: (train("ddp"), train(way)), 2, quiet=True, env=a_gpu_each(2))


@proves("perf-accelerate-is-ddp")
def test_accelerate_gives_the_bits_and_bytes_of_ddp():
    """Four steps of Adam on two ranks, losses compared exactly."""
    assert all(ddp == accelerate for ddp, accelerate in beside_ddp("accelerate"))


@proves("perf-zero-halves-the-states")
def test_zero_gives_the_losses_of_ddp_and_divides_the_states():
    """On two ranks and equal layers each holds half of Adam's states, and all else as before."""
    for (losses, held), (zero_losses, zero_held) in beside_ddp("zero"):
        assert zero_losses == losses
        assert zero_held == [held[0], held[1], held[2] // 2]


@proves("perf-fsdp2-divides-all")
def test_fsdp2_gives_the_losses_of_ddp_and_divides_weights_gradients_and_states():
    """On two ranks each holds half of all three."""
    for (losses, held), (shard_losses, shard_held) in beside_ddp("fsdp2"):
        assert shard_losses == pytest.approx(losses, rel=1e-5)
        assert shard_held == [nbytes // 2 for nbytes in held]
