"""A resumed run against the run that was never interrupted, bit for bit, and what a warm-up leaves."""

import contextlib
import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from patience import launch
from proof import proves, side_by_side
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import device
from ddplab.checkpoint import CheckpointManager

# -- a training with everything: epochs, accumulation, mixed precision, dropout, a schedule ------------

STEPS, SAVED, IN_EPOCH, MICRO, BATCH = 12, 8, 5, 2, 4  # saved three steps into the second epoch


class Training:
    """Two micro-batches per step; the step says which epoch it is and where in it."""

    def __init__(self, dtype, **options):
        torch.manual_seed(0)
        first, last = nn.Linear(16, 32), nn.Linear(32, 4)
        net = nn.Sequential(first, nn.BatchNorm1d(32, momentum=0.02), nn.Tanh(), nn.Dropout(0.2), last)
        self.model = DDP(net.to(device()), **options)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scaler = torch.amp.GradScaler(
            device().type, init_scale=2.0**20, growth_interval=3, enabled=dtype is torch.float16
        )
        self.dtype, self.step = dtype, 0
        data = torch.Generator().manual_seed(3)
        self.x = (4 * torch.randn(dist.get_world_size() * IN_EPOCH * MICRO * BATCH, 16, generator=data)).to(device())
        self.sampler = DistributedSampler(self.x, seed=7)
        torch.manual_seed(1 + dist.get_rank())

    def state(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "scheduler", "scaler")}

    def loss(self, samples=slice(BATCH)):
        x = self.x[samples]
        with torch.autocast(device().type, dtype=self.dtype):
            return (self.model(x).float() - x[:, :4].sin()).square().mean() / MICRO

    def train(self, steps):
        """Train until ``steps`` are done; return loss and weights after each."""
        seen = []
        while self.step < steps:
            epoch, position = divmod(self.step, IN_EPOCH)
            self.sampler.set_epoch(epoch)
            mine = list(self.sampler)[position * MICRO * BATCH :]
            self.optimizer.zero_grad()
            losses, scale = [], self.scaler.get_scale()
            for micro in range(MICRO):
                with contextlib.nullcontext() if micro == MICRO - 1 else self.model.no_sync():
                    loss = self.loss(mine[micro * BATCH : (micro + 1) * BATCH])
                    self.scaler.scale(loss).backward()
                losses.append(loss.item())
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scaler.get_scale() >= scale:
                self.scheduler.step()
            self.step += 1
            seen.append((losses, [p.detach().cpu().clone() for p in self.model.parameters()]))
        return seen

    def facts(self):
        """Everything that the run holds."""
        states = {name: value.state_dict() for name, value in self.state().items()}
        return copy.deepcopy({**states, "rng": torch.get_rng_state(), "step": self.step})


def same(a, b):
    """Equal to the bit, through dictionaries, lists and tensors."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def played(folder, last, resume):
    """In new processes: train to ``last``, from the newest checkpoint or from the beginning; save at ``SAVED``."""
    result = {}
    for dtype in (torch.bfloat16, torch.float16):
        run, manager = Training(dtype), CheckpointManager(f"{folder}/{dtype}")
        if resume:
            run.step = manager.load(run.state(), warm_up=run.loss)["step"]
        seen = run.train(min(last, SAVED))
        if last == SAVED:
            manager.save(run.state(), run.step)
        result[dtype] = seen + run.train(last), run.facts()
    return result


@proves("ckpt-exact-resume")
def test_a_resumed_run_is_the_uninterrupted_run(tmp_path):
    """One run in one go; one that ends in mid-epoch, and is resumed by other processes: equal in every bit."""

    def in_one_go(ranks):
        return launch(played, ranks, tmp_path / str(ranks), STEPS, False)

    def in_two(ranks):
        begun = launch(played, ranks, tmp_path / str(ranks), SAVED, False)
        return zip(begun, launch(played, ranks, tmp_path / str(ranks), STEPS, True), strict=True)

    runs = [partial(run, ranks) for ranks in (2, 3, 4) for run in (in_one_go, in_two)]
    results = side_by_side(*runs)
    for whole, parts in zip(results[::2], results[1::2], strict=True):
        for one, (first, second) in zip(whole, parts, strict=True):
            for dtype, (seen, facts) in one.items():
                assert same(seen, first[dtype][0] + second[dtype][0])
                assert same(facts, second[dtype][1])
                scales = facts["scaler"]
                assert not scales or scales["scale"] < 2.0**20  # in fp16 steps were skipped


@proves("ckpt-loader-draws-a-seed")
def test_an_iterator_of_a_data_loader_takes_a_random_number(tmp_path):
    """Begun behind the load it moves the generator; begun before it, or with a generator of its own, it does not."""

    def resumed(begin_first, generator):
        torch.manual_seed(dist.get_rank())
        manager, loader = CheckpointManager(tmp_path), DataLoader(range(8), batch_size=2, generator=generator)
        batches = iter(loader)
        torch.rand(3)
        next(batches)
        manager.save({}, 1)
        whole = torch.rand(3)
        torch.manual_seed(99)
        begun = iter(loader) if begin_first else None
        manager.load({})
        begun = begun or iter(loader)
        next(begun)
        return torch.equal(torch.rand(3), whole)

    def worker():
        return resumed(False, None), resumed(True, None), resumed(False, torch.Generator())

    assert launch(worker, 2) == [(False, True, True)] * 2


# -- the warm-up ---------------------------------------------------------------------------------------


@proves("ckpt-warm-up-leaves-no-trace")
@pytest.mark.parametrize("views", [False, True])
def test_what_a_warm_up_changes_is_loaded_over(views, tmp_path):
    """Weights, buffers, moments, schedule, scale and random numbers are those that were saved; no gradient is left."""

    def worker():
        run, manager = Training(torch.float16), CheckpointManager(tmp_path)
        run.train(SAVED)
        manager.save(run.state(), SAVED)
        saved, run = run.facts(), Training(torch.float16, gradient_as_bucket_view=views)
        models = [None] * dist.get_world_size()
        dist.all_gather_object(models, saved["model"])
        counts = []

        def warm_up():
            torch.rand(7)
            loss = run.loss()
            counts.append(int(run.model.module[1].num_batches_tracked))
            return run.scaler.scale(loss)

        run.step = manager.load(run.state(), warm_up=warm_up)["step"]
        gradients = [p.grad for p in run.model.parameters()]
        return counts, same(run.facts(), {**saved, "model": models[0]}), [g is None or not g.any() for g in gradients]

    for counts, untouched, no_gradient in launch(worker, 2):
        assert counts == [1]  # it ran, once, and BatchNorm counted
        assert untouched
        assert all(no_gradient)


@proves("ckpt-warm-up-outside-the-state")
def test_what_is_in_no_state_dict_keeps_the_trace_of_the_warm_up(tmp_path):
    """A buffer that is not persistent counts the forwards: behind the load it still has the warm-up in it."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    def worker():
        manager = CheckpointManager(tmp_path)
        x = torch.ones(2, 4, device=device())
        manager.save({"model": DDP(Counting().to(device()))}, 1)
        model = DDP(Counting().to(device()))
        manager.load({"model": model}, warm_up=lambda: model(x).sum())
        return model.module.calls.item()

    assert launch(worker, 2) == [1, 1]
