"""The idea of data parallelism: what keeps replicas equal, when they make a big batch, and what they hold in memory."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.runtime.torch_private import flight_records


def network(layer=nn.Identity):
    """Two small layers with a third between them, equal on all ranks; in float64, so that rounding is plain to tell."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), layer(16), nn.Tanh(), nn.Linear(16, 1)).double().to(device())


def batch(samples):
    """The whole batch, equal on all ranks."""
    x = torch.randn(samples, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device())
    return x, x.sum(dim=1, keepdim=True) + 1


def flat(tensors):
    return torch.cat([t.detach().flatten().cpu() for t in tensors])


def gradient(model):
    return flat(p.grad for p in model.parameters())


def equal(tensors):
    return all(torch.equal(tensors[0], other) for other in tensors[1:])


def train(average, same_data):
    """Five steps of plain replicas, without DDP; the weights after each."""
    model, (x, y) = network(), batch(4 * 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shard = 0 if same_data else dist.get_rank()
    after = [flat(model.parameters())]
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.split(6)[shard]), y.split(6)[shard]).backward()
        if average:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        after.append(flat(model.parameters()))
    return after


@proves("replicas-drift-without-sync")
def test_replicas_drift_without_a_sync():
    """Equal at the start, and no two ranks equal after any of five steps; on the same data they stay equal."""
    for ranks in (2, 3, 4):
        start, *later = zip(*launch(train, ranks, False, False), strict=True)
        assert equal(start)
        for weights in later:
            assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
        assert all(equal(weights) for weights in zip(*launch(train, ranks, False, True), strict=True))


@proves("averaged-gradients-keep-replicas-equal")
def test_averaged_gradients_keep_replicas_equal():
    """The same five steps with an all-reduce and a division before each: equal bit for bit after every one."""
    for ranks in (2, 3, 4):
        after = launch(train, ranks, True, False)
        assert all(equal(weights) for weights in zip(*after, strict=True))
        assert not torch.equal(after[0][0], after[0][-1])  # they did learn


def compare(reduction, sizes, layer=nn.Identity, scale=lambda share: 1.0, counts=None):
    """DDP's gradient over shards of these sizes, and that of the whole batch in one process.

    A rank's loss is multiplied by ``scale`` of its share of the samples; ``counts`` says what a sample counts in
    the whole batch's loss, where it is neither their sum nor their mean.
    """
    (x, y), whole = batch(sum(sizes)), network(layer)
    rank, model = dist.get_rank(), DDP(copy.deepcopy(whole))
    mine = nn.functional.mse_loss(model(x.split(sizes)[rank]), y.split(sizes)[rank], reduction=reduction)
    (mine * scale(sizes[rank] / len(x))).backward()
    if counts is None:
        nn.functional.mse_loss(whole(x), y, reduction=reduction).backward()
    else:
        (counts * (whole(x) - y).square()).sum().backward()
    return gradient(model), gradient(whole)


def close(a, b):
    return ((a - b).norm() / b.norm()).item() < 1e-12


@proves("mean-of-means-equals-big-batch")
def test_the_mean_of_means_is_the_big_batch_gradient():
    """In float64 the two differ by less than 1e-12 of their length."""
    for ranks in (2, 3, 4):
        for mean, big in launch(compare, ranks, "mean", [6] * ranks):
            assert close(mean, big)


@proves("sum-loss-off-by-world-size")
def test_a_sum_loss_gives_the_gradient_divided_by_the_world_size():
    """Multiplied by the world size it is the big batch's; as it is, it is not."""
    for ranks in (2, 3, 4):
        for mean, big in launch(compare, ranks, "sum", [6] * ranks):
            assert not close(mean, big)
            assert close(ranks * mean, big)


@proves("unequal-shards-weigh-samples-unequally")
def test_unequal_shards_weigh_samples_unequally():
    """DDP's gradient is that of a weighted sum in which a sample of a shard of m counts 1 / (world size × m)."""

    def worker(sizes):
        counts = [torch.full((m, 1), 1 / (len(sizes) * m), dtype=torch.float64) for m in sizes]
        return compare("mean", sizes), compare("mean", sizes, counts=torch.cat(counts).to(device()))

    for sizes in ([8, 4], [8, 4, 2], [8, 4, 4, 2]):
        for (mean, big), (again, weighted) in launch(worker, len(sizes), sizes):
            assert not close(mean, big)
            assert close(again, weighted)


@proves("weighting-mends-unequal-shards")
def test_weighting_by_the_share_mends_unequal_shards():
    """Each rank multiplies its loss by the world size and by its share of the samples."""

    def worker(sizes):
        return compare("mean", sizes, scale=lambda share: len(sizes) * share)

    for sizes in ([8, 4], [8, 4, 2], [8, 4, 4, 2]):
        for mean, big in launch(worker, len(sizes), sizes):
            assert close(mean, big)


