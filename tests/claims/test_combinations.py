"""DDP together with what else changes gradients or parameters: sparse ones, adapters, surgery, other parallelism."""

import re

import pytest
import torch
import torch.distributed as dist
from proof import proves, side_by_side
from small_model import batch, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.needs import ON_CPU, needs
from ddplab.runtime.torch_private import flight_records


def average(tensors):
    """Their means over all ranks, in place."""
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def sent_since(before):
    return [record.operation for record in flight_records()[before:]]


# -- gradients ------------------------------------------------------------------------------------


@proves("sparse-gradients-by-index")
def test_sparse_gradients_are_averaged_by_index_in_a_bucket_of_their_own():
    """Rank r touches rows r and r + 1 of an embedding; the mean has the rows of all, and is that of dense gradients."""

    def worker():
        ranks = dist.get_world_size()
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Embedding(8, 2, sparse=True), nn.Linear(2, 1)).double())
        rows = [torch.tensor([rank, rank + 1]) for rank in range(ranks)]
        found = []
        for _ in range(3):
            model.zero_grad()
            before = len(flight_records())
            model(rows[dist.get_rank()]).square().sum().backward()
            sent = [(r.operation, r.elements) for r in flight_records()[before:] if "reduce" in r.operation]
            gradient = model.module[0].weight.grad.coalesce()
            found.append((sorted(sent), gradient.indices().flatten().tolist(), gradient.to_dense()))
        table, layer = model.module[0].weight.detach().requires_grad_(), model.module[1]
        losses = sum(layer(nn.functional.embedding(mine, table)).square().sum() for mine in rows)
        return found, torch.autograd.grad(losses, table)[0] / ranks

    for ranks, results in zip(
        (2, 3), side_by_side(*(lambda n=n: launch(worker, n, env=ON_CPU) for n in (2, 3))), strict=True
    ):
        for found, expected in results:
            for sent, rows, gradient in found:
                assert sent == [("all_reduce", 3), ("sparse_all_reduce", 16)]
                assert rows == list(range(ranks + 1))
                assert gap([gradient, expected]) < 1e-12


@proves("adapter-around-the-wrapper")
def test_an_adapter_that_is_reached_around_its_wrapper_is_not_reduced():
    """A frozen base adds an adapter's output by a hook: wrapped alone, it needs a manual mean; inside, it does not."""

    def worker(alone):
        base, adapter = network().requires_grad_(False), nn.Linear(4, 1, bias=False).double().to(device())
        base.register_forward_hook(lambda module, args, out: out + adapter(args[0]))
        if alone:
            DDP(adapter)
            model = base
        else:
            base.add_module("adapter", adapter)
            base.forward = lambda x: nn.Sequential.forward(base[:3], x)
            model = DDP(base)
        before = len(flight_records())
        model(batch(dist.get_rank())).square().mean().backward()
        sent, gradient = sent_since(before), adapter.weight.grad.clone()
        average([adapter.weight.grad])
        return sent, gradient, adapter.weight.grad

    (*alone,), (*inside,) = side_by_side(lambda: launch(worker, 2, True), lambda: launch(worker, 2, False))
    assert [sent for sent, _, _ in alone] == [[], []]
    assert [sent for sent, _, _ in inside] == [["all_reduce"]] * 2
    mean = sum(gradient for _, gradient, _ in alone) / 2
    assert gap([gradient for _, gradient, _ in alone]) > 1e-3
    for (_, _, by_hand), (_, by_ddp, again) in zip(alone, inside, strict=True):
        assert torch.equal(by_hand, mean)
        assert torch.equal(by_ddp, mean)
        assert torch.equal(again, by_ddp)


def surgery(first, second):
    """Take from the first gradient what works against the second."""
    return first - min(first @ second, 0) / (second @ second) * second + second


