"""The fault lab, part "DDP and the training step": what each rank of a failing step says, on real ranks."""

import contextlib
import io
import re
import time
from functools import partial

import torch
import torch.distributed as dist
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from ddplab import device
from ddplab.labs.gaps import flat_gradients, flat_weights, gap
from ddplab.runtime.needs import needs

LOST_PEER = re.compile(r"Connection (closed|reset) by peer|Broken pipe")


def lost_peer(ending):
    """The rank raised, and all it knows is that a peer has left."""
    return ending.how == "raised" and bool(LOST_PEER.search(ending.error))


def gloo():
    """A gloo group on every machine, because the text of a lost peer is gloo's."""
    return patient_group()


class TwoHeads(nn.Module):
    """The second head takes part only if it is asked to; ``factor`` 0 keeps it in the graph without an effect."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x, with_b, factor=1.0):
        h = self.trunk(x)
        return self.a(h) + factor * self.b(h) if with_b else self.a(h)


def two_heads_step(model, with_b, factor=1.0):
    """One forward and backward, each announced; returns the gradients."""
    x = torch.full((2, 3), 1.0 + dist.get_rank()).to(device())
    model.zero_grad()
    print("forward")
    loss = model(x, with_b, factor).square().mean()
    print("backward")
    loss.backward()
    print("done")
    return flat_gradients(model)


@proves("fault-unused-parameter")
def test_a_parameter_left_out_on_some_ranks():
    """Which ranks raise what in which step; with a search or a factor of zero all ranks agree."""

    def worker(who, by_factor, options):
        torch.manual_seed(0)
        model = DDP(TwoHeads().to(device()), process_group=gloo(), **options)
        for step in (1, 2):
            left_out = step == 1 and dist.get_rank() in who
            with_b, factor = (True, float(not left_out)) if by_factor else (not left_out, 1.0)
            gradients = two_heads_step(model, with_b, factor)
        return gradients

    for ranks, who in ((2, {1}), (4, {0, 2})):
        endings = postmortem(worker, ranks, who, False, {}, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"})
        for e in endings:
            if e.rank in who:
                assert "Expected to have finished reduction in the prior iteration" in e.error
                assert f"did not receive grad for rank {e.rank}: b.bias, b.weight" in e.error
                assert e.printed.split() == ["forward", "backward", "done", "forward"]
            else:
                assert lost_peer(e)
                assert e.printed.split() == ["forward", "backward"]
        for by_factor, options in ((True, {}), (False, {"find_unused_parameters": True})):
            endings = postmortem(worker, ranks, who, by_factor, options)
            assert gap([e.value for e in endings]) == 0


@proves("fault-constructor-mismatch")
def test_another_model_on_one_rank():
    """Three ranks, one of which has a larger layer: rank 1, or rank 0."""

    def worker(odd):
        size = 5 if dist.get_rank() == odd else 4
        model = DDP(nn.Linear(3, size).to(device()), process_group=gloo())
        model(torch.ones(2, 3).to(device())).sum().backward()

    for odd, says in ((1, {1}), (2, {2}), (0, {1, 2})):
        for e in postmortem(worker, 3, odd):
            assert e.how == "raised"
            if e.rank in says:
                shape = "[5, 3]" if e.rank == odd else "[4, 3]"
                text = f"params[0] in this process with sizes {shape} appears not to match sizes of the same param"
                assert f"[{e.rank}]: {text} in process 0" in e.error
            else:
                assert lost_peer(e)


@proves("fault-ready-twice")
def test_a_checkpointed_layer_that_runs_twice():
    """With and without a layer before it; what fixes it and what does not."""

    class Tied(nn.Module):
        def __init__(self, layer_before):
            super().__init__()
            self.before = nn.Linear(3, 3) if layer_before else nn.Identity()
            self.block = nn.Linear(3, 3)

        def forward(self, x, reentrant):
            x = checkpoint(self.block, self.before(x), use_reentrant=reentrant)
            return checkpoint(self.block, x, use_reentrant=reentrant)

    def worker(layer_before, reentrant, options):
        torch.manual_seed(0)
        model = DDP(Tied(layer_before).to(device()), **options)
        x = torch.full((2, 3), 1.0 + dist.get_rank()).to(device()).requires_grad_()
        for _ in range(3):
            model.zero_grad()
            model(x, reentrant).square().sum().backward()
        return flat_gradients(model)

    for options in ({}, {"find_unused_parameters": True}):
        for e in postmortem(worker, 2, True, True, options, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}):
            assert e.how == "raised"
            assert "Expected to mark a variable ready only once" in e.error
            assert "with name block.bias has been marked as ready twice" in e.error
    silent = postmortem(worker, 2, False, True, {})
    assert [e.how for e in silent] == ["returned", "returned"]
    assert gap([e.value for e in silent]) > 0.1
    for layer_before in (True, False):
        for reentrant, options in ((False, {}), (True, {"static_graph": True})):
            assert gap(launch(worker, 2, layer_before, reentrant, options)) == 0


@proves("fault-ready-twice-by-two-forwards")
def test_two_forwards_through_different_branches_before_one_backward():
    """With the search for unused parameters it raises; without it, or in one forward, ranks agree."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x, names):
            return sum(self.head(getattr(self, name)(x)).square().mean() for name in names)

    def worker(calls, find_unused):
        torch.manual_seed(0)
        model = DDP(Branches().to(device()), find_unused_parameters=find_unused)
        x = torch.full((2, 3), 1.0 + dist.get_rank()).to(device())
        sum(model(x, names) for names in calls).backward()
        return flat_gradients(model)

    for calls in (["a", "b"], ["b", "a"]):
        for e in postmortem(worker, 2, calls, True):
            assert e.how == "raised"
            assert "Expected to mark a variable ready only once" in e.error
        assert gap(launch(worker, 2, calls, False)) == 0
    assert gap(launch(worker, 2, ["ab"], True)) == 0


