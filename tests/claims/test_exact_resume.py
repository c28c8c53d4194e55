"""A resumed run against the run that was never interrupted, bit for bit, and what it takes on three ranks."""

import contextlib
import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from patience import launch
from proof import proves, side_by_side
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import device
from ddplab.checkpoint import CheckpointManager
from ddplab.runtime.needs import ON_CPU

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


def off(a, b):
    """The largest difference between two lists of tensors."""
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


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


# -- leave one out -------------------------------------------------------------------------------------


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


# -- three ranks ---------------------------------------------------------------------------------------


class Small:
    """A model in one bucket, AdamW, dropout; ``look`` notes the bucket and this rank's own gradients."""

    def __init__(self, norm=False, look=False, **options):
        torch.manual_seed(0)
        norms = [nn.BatchNorm1d(48)] if norm else []
        block = [nn.Linear(16, 48), nn.Tanh(), nn.Dropout(0.1), nn.Linear(48, 48), *norms, nn.Tanh(), nn.Linear(48, 4)]
        net = nn.Sequential(*block).to(device())
        self.model, self.optimizer = DDP(net, **options), torch.optim.AdamW(net.parameters(), lr=0.01)
        self.places = {p: place for place, p in enumerate(net.parameters())}
        self.buckets, self.own = [], {}
        if look:
            self.model.register_comm_hook(self, Small.note)
        torch.manual_seed(1 + dist.get_rank())

    def note(self, bucket):
        self.buckets.append([self.places[p] for p in bucket.parameters()])
        self.own.update(zip(self.buckets[-1], map(torch.clone, bucket.gradients()), strict=True))
        return allreduce_hook(None, bucket)

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def loss(self, step=0):
        data = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(8, 16, generator=data).to(device())
        return (self.model(x) - x[:, :4].sin()).square().mean()

    def train(self, first, last):
        """Per step: loss, own gradients, reduced gradients, weights; and the buckets, if it looks."""
        seen = []
        for step in range(first, last):
            self.buckets = []
            self.optimizer.zero_grad()
            loss = self.loss(step)
            loss.backward()
            own = [self.own[place].flatten().cpu() for place in sorted(self.own)]
            reduced = [p.grad.flatten().cpu().clone() for p in self.places]
            self.optimizer.step()
            weights = [p.detach().flatten().cpu().clone() for p in self.places]
            seen.append((loss.item(), own, reduced, weights, self.buckets))
        return seen


def both(folder, warm_ups=0, saved=6, steps=8, **options):
    """The steps behind the save, of an uninterrupted run and of one resumed in a new wrapper."""
    manager, run = CheckpointManager(folder), Small(**options)
    run.train(0, saved)
    manager.save(run.state(), saved)
    whole, again = run.train(saved, saved + steps), Small(**options)
    for _ in range(warm_ups - 1):
        again.loss().backward()
    manager.load(again.state(), warm_up=again.loss if warm_ups else None)
    return whole, again.train(saved, saved + steps)


def equal(folder, *args, **kwargs):
    return same(*both(folder, *args, **kwargs))


@proves("ckpt-resume-off-at-three")
def test_without_a_warm_up_two_ranks_are_exact_and_three_are_not(tmp_path):
    """The uninterrupted run is repeatable to the bit; a resumed one is equal to it on 2 ranks only."""

    def worker(folder):
        whole, resumed = both(folder)
        apart = off(whole[0][3], resumed[0][3])
        return same(Small().train(0, 14)[6:], whole), same(whole, resumed), apart

    for results in side_by_side(*(partial(launch, worker, ranks, tmp_path / str(ranks)) for ranks in (2, 3, 4))):
        for repeatable, exact, first in results:
            assert repeatable
            assert exact == (len(results) == 2)
            assert first < 1e-6  # rounding, at first


@proves("ckpt-first-step-has-constructors-buckets")
def test_the_first_step_after_a_resume_has_the_constructors_buckets(tmp_path):
    """A hook reads the buckets: one, in order of registration, in the first step; then those of the old run."""

    def buckets(folder, **options):
        whole, resumed = both(folder, look=True, **options)
        return [seen[4] for seen in whole], [seen[4] for seen in resumed]

    def worker():
        return buckets(tmp_path / "one"), buckets(tmp_path / "several", bucket_cap_mb=0.005)

    for of_rank in launch(worker, 3):
        for whole, resumed in of_rank:
            assert resumed[0] == [list(range(6))]
            assert whole[0] != resumed[0]
            assert resumed[1:] == whole[1:] == [whole[0]] * len(whole[1:])


