"""How buckets are filled, rebuilt and launched, read back from a communication hook."""

import contextlib

import torch
from proof import proves
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch
from ddplab.runtime.torch_private import flight_records


def watched_steps(model, inputs, steps, **options):
    """Train ``model`` under DDP; return, per step, the launched buckets: parameters, numbered as registered."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model.to(device()), **options)
    number = {parameter: i for i, parameter in enumerate(ddp.parameters())}
    launched = []

    def note_bucket(state, bucket):
        launched[-1].append([number[parameter] for parameter in bucket.parameters()])
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, note_bucket)
    for _ in range(steps):
        launched.append([])
        ddp(inputs.to(device())).square().mean().backward()
    return launched


def mlp(width=512, layers=6):
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])


class Backwards(nn.Module):
    """Three layers, used in reverse order of registration: the first layer's gradient is ready first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(3))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


@proves("first-bucket-1mib")
def test_the_first_bucket_has_a_small_cap_unless_one_is_given():
    """Layers of 1 MiB: by default the first leaves alone and the next 25 together; with a cap of 3, three and three."""

    def worker(layers, **options):
        return [len(bucket) for bucket in watched_steps(mlp(layers=layers), torch.ones(2, 512), 2, **options)[1]]

    for default, three, twenty_five in launch(
        lambda: (worker(28), worker(8, bucket_cap_mb=3), worker(8, bucket_cap_mb=25)), 2
    ):
        assert default == [1, 25, 2]
        assert three == [3, 3, 2]
        assert twenty_five == [8]  # the documented default is not the default


@proves("buckets-reverse-order")
def test_the_list_of_buckets_is_reversed_at_construction():
    """Caps hold at construction with find_unused_parameters=True: packed as registered, last bucket first."""

    def worker(**options):
        return watched_steps(mlp(layers=5), torch.ones(2, 512), 1, find_unused_parameters=True, **options)[0]

    for two, default in launch(lambda: (worker(bucket_cap_mb=2), worker()), 2):
        assert two == [[4], [2, 3], [0, 1]]
        assert default == [[1, 2, 3, 4], [0]]  # so the first cap, 1 MiB, is that of the last bucket


@proves("rebuild-after-the-first-sync")
def test_the_rebuild_follows_the_first_synchronizing_backward():
    """n: a micro-batch under no_sync; g: a forward without gradients; s: a step. Which of them sends the new layout."""

    def worker(moments):
        ddp, x, rebuilt = DistributedDataParallel(mlp(width=8).to(device())), torch.ones(2, 8, device=device()), []
        for number, moment in enumerate(moments, start=1):
            before = len(flight_records())
            with torch.set_grad_enabled(moment != "g"), ddp.no_sync() if moment == "n" else contextlib.nullcontext():
                loss = ddp(x).sum()
                rebuilt += [number] * ([e.operation for e in flight_records()[before:]] == ["broadcast"] * 2)
                if moment != "g":
                    loss.backward()
        return rebuilt

    for moments, forward in {"sss": 2, "nnnsnns": 5, "sgs": 3, "gss": 3, "snns": 2}.items():
        for ranks in (2, 3):
            assert launch(worker, ranks, moments) == [[forward]] * ranks, moments


class TwoTypes(nn.Module):
    """Seven parameters in float32 or bfloat16; the forward takes the order in which their gradients become ready."""

    def __init__(self, elements):
        super().__init__()
        self.layers = nn.ParameterList(
            nn.Parameter(torch.ones(elements, dtype=torch.bfloat16 if i in (1, 2, 3, 5) else torch.float32))
            for i in range(7)
        )

    def forward(self, order):
        x = torch.ones(1, device=device())
        for i in reversed(order):
            x = x * self.layers[int(i)].float().mean()
        return x.sum()