@proves("fault-modified-in-place")
def test_a_second_forward_changes_what_the_first_backward_reads():
    """The gradient of the first output, with and without a second forward that has no part in it."""
    needs(torch="2.13")  # before, autograd noticed the broadcast and raised

    class Scaled(nn.Module):
        def __init__(self, clone):
            super().__init__()
            self.net, self.clone = nn.Linear(3, 1), clone
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            self.scale = 0.5 * self.scale + 0.5 * x.detach().std()
            return self.net(x) / (self.scale.clone() if self.clone else self.scale)

    def worker(wrap, second_forward, clone=False, sync=None):
        torch.manual_seed(0)
        model = Scaled(clone).to(device())
        model = DDP(model, forward_sync_buffers=sync) if wrap else model
        torch.manual_seed(dist.get_rank())
        x, y = (1 + 3 * dist.get_rank()) * torch.randn(2, 8, 3).to(device())
        out = model(x)
        if second_forward == "before":
            model(y)
        out.mean().backward()
        if second_forward == "after":
            model(y)
        return flat_gradients(model)

    for ranks in (2, 3):
        fixes = (("after",), ("before", True), ("before", False, False))
        alone, twice, right, wrong, *fixed = side_by_side(
            partial(launch, worker, ranks, False, "none"),
            partial(launch, worker, ranks, False, "before"),
            partial(launch, worker, ranks, True, "none"),
            partial(launch, worker, ranks, True, "before"),
            *(partial(launch, worker, ranks, True, *fix) for fix in fixes),
        )
        assert all(map(torch.equal, alone, twice))
        torch.testing.assert_close(right[0], torch.stack(alone).mean(dim=0))
        assert gap(wrong) == 0
        assert gap([wrong[0], right[0]]) > 0.01
        for gradients in fixed:
            assert gap(gradients + right) == 0