@proves("ckpt-only-moved-numbers-change")
def test_only_numbers_in_another_chunk_of_the_ring_change(tmp_path):
    """Loss and own gradients are equal; of the sums only those change that lie in another chunk."""

    def worker(folder):
        (whole, *_), (resumed, *_) = both(folder, look=True)
        return whole, resumed

    for ranks in (3, 4):
        for whole, resumed in launch(worker, ranks, tmp_path / str(ranks), env=ON_CPU):  # it is gloo that is predicted
            assert same(whole[:2], resumed[:2])
            sizes = [len(gradient) for gradient in whole[2]]
            before, after = (chunks(bucket, sizes, ranks) for (bucket,) in (whole[4], resumed[4]))
            changed = torch.cat(whole[2]) != torch.cat(resumed[2])
            assert (changed & (before != after)).any()
            assert not (changed & (before == after)).any()


def chunks(bucket, sizes, ranks):
    """The chunk of each number, in order of registration; ``ring`` in gloo/allreduce.cc says where it cuts."""
    length = 2 * -(-sum(sizes) // (2 * ranks))
    places = (torch.arange(sum(sizes)) // length).split([sizes[i] for i in bucket])
    return torch.cat([places[bucket.index(i)] for i in range(len(sizes))])


@proves("ckpt-warm-up-makes-it-exact")
def test_one_warm_up_makes_it_exact(tmp_path):
    """With the default, with views, with several buckets and with BatchNorm."""

    def worker(folder):
        variants = [{}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.005}, {"norm": True}]
        return [equal(folder / str(i), 1, **options) for i, options in enumerate(variants)]

    for exact in side_by_side(*(partial(launch, worker, ranks, tmp_path / str(ranks)) for ranks in (3, 4))):
        assert exact == [[True] * 4] * len(exact)


@proves("ckpt-unused-makes-it-exact")
def test_without_a_rebuild_it_is_exact_too(tmp_path):
    """With one bucket and with several, without a warm-up and with one."""

    def worker(folder):
        unused = {"find_unused_parameters": True}
        variants = [(0, {}), (1, {}), (0, {"bucket_cap_mb": 0.005})]
        return [equal(folder / str(i), n, **unused, **more) for i, (n, more) in enumerate(variants)]

    for exact in side_by_side(*(partial(launch, worker, ranks, tmp_path / str(ranks)) for ranks in (3, 4))):
        assert exact == [[True] * 3] * len(exact)


@proves("ckpt-as-many-warm-ups")
def test_a_resume_needs_as_many_warm_ups_as_the_run_had_backwards(tmp_path):
    """By default none before the first step, else at least one; static_graph as many as steps, up to two."""

    def worker():
        exact = {}
        for static in (False, True):
            for saved in (0, 1, 2, 5):
                name = f"{tmp_path}/{static}{saved}"
                found = [equal(f"{name}{n}", n, saved, 3, static_graph=static) for n in (0, 1, 2)]
                exact[static, saved] = [n for n in (0, 1, 2) if found[n]]
        return exact

    for exact in launch(worker, 3):
        assert [exact[True, saved] for saved in (0, 1, 2, 5)] == [[0], [1], [2], [2]]
        assert [exact[False, saved] for saved in (0, 1, 2, 5)] == [[0], [1, 2], [1, 2], [1, 2]]


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


@proves("ckpt-adamw-amplifies-rounding")
def test_the_largest_difference_is_in_a_bias_in_front_of_batchnorm(tmp_path):
    """Its gradient is nothing but rounding: it moves by steps of the learning rate, and the loss does not notice."""

    def worker():
        return both(tmp_path, norm=True, steps=12)

    for whole, resumed in launch(worker, 3):
        apart = [float((a - b).abs().max()) for a, b in zip(whole[-1][3], resumed[-1][3], strict=True)]
        bias = apart.pop(3)
        assert bias > 1e-4
        assert max(apart) < 1e-5
        assert abs(whole[-1][0] - resumed[-1][0]) < 1e-5
