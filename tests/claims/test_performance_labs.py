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
from ddplab.gaps import flat_gradients, flat_weights, gap
from ddplab.postmortem import postmortem
from ddplab.torch_private import flight_records

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


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


def most_held(views):
    """Largest number of bytes in gradients and buckets during a warm backward; all gradients, the largest one."""
    model, buckets, seen = DDP(network(4), bucket_cap_mb=0.02, gradient_as_bucket_view=views), {}, []

    def hook(state, bucket):
        buckets[bucket.index()] = bucket.buffer()
        return averaged(bucket)

    def note(_):
        tensors = [*buckets.values(), *(p.grad for p in model.parameters() if p.grad is not None)]
        storages = (t.untyped_storage() for t in tensors)
        seen.append(sum({s.data_ptr(): s.nbytes() for s in storages}.values()))

    model.register_comm_hook(None, hook)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(note)
    for step in range(4):
        if step < 2:
            buckets.clear()
        seen.clear()
        model.zero_grad()
        model(torch.ones(2, 64, device=device())).sum().backward()
    sizes = [p.nbytes for p in model.parameters()]
    return max(seen), sum(sizes), max(sizes)


@proves("perf-views-peak")
def test_views_hold_one_copy_and_the_largest_fresh_gradient():
    """Storages are counted at every gradient of a warm backward, with and without views."""
    for most, gradients, _ in launch(most_held, 2, False):
        assert most == 2 * gradients
    for most, gradients, largest in launch(most_held, 2, True):
        assert most == gradients + largest


@proves("perf-views-overwrite")
def test_a_kept_gradient_changes_with_the_next_step():
    """The gradient kept from one step holds the next step's numbers with views, and its own without."""

    def worker(views):
        model, kept = DDP(nn.Linear(2, 1).to(device()), gradient_as_bucket_view=views), []
        for value in (1.0, 1.0, 3.0):
            model.zero_grad()
            model(torch.full((1, 2), value, device=device())).sum().backward()
            kept.append(model.module.weight.grad)
        return [grad[0, 0].item() for grad in kept[1:]]

    assert launch(worker, 2, True) == [[3.0, 3.0]] * 2
    assert launch(worker, 2, False) == [[1.0, 3.0]] * 2


