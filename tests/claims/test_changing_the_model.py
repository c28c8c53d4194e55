"""What a wrapped model notices when it is changed, and backwards that DDP did not start."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from proof import proves, side_by_side
from small_model import batch, network
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from ddplab import device, launch
from ddplab.apparatus.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.torch_private import flight_records


@proves("frozen-before-wrapping-costs-nothing")
def test_what_is_frozen_before_wrapping_is_never_reduced():
    """An adapter on a frozen base: the base is copied from rank 0, and a backward sends the adapter's gradient only."""

    def worker():
        base, adapter = network().requires_grad_(False), nn.Linear(4, 1, bias=False).double().to(device())
        for p in base.parameters():
            p.data.fill_(dist.get_rank())
        model = DDP(nn.ModuleList([base, adapter]))
        model.module.forward = lambda x: base(x) + adapter(x)
        sent = []
        for _ in range(3):
            loss, before = model(batch(dist.get_rank())).square().mean(), len(flight_records())
            loss.backward()
            sent.append([(r.operation, r.elements) for r in flight_records()[before:]])
        return flat_weights(base), adapter.weight.grad.flatten().cpu(), sent

    for ranks in (2, 3):
        weights, gradients, sent = zip(*launch(worker, ranks), strict=True)
        assert not any(w.any() for w in weights)  # rank 0's
        assert gap(gradients) == 0
        assert sent == ([[("all_reduce", 4)]] * 3,) * ranks


@proves("tied-weights-count-once")
def test_a_tied_weight_is_reduced_once():
    """Two layers share their weight: one gradient in the buckets, and it is the mean of the ranks' gradients.

    If the first layer and the last share it, it is alone in the last of several buckets.
    """

    def worker(ranks):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)).double().to(device())
        net[2].weight = net[0].weight
        alone = copy.deepcopy(net)
        for rank in range(ranks):
            (alone(batch(rank)).square().mean() / ranks).backward()
        model, found = DDP(net), []
        for _ in range(3):
            model.zero_grad()
            loss, before = model(batch(dist.get_rank())).square().mean(), len(flight_records())
            loss.backward()
            sent = [(r.operation, r.elements) for r in flight_records()[before:]]
            found.append((sent, torch.allclose(net[0].weight.grad, alone[0].weight.grad, rtol=1e-12, atol=0)))
        return found

    def buckets(tied):
        net = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4))).to(device())
        if tied:
            net[3].weight = net[0].weight
        model, names, launched = DDP(net, bucket_cap_mb=1e-5), {p: n for n, p in net.named_parameters()}, []

        def note(launched, bucket):
            launched.append([names[p] for p in bucket.parameters()])
            return allreduce_hook(None, bucket)

        model.register_comm_hook(launched, note)
        for _ in range(2):
            launched.clear()
            model(batch(dist.get_rank()).float()).square().mean().backward()
        return launched[0], launched[-1]

    for ranks in (2, 3):
        assert launch(worker, ranks, ranks) == [[([("all_reduce", 16)], True)] * 3] * ranks
        assert launch(buckets, ranks, True) == [(["2.weight"], ["0.weight"])] * ranks
        assert launch(buckets, ranks, False) == [(["3.weight"], ["0.weight"])] * ranks


@proves("several-networks")
def test_two_networks_are_wrapped_one_by_one():
    """A generator and a discriminator, in turn: gradients agree; a frozen discriminator sends nothing."""

    def worker(freeze):
        maker, judge = DDP(nn.Linear(4, 4).to(device())), DDP(nn.Linear(4, 1).to(device()))
        found = []
        for number in range(3):
            x = batch(dist.get_rank(), number).float()
            judge.zero_grad()
            (judge(x).mean() - judge(maker(x).detach()).square().mean()).backward()
            of_judge = flat_gradients(judge)
            maker.zero_grad()
            judge.requires_grad_(not freeze)
            loss, before = judge(maker(x)).square().mean(), len(flight_records())
            loss.backward()
            judge.requires_grad_(True)
            sent = sorted(r.elements for r in flight_records()[before:])
            found.append((torch.cat([of_judge, flat_gradients(maker)]), sent))
        return found

    for ranks in (2, 3):
        for freeze, sent in (False, [5, 20]), (True, [20]):
            for step in zip(*launch(worker, ranks, freeze), strict=True):
                gradients, elements = zip(*step, strict=True)
                assert gap(gradients) == 0
                assert elements == (sent,) * ranks


@proves("ema-of-the-inner-module")
def test_an_average_of_weights_needs_no_communication():
    """Five steps: the averaged weights are equal on all ranks and nothing was sent for them; its buffers differ."""

    def worker():
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device())
        model = DDP(net)
        average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer, sent = torch.optim.SGD(model.parameters(), lr=0.1), 0
        for number in range(5):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), number).float()).square().mean().backward()
            optimizer.step()
            before = len(flight_records())
            average.update_parameters(net)
            sent += len(flight_records()) - before
        moved = not torch.equal(flat_weights(average), flat_weights(net))
        return flat_weights(average), average.module[1].running_mean.cpu(), sent, moved

    for ranks in (2, 3):
        weights, means, sent, moved = zip(*launch(worker, ranks), strict=True)
        assert gap(weights) == 0 < gap(means)
        assert not any(sent)
        assert all(moved)