@proves("mixed-types-in-buckets")
def test_each_type_has_its_own_buckets_and_caps_and_what_is_left_goes_last():
    """Numbers 1, 2, 3 and 5 are bfloat16. A bucket per type in the first backward; then each type fills its own."""

    def worker(elements, order, cap_mb):
        ddp, launched = DistributedDataParallel(TwoTypes(elements).to(device()), bucket_cap_mb=cap_mb), []
        number = {parameter: i for i, parameter in enumerate(ddp.parameters())}

        def note_bucket(state, bucket):
            launched[-1].append([number[parameter] for parameter in bucket.parameters()])
            return allreduce_hook(None, bucket)

        ddp.register_comm_hook(None, note_bucket)
        for _ in range(3):
            launched.append([])
            ddp(order).backward()
        return launched

    for ranks in (2, 3):
        for first, *later in launch(worker, ranks, 4096, "1230546", 0.02):
            assert sorted(first) == [[0, 4, 6], [1, 2, 3, 5]]
            for closed, also_closed, *left_over in later:
                assert [closed, also_closed] == [[1, 2, 3], [0, 4]]
                assert sorted(left_over) == [[5], [6]]  # 5 was ready before 4 and leaves behind it
        # 1 MiB in float32: the first cap holds for each type by itself.
        for _, *later in launch(worker, ranks, 2**18, "1230546", None):
            for closed, also_closed, *left_over in later:
                assert [closed, also_closed] == [[1, 2], [0]]
                assert sorted(left_over) == [[3, 5], [4, 6]]


@proves("static-graph-rebuilds-later")
def test_static_graph_rebuilds_at_the_third_forward():
    """With static_graph=True two steps reduce one bucket; the third has one per layer."""

    def worker():
        return watched_steps(mlp(layers=3), torch.ones(2, 512), 4, bucket_cap_mb=1, static_graph=True)

    for ranks in (2, 3):
        assert [[len(step) for step in launched] for launched in launch(worker, ranks)] == [[1, 1, 3, 3]] * ranks


@proves("one-allreduce-per-bucket")
def test_a_backward_issues_one_allreduce_per_bucket():
    """The flight recorder lists the collectives of one backward: as many all-reduces as buckets, and nothing else."""

    def worker(bucket_cap_mb):
        ddp = DistributedDataParallel(mlp().to(device()), bucket_cap_mb=bucket_cap_mb)
        seen = []
        for _ in range(2):
            loss = ddp(torch.ones(2, 512, device=device())).sum()
            before = len(flight_records())
            loss.backward()
            seen.append([entry.operation for entry in flight_records()[before:]])
        return seen

    for ranks in (2, 3, 4):
        for found in launch(lambda: [worker(bucket_cap_mb) for bucket_cap_mb in (1, 2, 4, 25)], ranks):
            assert found == [[["all_reduce"], ["all_reduce"] * buckets] for buckets in (6, 3, 2, 1)]


@proves("launch-in-order")
def test_a_bucket_that_is_ready_first_waits_for_its_turn():
    """The last bucket is ready first and the first bucket last: nothing leaves before it, then all leave in order."""

    def worker():
        ddp = DistributedDataParallel(Backwards().to(device()), bucket_cap_mb=1, find_unused_parameters=True)
        log = []

        def note_bucket(state, bucket):
            log.append(f"bucket {bucket.index()}")
            return allreduce_hook(None, bucket)

        ddp.register_comm_hook(None, note_bucket)
        for i, layer in enumerate(ddp.module.layers):
            layer.weight.register_post_accumulate_grad_hook(lambda _, i=i: log.append(f"ready {2 - i}"))
        ddp(torch.ones(2, 512, device=device())).sum().backward()
        return log

    # Layer i is in bucket 2 − i: "ready 2" is the gradient of bucket 2.
    for ranks in (2, 3):
        order = ["ready 2", "ready 1", "ready 0", "bucket 0", "bucket 1", "bucket 2"]
        assert launch(worker, ranks) == [order] * ranks


@proves("gradients-are-views")
def test_gradients_share_the_buckets_memory_only_on_request():
    """Compare where ``.grad`` lives with where the buckets live, in each of three steps."""

    def worker(**options):
        model = mlp(layers=3).to(device())
        ddp, shared = DistributedDataParallel(model, bucket_cap_mb=1, **options), []

        def note_bucket(memory, bucket):
            memory.add(bucket.buffer().untyped_storage().data_ptr())
            return allreduce_hook(None, bucket)

        ddp.register_comm_hook(memory := set(), note_bucket)
        for _ in range(3):
            memory.clear()
            model.zero_grad(set_to_none=True)
            ddp(torch.ones(2, 512, device=device())).sum().backward()
            shared.append([weight.grad.untyped_storage().data_ptr() in memory for weight in model.parameters()])
        return shared

    for by_default, on_request in launch(lambda: (worker(), worker(gradient_as_bucket_view=True)), 2):
        assert by_default == [[False] * 3] * 3
        assert on_request == [[True] * 3] * 3