@proves("gradient-of-each-loss")
def test_gradients_of_each_loss_are_taken_and_averaged_by_hand():
    """Two losses that disagree, on 2 and 3 ranks, for three steps: as one process on all batches."""

    def gradients(model, x):
        out, parameters = model(x), list(model.parameters())
        losses = out.square().mean(), (out - x.sum(dim=1, keepdim=True)).square().mean()
        each = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        return [torch.cat([g.flatten() for g in gradient]) for gradient in each]

    def step(model, gradient):
        for p in model.parameters():
            p.grad, gradient = gradient[: p.numel()].view_as(p), gradient[p.numel() :]
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    def worker():
        model, alone, sent, agree = DDP(network()), network(), [], []
        for number in range(3):
            before = len(flight_records())
            means = gradients(model, batch(dist.get_rank(), number))
            sent += sent_since(before)
            average(means)
            step(model, surgery(*means))
            everything = torch.cat([batch(rank, number) for rank in range(dist.get_world_size())])
            whole = gradients(alone, everything)
            agree.append((whole[0] @ whole[1]).item() > 0)
            step(alone, surgery(*whole))
        return sent, agree, flat_weights(model.module), flat_weights(alone)

    for results in side_by_side(*(lambda n=n: launch(worker, n) for n in (2, 3))):
        assert gap([weights for _, _, weights, _ in results]) == 0
        for sent, agree, weights, alone in results:
            assert sent == []
            assert not all(agree)
            assert gap([weights, alone]) < 1e-12


# -- other algorithms -----------------------------------------------------------------------------


@proves("post-local-sgd-parts-and-meets")
def test_post_local_sgd_lets_replicas_part_between_averages():
    """Each rank is a subgroup: equal for two steps of DDP, then only where weights are averaged, every third step."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    def worker():
        model = DDP(network())
        subgroups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        state = PostLocalSGDState(None, subgroups[dist.get_rank()], start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=3, warmup_steps=2)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
        weights = []
        for number in range(9):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), number)).square().mean().backward()
            optimizer.step()
            weights.append(flat_weights(model.module))
        return weights

    for ranks in (2, 3):
        equal = [gap(of_ranks) == 0 for of_ranks in zip(*launch(worker, ranks), strict=True)]
        assert equal == [True, True, True, False, False, True, False, False, True]


@proves("ddp-beside-tensor-parallelism")
def test_ddp_over_tensor_parallel_ranks():
    """Two by two ranks: a group is refused, a slice of the mesh is not; parameters listed in time get gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def worker():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        def split():
            return parallelize_module(network(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

        with pytest.raises(NotImplementedError):
            DDP(split(), process_group=mesh.get_group("dp"))
        model = split()
        before = list(model.parameters())
        model = DDP(model, device_mesh=mesh["dp"])
        after = list(model.parameters())
        row = mesh["dp"].get_local_rank()
        model(batch(row)).square().mean().backward()
        later = list(model.parameters())
        whole = network()
        whole(torch.cat([batch(0), batch(1)])).square().mean().backward()
        names = [name for name, p in whole.named_parameters()]
        column = mesh["tp"].get_local_rank()
        parts = {"0.weight": (0, column), "0.bias": (0, column), "2.weight": (1, column)}
        gaps = []
        for name, p, reference in zip(names, after, whole.parameters(), strict=True):
            expected = reference.grad
            if name in parts:
                expected = expected.chunk(2, parts[name][0])[column]
            local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            gaps.append(gap([local, expected]))
        return [p.grad is None for p in before], max(gaps), len(later)

    for none, worst, later in launch(worker, 4, env=ON_CPU):
        assert none == [True] * 4
        assert worst < 1e-12
        assert later == 0


# -- the wrapper's own questions ------------------------------------------------------------------


@proves("optimizer-before-or-after-wrapping")
def test_the_optimizer_may_be_made_before_or_after_wrapping():
    """Three steps of Adam: equal weights in every bit, and DDP's parameters are the model's."""

    def worker(made_before):
        model = network()
        optimizer = torch.optim.Adam(model.parameters()) if made_before else None
        ddp = DDP(model)
        same = all(a is b for a, b in zip(ddp.parameters(), model.parameters(), strict=True))
        optimizer = optimizer or torch.optim.Adam(ddp.parameters())
        start = flat_weights(model)
        for number in range(3):
            optimizer.zero_grad()
            ddp(batch(dist.get_rank(), number)).square().mean().backward()
            optimizer.step()
        return same, flat_weights(model), gap([start, flat_weights(model)])

    results = [
        result for runs in side_by_side(*(lambda b=b: launch(worker, 2, b) for b in (True, False))) for result in runs
    ]
    assert all(same and moved > 1e-4 for same, _, moved in results)
    assert gap([weights for _, weights, _ in results]) == 0


@proves("unused-indices-to-names")
def test_the_numbers_of_the_unused_error_count_the_trained_parameters():
    """Frozen layers lie between the unused ones: the list of names gives those that the error names at INFO."""

    def worker():
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(6)).to(device())
        layers[0].requires_grad_(False)
        layers[2].requires_grad_(False)
        used = (1, 2, 4)
        layers.forward = lambda x: sum(layers[i](x) for i in used)
        model = DDP(layers)
        model(torch.ones(1, 2, device=device())).sum().backward()
        try:
            model(torch.ones(1, 2, device=device()))
        except RuntimeError as error:
            names = [name for name, p in layers.named_parameters() if p.requires_grad]
            return str(error), names

    plain, informed = side_by_side(
        lambda: launch(worker, 2, env={"TORCH_DISTRIBUTED_DEBUG": "OFF"}),
        lambda: launch(worker, 2, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}),
    )
    for (text, names), (with_names, _) in zip(plain, informed, strict=True):
        numbers = re.search(r"Parameter indices which did not receive grad for rank \d: ([\d ]+)", text)[1]
        expected = [f"{layer}.{kind}" for layer in (3, 5) for kind in ("weight", "bias")]
        assert [names[int(number)] for number in numbers.split()] == expected
        assert sorted(
            re.search(r"did not receive grad for rank \d: (\d\.[\w., ]+)", with_names)[1].split(", ")
        ) == sorted(expected)