def fp16_step(where, ranks=3):
    """One scaled step of three ranks with an inf on rank 1; per rank: taken or not, new scale, weights."""

    def worker():
        torch.manual_seed(0)
        model = DDP(nn.Linear(8, 2).to(device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device().type, init_scale=1024.0)
        before, mine = flat_weights(model), dist.get_rank() == 1
        x = torch.full((4, 8), 3e4 if mine and where == "before" else 1.0, device=device())
        with torch.autocast(device().type, dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        if mine and where == "behind":
            model.module.weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        return not torch.equal(before, flat_weights(model)), scaler.get_scale(), flat_weights(model)

    return launch(worker, ranks)


@proves("perf-inf-before-the-sync")
def test_an_overflow_in_one_ranks_batch_makes_all_ranks_skip():
    """All three ranks leave the step out and halve the scale; without the overflow all take it."""
    assert [result[:2] for result in fp16_step("before")] == [(False, 512.0)] * 3
    assert [result[:2] for result in fp16_step("nowhere")] == [(True, 1024.0)] * 3


@proves("perf-inf-behind-the-sync")
def test_an_inf_that_comes_after_backward_splits_the_ranks():
    """Only the rank that has it skips and halves its scale, and nothing raises."""
    results = fp16_step("behind")
    assert [result[:2] for result in results] == [(True, 1024.0), (False, 512.0), (True, 1024.0)]
    assert gap([weights for *_, weights in results]) > 0


@proves("perf-clip-behind-unscale")
def test_a_clip_before_unscale_cuts_to_the_bound_divided_by_the_scale():
    """The gradient of the step has norm 1 in the right order, and 1/1024 in the wrong one, on every rank."""

    def worker(unscale_first):
        torch.manual_seed(0)
        model = DDP(nn.Linear(8, 2).to(device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler(device().type, init_scale=1024.0)
        scaler.scale((model(torch.ones(4, 8, device=device())) - 9).square().mean()).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = flat_weights(model)
        scaler.step(optimizer)
        return (flat_weights(model) - before).norm().item()

    for first, norm in ((True, 1.0), (False, 1 / 1024)):
        assert launch(worker, 2, first) == pytest.approx([norm] * 2, rel=1e-3)


@proves("perf-bf16-hook-by-name")
def test_the_bf16_hook_is_refused_by_its_name():
    """On gloo, registered as it is, it raises if torch was built without NCCL, else it reduces in bf16.

    Wrapped in a function of another name it always does.
    """

    def renamed(state, bucket):
        return default_hooks.bf16_compress_hook(state, bucket)

    def worker(hook):
        model = DDP(nn.Linear(3, 1, bias=False))
        model.register_comm_hook(None, hook)
        model(torch.full((1, 3), 1 / 3)).sum().backward()
        return model.module.weight.grad[0, 0].item()

    rounded = torch.tensor(1 / 3).bfloat16().item()
    assert rounded != pytest.approx(1 / 3, rel=1e-6)
    assert launch(worker, 2, renamed, env=NO_GPU) == [rounded] * 2
    if dist.is_nccl_available():
        assert launch(worker, 2, default_hooks.bf16_compress_hook, env=NO_GPU) == [rounded] * 2
    else:
        with pytest.raises(LaunchError, match="TypeError: BF16 all reduce communication hook required"):
            launch(worker, 2, default_hooks.bf16_compress_hook, env=NO_GPU)


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
        assert launch(worker, 2, rank, env=NO_GPU) == [[("all_reduce", 3 * 64), thin, thin]] * 2


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

    for missing, kept in launch(worker, 2, True, env=NO_GPU):
        assert missing > 0
        assert missing == pytest.approx(kept, rel=1e-3)
    with_feedback, without = (launch(worker, 2, f, env=NO_GPU)[0][0] for f in (True, False))
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
        lambda: postmortem(worker, 2, 25, timeout_s=60, env=NO_GPU),
        lambda: postmortem(worker, 2, 0.25, timeout_s=5, env=NO_GPU),
    )
    assert {e.how for e in one} == {"returned"}
    assert {e.how for e in six} != {"returned"}


class Stack(nn.Module):
    """Four layers of 1 MiB each; a bare nn.Sequential would not be captured."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@proves("perf-compiled-buckets-leave-early")
def test_a_bucket_of_a_compiled_model_leaves_when_its_graph_ends():
    """Ends of graphs and launches of buckets take turns when split; as one graph all launches come behind its end."""

    def order(split):
        from torch._dynamo.backends.common import aot_autograd

        from ddplab.torch_private import set_ddp_optimizer

        torch.compiler.reset()
        set_ddp_optimizer(split)
        log = []

        def noted(graph, inputs):
            def backward(*tensors):
                gradients = graph.forward(*tensors)
                log.append("graph")
                return gradients

            return backward

        def hook(state, bucket):
            log.append("bucket")
            return averaged(bucket)

        model = DDP(Stack().to(device()), bucket_cap_mb=1)
        model.register_comm_hook(None, hook)
        backend = aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=noted)
        compiled = torch.compile(model, backend=backend)
        for _ in range(4):
            log.clear()
            compiled(torch.ones(2, 512, device=device())).sum().backward()
        return log

    for split, whole in launch(lambda: (order(True), order(False)), 2):
        assert split == ["graph", "bucket"] * 4
        assert whole == ["graph"] + ["bucket"] * 4


@proves("perf-everyone-waits-for-the-last")
def test_no_backward_returns_before_the_slowest_rank_launched_its_last_bucket():
    """Stamps of three ranks on one clock, rank 1 late in every step."""

    def worker():
        model, launched, returned = DDP(network(2)), [], []

        def hook(state, bucket):
            if bucket.is_last():
                launched.append(time.monotonic())
            return averaged(bucket)

        model.register_comm_hook(None, hook)
        for _ in range(5):
            time.sleep(0.1 * (dist.get_rank() == 1))
            model(torch.ones(2, 64, device=device())).sum().backward()
            model.module[0].weight.grad.sum().item()  # on a GPU: until it is done
            returned.append(time.monotonic())
        return launched, returned

    ranks = launch(worker, 3)
    for step in range(5):
        assert min(returned[step] for _, returned in ranks) > max(launched[step] for launched, _ in ranks)


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
    return launch(lambda: (train("ddp"), train(way)), 2, quiet=True)


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