# -- backwards that DDP did not start -----------------------------------------------------------------


@proves("static-graph-foreign-backward")
def test_static_graph_and_autograd_grad_before_the_first_backward():
    """Four steps; with the call in the first of them gradients stay local in all: with static_graph, and only then."""

    def worker(static_graph, calls):
        model, found = DDP(network(), static_graph=static_graph), []
        for number in range(4):
            model.zero_grad()
            loss = model(batch(dist.get_rank(), number)).square().mean()
            if number < calls:
                torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            loss.backward()
            found.append(flat_gradients(model))
        return found

    cases = ((False, 0), (False, 4), (True, 0), (True, 1), (True, 4))
    for ranks in (2, 3):
        runs = side_by_side(*(partial(launch, worker, ranks, *case, quiet=True) for case in cases))
        for (static_graph, calls), results in zip(cases, runs, strict=True):
            for gradients in zip(*results, strict=True):
                assert (gap(gradients) > 0) == (static_graph and calls > 0), (static_graph, calls)


@proves("gradient-penalty")
def test_a_gradient_penalty_inside_the_loss():
    """The gradient of a gradient, against one process in float64; with static_graph ranks keep their own."""

    def loss_of(model, x):
        x = x.clone().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.square().mean() + slope.square().sum(dim=1).mean()

    def worker(ranks, options):
        model, alone, found = DDP(network(), **options), network(), []
        for number in range(3):
            model.zero_grad(), alone.zero_grad()
            loss_of(model, batch(dist.get_rank(), number)).backward()
            for rank in range(ranks):
                (loss_of(alone, batch(rank, number)) / ranks).backward()
            found.append(torch.allclose(flat_gradients(model), flat_gradients(alone), rtol=1e-12, atol=1e-15))
        return found

    for ranks in (2, 3):
        for options in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
            assert launch(worker, ranks, ranks, options, quiet=True) == [[True] * 3] * ranks
        assert launch(worker, ranks, ranks, {"static_graph": True}, quiet=True) == [[False] * 3] * ranks


@proves("checkpointing-and-ddp")
def test_activation_checkpointing_under_ddp():
    """A layer that is checkpointed once or twice, in both forms, with three settings: raised, equal, or apart."""

    class Net(nn.Module):
        def __init__(self, embedded):
            super().__init__()
            self.embed = nn.Linear(4, 4) if embedded else nn.Identity()
            self.block = nn.Linear(4, 4)

        def forward(self, x, times, reentrant):
            x = self.embed(x)
            for _ in range(times):
                x = checkpoint(self.block, x, use_reentrant=reentrant).tanh()
            return x.square().sum()

    def outcome(embedded, times, reentrant, options):
        torch.manual_seed(0)
        model, found = DDP(Net(embedded).to(device()), **options), []
        x = batch(dist.get_rank()).float().requires_grad_()
        for _ in range(3):
            model.zero_grad()
            loss = model(x, times, reentrant)
            try:
                loss.backward()
            except RuntimeError as error:
                return "ready only once" in str(error)
            found.append(flat_gradients(model))
        return torch.cat(found)

    default, search, _ = settings = {}, {"find_unused_parameters": True}, {"static_graph": True}
    cases = [(e, t, r, o) for e in (False, True) for t in (1, 2) for r in (False, True) for o in settings]

    def worker():
        return [outcome(*case) for case in cases]

    for ranks in (2, 3):
        for (embedded, times, reentrant, options), found in zip(
            cases, zip(*launch(worker, ranks, quiet=True), strict=True), strict=True
        ):
            case = embedded, times, reentrant, options
            if reentrant and (options == search or (times == 2 and options == default and embedded)):
                assert all(outcome is True for outcome in found), case  # raised
            else:
                assert all(torch.is_tensor(outcome) for outcome in found), case
                silent = reentrant and times == 2 and options == default  # the block is the whole bucket
                assert (gap(found) > 0) == silent, case


@proves("fp16-mean-divides-first")
def test_half_precision_gradients_are_divided_before_they_are_summed():
    """60000 + 60000 is infinite in fp16; half of its smallest number is zero."""

    def worker():
        model = DDP(nn.Linear(1, 1, bias=False).half().to(device()))
        means = []
        for value in (60000.0, 2.0**-24):
            model.zero_grad()
            model(torch.tensor([[value]], dtype=torch.half, device=device())).sum().backward()
            means.append(model.module.weight.grad.item())
        plain = torch.tensor(60000.0, dtype=torch.half, device=device())
        dist.all_reduce(plain)
        return means, plain.item()

    for means, plain in launch(worker, 2):
        assert means == [60000.0, 0.0]
        assert plain == float("inf")