@proves("batchnorm-breaks-equality")
def test_batchnorm_breaks_the_equality():
    """The case that was equal, with a BatchNorm; one process that normalizes shard by shard agrees again."""

    def worker(sizes):
        mean, big = compare("mean", sizes, nn.BatchNorm1d)
        (x, y), whole = batch(sum(sizes)), network(nn.BatchNorm1d)
        for my_x, my_y in zip(x.split(sizes), y.split(sizes), strict=True):
            (nn.functional.mse_loss(whole(my_x), my_y) / len(sizes)).backward()
        return mean, big, gradient(whole)

    for ranks in (2, 3, 4):
        for mean, big, shard_by_shard in launch(worker, ranks, [6] * ranks):
            assert (mean - big).norm() > 0.001 * big.norm()
            assert close(mean, shard_by_shard)


@proves("optimizer-state-stays-equal")
def test_the_optimizer_state_stays_equal_though_never_sent():
    """The last of five steps sends as many elements as there are gradients; without the sync, states differ."""

    def worker(kind, options, synchronize):
        model, (x, y) = DDP(network()), batch(4 * 6)
        optimizer = kind(model.parameters(), lr=0.01, **options)
        my_x, my_y = x.split(6)[dist.get_rank()], y.split(6)[dist.get_rank()]
        for _ in range(5):
            before = len(flight_records())
            optimizer.zero_grad()
            nn.functional.mse_loss((model if synchronize else model.module)(my_x), my_y).backward()
            optimizer.step()
        sent = sum(record.elements for record in flight_records()[before:])
        states = [t for state in optimizer.state.values() for t in state.values() if t is not None]
        return flat(states), sent, gradient(model).numel()

    for ranks in (2, 3, 4):
        for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})):
            with_sync, without = side_by_side(
                *(partial(launch, worker, ranks, kind, options, s) for s in (True, False))
            )
            states, sent, gradients = zip(*with_sync, strict=True)
            assert equal(states)
            assert sent == gradients
            alone, sent, _ = zip(*without, strict=True)
            assert not equal(alone)
            assert not any(sent)


@proves("autocast-keeps-copies-of-weights")
def test_autocast_keeps_copies_of_weights_for_the_backward():
    """What autograd saves of two layers: without autocast the weight itself, with it a copy in half the bytes.

    The first layer keeps no weight if its input needs no gradient.
    """

    def saved_weights(autocast, through=True):
        net, found = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)).to(device()), []
        weights = {p.untyped_storage().data_ptr() for p in net.parameters()}

        def note(tensor):
            if tensor.shape[0] != 8:  # the others are activations, of a batch of 8
                found.append((tensor.dtype, tensor.untyped_storage().data_ptr() in weights))
            return tensor

        x = torch.ones(8, 64, device=device(), requires_grad=through)
        noted = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with noted, torch.autocast(device().type, torch.bfloat16, enabled=autocast):
            net(x)
        return found

    cases = (False,), (True,), (True, False)
    for plain, autocast, second in launch(lambda: [saved_weights(*case) for case in cases], 2):
        assert plain == [(torch.float32, True)] * 2
        assert autocast == [(torch.bfloat16, False)] * 2
        assert second == [(torch.bfloat16, False)]


@proves("memory-ledger-exact")
def test_the_memory_ledger_is_exact():
    """The storages of all tensors, each counted once; Adam also counts steps, in 4 bytes per parameter tensor."""

    def worker(ddp, views):
        net, buckets = network().float(), []
        model = DDP(net, gradient_as_bucket_view=views) if ddp else net

        def note(state, bucket):
            buckets.append(bucket.buffer())
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        if ddp:
            model.register_comm_hook(None, note)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            buckets.clear()
            optimizer.zero_grad()
            model(batch(6)[0].float()).square().mean().backward()
            optimizer.step()
        states = [t for state in optimizer.state.values() for t in state.values()]
        tensors = [*net.parameters(), *(p.grad for p in net.parameters()), *buckets, *states]
        storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        steps = 4 * len(optimizer.state)
        return sum(storages.values()) - steps, gradient(net).numel()

    ways = ((16, False, False), (20, True, False), (16, True, True))
    for ranks in (2, 3, 4):
        runs = side_by_side(*(partial(launch, worker, ranks, ddp, views) for _, ddp, views in ways))
        for (per_parameter, *_), results in zip(ways, runs, strict=True):
            for nbytes, parameters in results:
                assert nbytes == per_parameter * parameters