@proves("fault-static-graph-changes")
def test_a_static_graph_that_changes():
    """A head that drops out, or comes in, at the fourth step, on one rank or on all; and what fixes it."""

    def worker(before, who, fix):
        options = {"find_unused_parameters": True} if fix == "search" else {"static_graph": True}
        torch.manual_seed(0)
        group, net, gradients = gloo(), TwoHeads().to(device()), []
        model = DDP(net, process_group=group, **options)
        for step in range(1, 7):
            changed = step >= 4 and dist.get_rank() in who
            if fix == "new wrapper" and step == 4:
                model = DDP(net, process_group=group, **options)
            if fix == "factor":
                gradients.append(two_heads_step(model, True, float(before != changed)))
            else:
                gradients.append(two_heads_step(model, before != changed))
        return gradients

    done, in_backward = 3 * ["forward", "backward", "done"], ["forward", "backward"]
    for before in (True, False):
        words = "then got unused in the second" if before else "then got used in the second"
        for who in ([1], [0, 1]):
            fixes = ["search", "factor"] + ["new wrapper"] * (len(who) == 2)
            endings, *fixed = side_by_side(
                partial(postmortem, worker, 2, before, who, ""),
                *(partial(launch, worker, 2, before, who, fix, quiet=True) for fix in fixes),
            )
            for e in endings:
                if e.rank in who:
                    assert words in e.error
                    assert "not compatible with static_graph set to True" in e.error
                    fourth = [*in_backward, "done", "forward"] if before else in_backward
                else:
                    assert lost_peer(e)
                    fourth = in_backward
                assert e.printed.split() == done + fourth
            for results in fixed:
                assert all(gap(gradients) == 0 for gradients in zip(*results, strict=True))


@proves("fault-module-prefix")
def test_a_checkpoint_of_the_wrapper():
    """Loaded into the bare model on rank 0 before wrapping: strictly, with ``strict=False``, without the prefix."""

    def worker(how):
        def network(seed):
            torch.manual_seed(seed)
            return nn.Linear(3, 1).to(device())

        group = gloo()
        saved, file = DDP(network(0), process_group=group), io.BytesIO()
        torch.save((saved.module if how == "unwrapped" else saved).state_dict(), file)
        net = network(1)
        if dist.get_rank() == 0:
            file.seek(0)
            state = torch.load(file)
            if how == "consumed":
                nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
            net.load_state_dict(state, strict=how != "tolerant")
        model = DDP(net, process_group=group)
        return [flat_weights(m) for m in (saved, network(1), model)]

    for ranks in (2, 3):
        first, *others = postmortem(worker, ranks, "strict")
        assert 'Missing key(s) in state_dict: "weight", "bias"' in first.error
        assert 'Unexpected key(s) in state_dict: "module.weight", "module.bias"' in first.error
        assert all(lost_peer(e) for e in others)
        for saved, fresh, model in launch(worker, ranks, "tolerant"):
            assert torch.equal(model, fresh)
            assert not (model == saved).any()
        for how in ("unwrapped", "consumed"):
            for saved, _, model in launch(worker, ranks, how):
                assert torch.equal(model, saved)


