"""What a checkpoint needs besides model and optimizer, and what a load decides without saying so."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from proof import proves, side_by_side
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.checkpoint import CheckpointError, CheckpointManager

SAVED, STEPS = 6, 10


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device())


class Run:
    """Training on data of this rank, with a hook that keeps an error, or with an optimizer in shares."""

    def __init__(self, shared_out=False, compressed=False):
        self.model = DDP(network())
        parameters, options = self.model.parameters(), {"lr": 0.01}
        if shared_out:
            self.optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, **options)
        else:
            self.optimizer = torch.optim.Adam(parameters, **options)
        if compressed:
            self.hook = power.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
            self.model.register_comm_hook(self.hook, power.powerSGD_hook)

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def loss(self, step=0):
        own = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(8, 16, generator=own).to(device())
        return (self.model(x) - x[:, :4].sin()).square().mean()

    def train(self, first, last):
        for step in range(first, last):
            self.optimizer.zero_grad()
            self.loss(step).backward()
            self.optimizer.step()
        return [p.detach().cpu().clone() for p in self.model.parameters()]


def same(a, b):
    return all(map(torch.equal, a, b))


@proves("ckpt-powersgd-state")
def test_the_state_of_powersgd_belongs_to_each_rank(tmp_path):
    """With each rank's own the resumed run is exact; with rank 0's, with none, or without a warm-up it is not."""

    def worker(folder):
        run, manager = Run(compressed=True), CheckpointManager(folder)
        run.train(0, SAVED)
        # numpy's generator is no plain value; with a warm start nothing draws from it any more
        kept = {name: value for name, value in run.hook.__getstate__().items() if name != "rng"}
        of_ranks = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, kept)
        manager.save({**run.state(), "hook": of_ranks}, SAVED)
        errors = [error.cpu() for error in kept["error_dict"].values()]
        whole = run.train(SAVED, STEPS)

        def resumed(whose, warm=True):
            again = Run(compressed=True)
            found = manager.load(again.state(), warm_up=again.loss if warm else None)
            if whose is not None:
                again.hook.__setstate__(found["hook"][whose])
            return same(whole, again.train(SAVED, STEPS))

        rank = dist.get_rank()
        return [resumed(rank), resumed(0), resumed(None), resumed(rank, warm=False)], errors

    for ranks in side_by_side(*(partial(launch, worker, n, tmp_path / str(n)) for n in (2, 3))):
        for exact, _ in ranks:
            assert exact == [True, False, False, False]
        (_, first), *others = ranks
        assert all(not same(first, errors) for _, errors in others)


@proves("ckpt-zero-consolidate")
def test_an_optimizer_in_shares_is_saved_whole_after_consolidation(tmp_path):
    """Before, no rank can save it; after, rank 0 can, of that moment; loaded, each rank keeps its share."""

    def write(folder):
        run, manager = Run(shared_out=True), CheckpointManager(folder)
        run.train(0, SAVED)
        with pytest.raises(CheckpointError, match="has not been consolidated on this rank"):
            manager.save(run.state(), 1)
        run.optimizer.consolidate_state_dict(to=0)
        manager.save(run.state(), SAVED)
        whole = run.train(SAVED, STEPS)
        if dist.get_rank() == 0:  # shares of other ranks are still of that moment; on a CPU, its own is not
            assert SAVED in {int(entry["step"]) for entry in run.optimizer.state_dict()["state"].values()}
        return whole

    def read(folder):
        run = Run(shared_out=True)
        manager = CheckpointManager(folder)
        manager.load(run.state(), warm_up=run.loss)
        shares = sum(len(entry) > 0 for entry in run.optimizer.optim.state.values())
        return run.train(SAVED, STEPS), shares

    def moments(folder):
        run = Run(shared_out=True)
        CheckpointManager(folder).load(run.state())
        names = {p: name for name, p in run.model.module.named_parameters()}
        return {names[p]: entry["exp_avg_sq"].cpu() for p, entry in run.optimizer.optim.state.items() if entry}

    whole = launch(write, 2, tmp_path)
    for (found, shares), expected in zip(launch(read, 2, tmp_path), whole, strict=True):
        assert same(found, expected)
        assert 0 < shares < 4
    two, three = launch(moments, 2, tmp_path), launch(moments, 3, tmp_path)
    for ranks in (two, three):
        assert sorted(name for mine in ranks for name in mine) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    of_two, of_three = ({name: m for mine in ranks for name, m in mine.items()} for ranks in (two, three))
    assert all(torch.equal(of_two[name], of_three[name]) for name in of_two)


@proves("ckpt-loaded-lr-wins")
def test_the_learning_rate_of_the_checkpoint_replaces_the_configured_one(tmp_path):
    """A flag that was changed has no effect; set behind the load, in the scheduler too, it has."""

    def worker():
        def begin(lr):
            optimizer = torch.optim.SGD(network().parameters(), lr=lr)
            return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.1)

        manager, seen = CheckpointManager(tmp_path), []
        optimizer, scheduler = begin(0.1)
        manager.save({"optimizer": optimizer, "scheduler": scheduler}, 1)
        for also_scheduler in (None, False, True):
            optimizer, scheduler = begin(0.5)
            manager.load({"optimizer": optimizer, "scheduler": scheduler})
            if also_scheduler is not None:
                optimizer.param_groups[0]["lr"] = 0.5
            if also_scheduler:
                scheduler.base_lrs = [0.5]
            seen.append((optimizer.param_groups[0]["lr"], scheduler.base_lrs))
        return seen

    assert launch(worker, 2) == [[(0.1, [0.1]), (0.5, [0.1]), (0.5, [0.5])]] * 2


@proves("ckpt-moments-go-by-number")
def test_moments_go_by_the_number_of_a_parameter(tmp_path):
    """Two layers of one shape are defined in the other order: weights come back by name, moments by number."""

    class Net(nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                self.add_module(name, nn.Linear(4, 4))

        def forward(self, x):
            return self.b(self.a(x).tanh())

    def worker():
        def begin(names):
            model = DDP(Net(names).to(device()))
            return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}

        def moment(state, name):
            return state["optimizer"].state[getattr(state["model"].module, name).weight]["exp_avg"].cpu()

        def weight(state, name):
            return getattr(state["model"].module, name).weight.detach().cpu()

        old, new, manager = begin("ab"), begin("ba"), CheckpointManager(tmp_path)
        old["model"](torch.ones(2, 4, device=device())).sum().backward()
        old["optimizer"].step()
        manager.save(old, 1)
        manager.load(new)
        kept = [torch.equal(weight(old, name), weight(new, name)) for name in "ab"]
        moved = [torch.equal(moment(old, one), moment(new, other)) for one, other in ("aa", "ab", "ba")]
        return kept, moved

    assert launch(worker, 2) == [([True, True], [False, True, True])] * 2


@proves("ckpt-load-copies-weights")
def test_a_load_copies_weights_and_takes_over_moments():
    """Loaded onto the parameters' device: the weights lie elsewhere, the moments where they were."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 16, device=device())).sum().backward()
    optimizer.step()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = optimizer.state_dict()
    moments = {n: {k: t.clone() for k, t in entry.items()} for n, entry in states["state"].items()}
    other = network(1)
    other.load_state_dict(weights)
    resumed = torch.optim.Adam(other.parameters())
    resumed.load_state_dict({**states, "state": moments})
    pointers = {tensor.data_ptr() for tensor in weights.values()}
    assert pointers.isdisjoint(tensor.data_ptr() for tensor in other.state_dict().values())
    for number, parameter in enumerate(other.parameters()):
        assert resumed.state[parameter]["exp_avg"].data_ptr() == moments[number]["exp_avg"].data_ptr()
