"""The fault lab: two claims of it that no lab shows."""

import time

import torch
import torch.distributed as dist
from patience import launch, postmortem
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device
from ddplab.apparatus.gaps import flat_gradients, gap


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
