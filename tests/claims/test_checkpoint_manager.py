"""What a checkpoint holds, what all ranks learn of a failure, and what is on the disk when."""

import os
import random
import re
import resource
import signal
import time
import warnings
from multiprocessing import RawArray
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.checkpoint import CheckpointError, CheckpointManager


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device())


def step(model, optimizer=None):
    """One step on data of this rank."""
    loss = model(torch.randn(5, 6).to(device())).square().mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def save(folder):
    CheckpointManager(folder).save({"model": DDP(network())}, 1)


def weights(model):
    return [tensor.tolist() for tensor in model.state_dict().values()]


# -- what a state is ----------------------------------------------------------------------------------


@proves("ckpt-buffers-of-rank-0")
def test_buffers_differ_after_a_step_and_the_next_forward_copies_those_of_rank_0(tmp_path):
    """So a checkpoint with rank 0's buffers resumes to the same numbers as the run that went on."""

    def worker(folder):
        model = DDP(network())
        torch.manual_seed(dist.get_rank())
        step(model)
        after = model.module[1].running_mean.tolist()
        CheckpointManager(folder).save({"model": model}, 1)
        resumed = DDP(network(1))
        CheckpointManager(folder).load({"model": resumed})
        batch = torch.full((5, 6), float(dist.get_rank())).to(device())
        ends = []
        for run in (model, resumed):
            out = run(batch).tolist()
            ends.append((out, run.module[1].running_mean.tolist()))
        return after, ends

    ranks = launch(worker, 3, str(tmp_path))
    assert len({str(after) for after, _ in ranks}) == 3
    assert all(going_on == resumed for _, (going_on, resumed) in ranks)


@proves("ckpt-each-rank-its-generators")
def test_each_rank_gets_its_own_random_numbers_back(tmp_path):
    """Torch, Python and numpy go on on each rank where that rank was, and ranks differ."""

    def worker(folder):
        import numpy

        def draw():
            return torch.rand(3).tolist(), random.random(), float(numpy.random.rand())

        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(10 + dist.get_rank())
        draw()
        CheckpointManager(folder).save({}, 1)
        expected = draw()
        draw()
        CheckpointManager(folder).load()
        return expected, draw()

    results = launch(worker, 3, str(tmp_path))
    assert all(expected == found for expected, found in results)
    assert len({str(found) for _, found in results}) == 3


@proves("ckpt-no-module-in-names")
def test_a_checkpoint_of_ddp_loads_without_ddp(tmp_path):
    """No name in the file begins with ``module.``, and a plain model takes it."""
    launch(save, 2, str(tmp_path))
    content = torch.load(tmp_path / "step-00000001.pt")["objects"]["model"]
    plain = network(1)
    plain.load_state_dict({name: tensor.to(device()) for name, tensor in content.items()})
    assert weights(plain) == weights(network())


@proves("ckpt-loads-on-other-world-sizes")
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_two_ranks_saved_other_numbers_of_ranks_load(tmp_path, ranks):
    """Every rank has the same weights, and the moments of Adam, bit for bit."""

    def run(folder, load):
        model = DDP(network(int(load)))
        optimizer = torch.optim.AdamW(model.parameters())
        manager, state = CheckpointManager(folder), {"model": model, "optimizer": optimizer}
        if load:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                manager.load(state)
        else:
            step(model, optimizer)
            manager.save(state, 1)
        moments = [entry["exp_avg_sq"].tolist() for entry in optimizer.state.values()]
        return [p.tolist() for p in model.parameters()], moments

    first, _ = launch(run, 2, str(tmp_path), False)
    assert launch(run, ranks, str(tmp_path), True) == [first] * ranks


@proves("ckpt-ranks-fail-together")
def test_when_rank_0_cannot_write_all_ranks_raise(tmp_path):
    """The error of rank 0 reaches every rank, none waits, and the checkpoint before it is whole."""

    def worker(folder):
        model = DDP(network())  # before the limit: NCCL keeps shared memory in files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            CheckpointManager(folder).save({"model": model}, 2)
        except CheckpointError as error:
            return str(error), CheckpointManager(folder).latest()

    launch(save, 3, str(tmp_path))
    results = launch(worker, 3, str(tmp_path), timeout_s=60)
    assert len(set(results)) == 1
    error, latest = results[0]
    assert re.fullmatch(r"rank 0: .*step-00000002.pt: not saved: OSError: .*File too large", error)
    assert latest == 1
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step-00000001.pt"]


@proves("ckpt-one-blind-rank-stops-all")
def test_a_rank_that_does_not_see_the_file_stops_all(tmp_path):
    """One machine without the shared folder: every rank raises and names that rank; no model is touched."""

    def worker(folder):
        manager = CheckpointManager(folder if dist.get_rank() != 1 else folder + "/not-mounted")
        model = DDP(network(1))
        try:
            manager.load({"model": model})
        except CheckpointError as error:
            return str(error), weights(model.module)

    launch(save, 3, str(tmp_path))
    for error, left in launch(worker, 3, str(tmp_path), timeout_s=60):
        assert re.match(r"rank 1: FileNotFoundError: ", error)
        assert left == weights(network(1))