@proves("fault-nan-on-one-rank")
def test_a_nan_in_one_ranks_batch():
    """Losses and weights of each rank by step, and what each rank's bucket held before its all-reduce."""

    def worker(who, bad, agree):
        torch.manual_seed(0)
        model, local = DDP(nn.Linear(3, 1).to(device())), []

        def hook(state, bucket):
            local.append(bool(bucket.buffer().isfinite().all()))
            mean = bucket.buffer() / dist.get_world_size()
            return dist.all_reduce(mean, async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
        optimizer, losses, weights = torch.optim.SGD(model.parameters(), lr=0.1), [], []
        for step in range(4):
            x = torch.ones(4, 3).to(device())
            if step == 1 and dist.get_rank() == who:
                x[2, 1] = bad
            loss = model(x).square().mean()
            finite = loss.isfinite().float()
            if agree:
                dist.all_reduce(finite, op=dist.ReduceOp.MIN)
            losses.append(bool(loss.isfinite()))
            optimizer.zero_grad()
            if finite or not agree:
                loss.backward()
                optimizer.step()
            weights.append(bool(flat_weights(model).isfinite().all()))
        return losses, local, weights

    for bad in (float("nan"), float("inf")):
        for rank, (losses, local, weights) in enumerate(launch(worker, 3, 1, bad, False)):
            seen = [True, rank != 1, False, False]
            assert losses == local == seen
            assert weights == [True, False, False, False]
        for rank, (losses, local, weights) in enumerate(launch(worker, 3, 1, bad, True)):
            assert losses == [True, rank != 1, True, True]
            assert local == [True] * 3
            assert weights == [True] * 4


@proves("fault-memory-on-one-rank")
def test_out_of_memory_on_one_rank():
    """Raised, caught on that rank, or left out by all: what each rank's steps were averaged with."""

    def worker(mode):
        group = gloo()
        model = DDP(nn.Linear(1, 1, bias=False).to(device()), process_group=group)
        gradients = {}
        for step in range(1, 5):
            if mode == "skip" and len(gradients) == 3:
                shorten(group, 1.0)  # rank 0's fourth; rank 1 has had all of its own
            failed = torch.zeros(1)
            try:
                x = torch.full((1, 1), float(step)).to(device())  # the local gradient is the number of the step
                out = model(x)
                if step == 2 and dist.get_rank() == 1:
                    torch.empty(2**50, device=device())
            except RuntimeError as error:
                if mode == "raise" or not re.search(r"can't allocate memory|out of memory", str(error)):
                    raise
                failed += 1
            if mode == "all skip":
                dist.all_reduce(failed, group=group)
            if not failed:
                model.zero_grad()
                out.sum().backward()
                gradients[step] = model.module.weight.grad.item()
                print(f"step {step}: {gradients[step]:g}")
        if mode == "skip" and len(gradients) == 3:
            shorten(group, 1.0)
        return gradients

    (first, second), (one, two), averaged = side_by_side(
        partial(postmortem, worker, 2, "raise"),
        partial(postmortem, worker, 2, "skip"),
        partial(launch, worker, 2, "all skip", quiet=True),
    )
    assert lost_peer(first)
    assert second.how == "raised"
    assert re.search(r"can't allocate memory|out of memory", second.error)

    assert one.how == "raised"
    assert "Timed out" in one.error
    assert one.printed.splitlines() == ["step 1: 1", "step 2: 2.5", "step 3: 3.5"]
    assert two.value == {1: 1.0, 3: 2.5, 4: 3.5}

    assert averaged == [{1: 1.0, 3: 3.0, 4: 4.0}] * 2


@proves("fault-straggler")
def test_a_slow_rank_shows_before_its_last_bucket_is_launched(tmp_path):
    """One of three ranks stays in its forward or in its backward until the others have launched their last bucket.

    That they do shows that they do not wait before; that no step ends before its own launch, that they wait behind it.
    So on one clock its launch is the last, and from there to the end of the step it is shortest for this rank.
    """

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, where):
            ctx.where = where
            if where[0] == "forward":
                where[1]()
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.where[0] == "backward":
                ctx.where[1]()
            return gradient, None

    def worker(who, where, folder):
        rank, others = dist.get_rank(), set(range(dist.get_world_size())) - {who}
        model, launched = DDP(nn.Linear(3, 3).to(device())), []

        def stay():
            while not all((folder / f"{len(launched)} {other}").exists() for other in others):
                time.sleep(0.01)

        def hook(state, bucket):
            if bucket.is_last():
                launched.append(time.monotonic())  # one clock for all processes of a machine
                (folder / f"{len(launched) - 1} {rank}").touch()
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
        ended = []
        for _ in range(2):
            x = torch.ones(2, 3).to(device())
            Slow.apply(model(x), (where if rank == who else "", stay)).sum().backward()
            next(model.parameters()).grad.sum().item()  # on a GPU: wait for it
            ended.append(time.monotonic())
        return launched, ended

    for who, where in ((1, "forward"), (0, "backward")):
        folder = tmp_path / where
        folder.mkdir()
        for step in zip(*(zip(*times, strict=True) for times in launch(worker, 3, who, where, folder)), strict=True):
            launched, ended = zip(*step, strict=True)
            assert max(launched) == launched[who]
            assert min(ended) > launched[who]