@proves("forward-sync-off-keeps-weights-equal")
def test_without_buffer_broadcasts_weights_stay_equal_and_statistics_do_not():
    """Three steps with BatchNorm on other data: equal gradients and weights; each rank evaluates with its own mean."""
    needs(torch="2.13")

    def worker():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double().to(device())
        model = DDP(net, forward_sync_buffers=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for number in range(3):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), number)).square().mean().backward()
            optimizer.step()
            found.append((flat_gradients(net), flat_weights(net)))
        model.eval()
        model(batch(0))  # in which buffers would be copied
        return found, net[1].running_mean

    for ranks in (2, 3):
        steps, means = zip(*launch(worker, ranks), strict=True)
        assert gap(means) > 1e-3
        for of_ranks in zip(*steps, strict=True):
            gradients, weights = zip(*of_ranks, strict=True)
            assert gap(gradients) == gap(weights) == 0


@proves("scaler-scales-part-in-join")
def test_in_join_a_rank_without_data_keeps_its_scale():
    """Rank 0 has two batches and rank 1 six; the scale doubles after every second step that a rank makes."""

    def worker():
        model = DDP(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device().type, init_scale=4.0, growth_interval=2)
        with model.join():
            for number in range((2, 6)[dist.get_rank()]):
                optimizer.zero_grad()
                scaler.scale(model(batch(dist.get_rank(), number)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        return scaler.get_scale()

    assert launch(worker, 2) == [8.0, 32.0]


@proves("all-reduce-adds")
def test_all_reduce_adds_in_place_and_avg_divides():
    """1 and 2 become 3 on both ranks, and 1.5 with ``AVG``; the call returns nothing."""
    needs(torch="2.13")

    def worker():
        found = []
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            own = torch.tensor(dist.get_rank() + 1.0, device=device())
            found += [dist.all_reduce(own, operation), own.item()]
        return found

    assert launch(worker, 2) == [[None, 3.0, None, 1.5]] * 2