@proves("ckpt-second-run-is-refused")
def test_a_second_run_on_the_same_folder_is_refused_until_the_first_has_ended(tmp_path):
    """While a process that saved there lives, another one's save raises; after its SIGKILL it goes through."""

    def worker(folder):
        torch.set_num_threads(1)
        ready, first = RawArray("b", 1), os.fork()
        if first == 0:
            try:
                CheckpointManager(folder).save({}, 1)
                ready[0] = 1
                signal.pause()  # until it is killed
            finally:
                os._exit(1)
        while not ready[0]:
            time.sleep(0.001)
        try:
            error = CheckpointManager(folder).save({}, 2).name
        except CheckpointError as caught:
            error = str(caught)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        return error, CheckpointManager(folder).save({}, 2).name

    ((error, name),) = launch(worker, 1, str(tmp_path), init=False, timeout_s=60)
    assert "another process saves here" in error
    assert name == "step-00000002.pt"


# -- the disk and what is on it -----------------------------------------------------------------------


@proves("ckpt-disk-before-name")
def test_content_then_name_then_folder_then_deletion(tmp_path):
    """The draft is on the disk before it gets its name, and the name before an older file is deleted."""

    def worker(folder):
        calls = []

        def spy(owner, name, what):
            original = getattr(owner, name)

            def wrapper(*args, **kwargs):
                calls.append(what(*args))
                return original(*args, **kwargs)

            setattr(owner, name, wrapper)

        CheckpointManager(folder, keep=1).save({}, 1)
        spy(os, "fsync", lambda fd: f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).suffix}")
        spy(Path, "replace", lambda source, target: f"rename {source.suffix} to {target.name}")
        spy(Path, "unlink", lambda path, *_: f"delete {path.name}")
        CheckpointManager(folder, keep=1).save({}, 2)
        return calls

    order = ["fsync .draft", "rename .draft to step-00000002.pt", "fsync ", "delete step-00000001.pt"]
    assert launch(worker, 3, str(tmp_path)) == [order, [], []]


@proves("ckpt-latest-skips-damaged")
def test_latest_skips_what_is_torn_or_corrupt_and_says_so(tmp_path):
    """Of four files one is cut and one has a changed byte: all ranks agree on the next, and rank 0 warns twice."""

    def worker(folder):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            return CheckpointManager(folder).latest(), [str(warning.message) for warning in caught]

    save_four = CheckpointManager(tmp_path, keep=4)
    for number in (1, 2, 3, 4):
        save_four.save({"model": network()}, number)
    newest, next_one = tmp_path / "step-00000004.pt", tmp_path / "step-00000003.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    middle = next_one.stat().st_size // 2
    next_one.write_bytes(b"".join((next_one.read_bytes()[:middle], b"\xff\x00", next_one.read_bytes()[middle + 2 :])))
    (step_0, warned), *others = launch(worker, 3, str(tmp_path))
    assert step_0 == 2
    assert [re.search(r"step-\d+.pt: \w+", text)[0] for text in warned] == [
        "step-00000004.pt: torn",
        "step-00000003.pt: corrupt",
    ]
    assert others == [(2, [])] * 2


@proves("ckpt-one-reader-sends-the-rest")
def test_rank_0_reads_and_sends_the_rest(tmp_path):
    """Only rank 0 sees the file, and loads before it wraps; optimizer and step come by broadcast_object_list."""

    def network():
        torch.manual_seed(dist.get_rank())  # so that only DDP makes weights equal
        return nn.Linear(6, 2).to(device())

    def train(model, optimizer, steps):
        for number in steps:
            optimizer.zero_grad()
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * number + dist.get_rank()))
            model(x.to(device())).square().mean().backward()
            optimizer.step()
        return weights(model)

    def undisturbed(path):
        model = DDP(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        train(model, optimizer, range(3))
        if dist.get_rank() == 0:
            content = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
            torch.save(content, path)
        return train(model, optimizer, range(3, 6))

    def resumed(path):
        model, rest = network(), [None]
        if dist.get_rank() == 0:
            content = torch.load(path, map_location="cpu")
            model.load_state_dict(content.pop("model"))
            rest = [content]
        model = DDP(model)
        dist.broadcast_object_list(rest, src=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(rest[0]["optimizer"])
        return train(model, optimizer, range(rest[0]["step"], 6))

    path = tmp_path / "last.pt"
    first = launch(undisturbed, 2, path)
    assert launch(resumed, 2, path) == first
    assert first[0] == first[1]