@proves("fault-hook-returns-nothing")
def test_two_ways_to_die_of_a_segmentation_fault():
    """A hook that returns None, other wrong hooks, and DETAIL with gloo; INFO, and DETAIL without DDP, are well."""

    def worker(returns):
        import faulthandler

        faulthandler.enable()
        group = gloo()

        def hook(state, bucket):
            future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
            if returns == "None":
                return None
            if returns == "tensor":
                return bucket.buffer()
            return future.then(lambda done: None if returns == "future of None" else done.value()[0])

        if returns == "no DDP":
            dist.all_reduce(torch.ones(2), group=group)
            return
        model = DDP(nn.Linear(3, 1), process_group=group)
        if returns:
            model.register_comm_hook(None, hook)
        model(torch.ones(2, 3)).sum().backward()

    for ranks in (1, 2):
        for returns, level, where in (("None", "OFF", "in backward"), ("", "DETAIL", "in _ddp_init_helper")):
            for e in postmortem(worker, ranks, returns, env={"TORCH_DISTRIBUTED_DEBUG": level}):
                assert (e.how, e.error) == ("died", "was killed by SIGSEGV")
                assert "Segmentation fault" in e.printed
                assert where in e.printed
                assert "Traceback" not in e.printed
    for returns, words in (
        ("tensor", "callback must return a torch.futures.Future object, but got torch.Tensor"),
        ("future of None", "Expected a proper Tensor but got None"),
    ):
        for e in postmortem(worker, 2, returns):
            assert e.how == "raised"
            assert words in e.error
    for returns, level in (("a tensor's future", "INFO"), ("no DDP", "DETAIL")):
        endings = postmortem(worker, 2, returns, env={"TORCH_DISTRIBUTED_DEBUG": level})
        assert [e.how for e in endings] == ["returned"] * 2


@proves("fault-overflow-on-one-rank")
def test_an_overflow_on_one_rank():
    """The scale, and whether the step was taken, on each rank: averaged before ``unscale_``, after it, or never."""

    def worker(order):
        torch.manual_seed(0)
        model = DDP(nn.Linear(3, 1).to(device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device().type, init_scale=256.0)

        def average():
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

        rows = []
        for step in range(2):
            x = torch.full((4, 3), 1e5 if step == 1 and dist.get_rank() == 1 else 1.0).to(device())
            before = flat_weights(model)
            with contextlib.nullcontext() if order == "ddp" else model.no_sync():
                with torch.autocast(device().type, dtype=torch.float16):
                    loss = model(x).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            if order == "first":
                average()
            scaler.unscale_(optimizer)
            if order == "after":
                average()
            scaler.step(optimizer)
            scaler.update()
            rows.append((scaler.get_scale(), torch.equal(flat_weights(model), before), flat_weights(model)))
        return rows

    for ranks in (2, 3):
        for order in ("ddp", "first"):
            results = launch(worker, ranks, order)
            assert [[row[:2] for row in rows] for rows in results] == [[(256.0, False), (128.0, True)]] * ranks
            assert all(gap([rows[step][2] for rows in results]) == 0 for step in (0, 1))
        for order in ("after", "never"):
            for rank, rows in enumerate(launch(worker, ranks, order)):
                scale, skipped, weights = rows[1]
                assert (scale, skipped) == ((128.0, True) if rank == 1 else (256.0, False))
                assert weights.isfinite().all() == (rank == 1 or order == "never")
