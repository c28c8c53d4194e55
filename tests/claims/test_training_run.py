"""Where a training run communicates, what the number of ranks changes, and how a mesh shares out process groups."""

import contextlib

import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function

from ddplab import device, launch
from ddplab.labs.mesh import named_mesh
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.torch_private import flight_records


def network():
    """Three weights, and so three buckets under a cap of 100 bytes; equal on all ranks."""
    torch.manual_seed(0)
    first, second, third = (nn.Linear(*sizes, bias=False) for sizes in ((8, 32), (32, 32), (32, 1)))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third).to(device())


@proves("communication-inside-backward")
def test_every_allreduce_of_a_step_is_launched_inside_backward():
    """In the profile of three steps all calls lie in backward; one that the loop makes itself is seen where it is."""

    def worker(by_hand):
        model = DDP(network(), bucket_cap_mb=1e-4)
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(4, 8).to(device())
        with profile(activities=[ProfilerActivity.CPU]) as profiler:  # a GPU's spans have the same names
            for _ in range(3):
                with record_function("line: forward"):
                    loss = model(x).square().mean()
                with record_function("line: backward"):
                    loss.backward()
                with record_function("line: clip"):
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with record_function("line: step"):
                    optimizer.step()
                with record_function("line: log"):
                    if by_hand:
                        dist.all_reduce(loss.detach())
        spans = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events()]
        calls = [start for name, start, _ in spans if name == "c10d::allreduce_"]
        lines = [span for span in spans if span[0].startswith("line: ")]
        return [name for call in calls for name, start, end in lines if start <= call <= end]

    for where in launch(worker, 2, False, quiet=True):
        assert len(where) == 1 + 3 + 3  # the first backward has a single bucket
        assert set(where) == {"line: backward"}
    for where in launch(worker, 2, True, quiet=True):
        assert where.count("line: log") == 3


@proves("same-global-batch-same-run")
def test_a_global_batch_trains_the_same_model_on_one_two_and_four_ranks():
    """Thirty steps of 32 samples: apart by rounding in single precision, and by far less in double precision."""

    def worker(dtype, global_batch):
        torch.set_num_threads(1)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model = DDP(network().to(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x in torch.randn(30, global_batch, 8).to(device(), dtype):
            mine = x.chunk(ranks)[rank]
            optimizer.zero_grad()
            (model(mine) - mine.sum(dim=1, keepdim=True).sin()).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten().cpu() for p in model.parameters()]).double()

    def gaps(dtype):
        alone = launch(worker, 1, dtype, 32)[0]
        return [(launch(worker, ranks, dtype, 32)[0] - alone).abs().max().item() for ranks in (2, 4)]

    assert max(gaps(torch.float32)) < 1e-5
    assert max(gaps(torch.float64)) < 1e-13
    alone, larger = launch(worker, 1, torch.float64, 32)[0], launch(worker, 1, torch.float64, 64)[0]
    assert (larger - alone).abs().max() > 1e-2


@proves("accumulation-divides-allreduces")
def test_k_micro_batches_make_one_kth_of_the_allreduces_per_sample():
    """Eight micro-batches in steps of k: the flight recorder sees one all-reduce per bucket and step."""

    def worker(k):
        model, x = DDP(network(), bucket_cap_mb=1e-4), torch.randn(4, 8).to(device())
        for _ in range(2):  # from the second backward on the buckets are small
            model(x).square().mean().backward()
        before = len(flight_records())
        for micro in range(8):
            with contextlib.nullcontext() if micro % k == k - 1 else model.no_sync():
                model(x).square().mean().backward()
        return [entry.operation for entry in flight_records()[before:]].count("all_reduce")

    assert [launch(worker, 2, k) for k in (1, 2, 4, 8)] == [[24, 24], [12, 12], [6, 6], [3, 3]]


@proves("mesh-one-group-per-axis")
def test_a_kept_mesh_gives_an_axis_one_group_however_often_it_is_asked():
    """Asked three times, named_mesh hands out the same groups; init_device_mesh makes all of them anew each time."""

    def worker(kept):
        def ask():
            if kept:
                return [named_mesh(replica=2, data=2).group(axis) for axis in ("replica", "data")]
            return init_device_mesh(device().type, (2, 2), mesh_dim_names=("replica", "data")).get_all_groups()

        return len({group.group_name for _ in range(3) for group in ask()})

    assert launch(worker, 4, True) == [2] * 4
    assert launch(worker, 4, False) == [6] * 4


@proves("ddp-averages-over-one-axis")
def test_ddp_over_one_axis_of_a_mesh_averages_within_that_axis_only():
    """Each rank's gradient is its number; with a group, or a slice of torch's mesh, DDP averages pairs."""

    def worker(how):
        mesh = named_mesh(replica=2, data=2)
        options = {"group": {"process_group": mesh.group("data")}, "mesh": {"device_mesh": mesh.torch_mesh["data"]}}
        linear = nn.Linear(1, 1, bias=False).to(device())
        ddp = DDP(linear, **options.get(how, {}))
        ddp(torch.full((1, 1), float(dist.get_rank())).to(device())).sum().backward()
        return linear.weight.grad.item()

    assert launch(worker, 4, "neither") == [1.5, 1.5, 1.5, 1.5]
    assert launch(worker, 4, "group") == [0.5, 0.5, 2.5, 2.5]
    assert launch(worker, 4, "mesh") == [0.5, 0.5, 2.5, 2.5]


@proves("new-group-by-members-crosses")
def test_groups_that_only_their_members_make_can_connect_the_wrong_ranks():
    """Ranks 0 and 3 each make their own pair, and both are group "1": no error, and each adds the other's number."""

    def worker(all_make_both):
        rank, pairs = dist.get_rank(), ([0, 1], [2, 3])
        if not all_make_both and rank in (1, 2):
            return None  # late
        groups = [dist.new_group(pair) for pair in pairs if all_make_both or rank in pair]
        group = groups[rank // 2 if all_make_both else 0]
        total = torch.tensor([10**rank]).to(device())
        dist.all_reduce(total, group=group)
        return dist.get_process_group_ranks(group), total.item()

    assert launch(worker, 4, True, env=ON_CPU) == [([0, 1], 11)] * 2 + [([2, 3], 1100)] * 2
    assert launch(worker, 4, False, env=ON_CPU) == [([0, 1], 1001), None, None, ([2, 3], 1001)]
