"""CheckpointManager: what it restores, what it refuses, and what is left of it when it is killed.

A disk that fails is a claim: test_checkpoint_manager.py.

KILLS=1000 pytest tests/kit/test_checkpoint.py -k killed_at_any_moment
"""

import contextlib
import hashlib
import mmap
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import device, launch
from ddplab.apparatus.postmortem import postmortem
from ddplab.checkpoint import CheckpointError, CheckpointManager
from tools import PATIENCE_S

EVENTS = {"open", "os.listdir", "os.rename", "os.remove"}  # what Python reports of work on files, before it is done
KILLS = int(os.environ.get("KILLS", "30"))


@pytest.fixture
def in_memory():
    """A folder that needs no disk: a kill leaves what was written, whether it had reached one or not."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def build(width=8, seed=0):
    """The state of a small run; under DDP if there is a process group."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2)).to(device())
    if dist.is_initialized():
        model = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 100),
        "scaler": torch.amp.GradScaler(device().type, init_scale=256.0, growth_interval=3),
        "order": torch.Generator().manual_seed(seed),
        "epoch": 3,
        "config": {"lr": 1e-2, "layers": [4, 8], "name": "small", "amp": None},
        "losses": torch.arange(3.0),
    }


def train(state, steps):
    """Some steps with data of this rank; every generator is drawn from."""
    losses = []
    for _ in range(steps):
        noise = random.random() + np.random.rand() + torch.rand(1, generator=state["order"]).item()
        loss = (state["model"](torch.randn(6, 4).to(device())) - noise).square().mean()
        state["optimizer"].zero_grad()
        state["scaler"].scale(loss).backward()
        state["scaler"].step(state["optimizer"])
        state["scaler"].update()
        state["scheduler"].step()
        losses.append(loss.item())
    return losses


def flat(state):
    """All tensors and numbers of the run, in order."""
    model, optimizer = state["model"].state_dict(), state["optimizer"].state_dict()["state"]
    tensors = [*model.values(), *(t for entry in optimizer.values() for t in entry.values())]
    return [*(t.tolist() for t in tensors), state["scaler"].get_scale(), state["scheduler"].last_epoch]


def seed_rank():
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(100 + rank)
    np.random.seed(200 + rank)
    random.seed(300 + rank)


def resumes(folder):
    """Train 3, save, train 3; then a new run loads and trains 3: both ends, and what load returned."""
    first = build()
    seed_rank()
    train(first, 3)
    path = CheckpointManager(folder).save(first, 3)
    losses, end = train(first, 3), flat(first)
    second = build(seed=1)
    seed_rank()
    found = CheckpointManager(folder).load(second, warm_up=lambda: second["model"](torch.ones(2, 4).to(device())).sum())
    assert all(p.grad is None for p in second["model"].parameters())
    return (losses, end) == (train(second, 3), flat(second)), found, path


def simple(value=1.0):
    """A model and nothing else, for what is about files."""
    model = nn.Linear(50, 20)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return {"model": model}


def saved(folder, *steps, keep=9):
    manager = CheckpointManager(folder, keep)
    for step in steps:
        manager.save(simple(step), step)
    return manager


def says(ranks, *attempts):
    """Each attempt's CheckpointError, as every rank was left with it; the launch is bounded, so none of them waited."""

    def guarded():
        errors = []
        for worker, *args in attempts:
            dist.barrier()
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                try:
                    errors.append(worker(*args))
                except CheckpointError as error:
                    errors.append(str(error))
        return errors

    return list(zip(*launch(guarded, ranks, quiet=True, timeout_s=PATIENCE_S), strict=True))


def in_child(work):
    """Run ``work`` in a fork of this process and return its pid; it ends without any handler of this one."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# -- what it restores ---------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("ranks", [None, 1, 2, 3])
def test_everything_comes_back(tmp_path, ranks):
    """Losses, weights, buffers, Adam's moments, the scale and the learning rate go on as if nothing had happened."""
    results = launch(resumes, 1, str(tmp_path), init=False) if ranks is None else launch(resumes, ranks, str(tmp_path))
    for same, found, path in results:
        assert same
        assert torch.equal(found.pop("losses"), torch.arange(3.0))
        config = {"lr": 1e-2, "layers": [4, 8], "name": "small", "amp": None}
        assert found == {"epoch": 3, "config": config, "step": 3, "world_size": ranks or 1}
        assert path == tmp_path / "step-00000003.pt"


def test_a_save_does_not_change_the_run(tmp_path):
    """An optimizer before its first step has no state, and has none after a save; so it is loaded."""
    state = build()
    CheckpointManager(tmp_path).save(state, 0)
    assert state["optimizer"].state == {}
    other = build(seed=1)
    train(other, 2)
    CheckpointManager(tmp_path).load(other)
    assert other["optimizer"].state == {}


def test_nothing_to_load(tmp_path):
    manager = CheckpointManager(tmp_path / "not" / "yet")
    assert manager.latest() is None
    assert manager.load(simple()) is None
    with pytest.raises(CheckpointError, match="No such file"):
        manager.load(step=7)


def test_keep(tmp_path):
    manager = saved(tmp_path, *range(0, 50, 10), keep=2)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000030.pt", "step-00000040.pt"]
    assert [manager.load(step=s)["step"] for s in (30, 40)] == [30, 40]
    with pytest.raises(ValueError, match="at least 1; got 0"):
        CheckpointManager(tmp_path, keep=0)


def test_an_older_step_is_saved_and_warned_of(tmp_path):
    """Going back by hand must not delete what is saved then, nor pass in silence."""
    manager = saved(tmp_path, 100, 110, keep=2)
    for step in (20, 30):
        with pytest.warns(UserWarning, match=r"step-00000110.pt is newer than step \d0: latest\(\) prefers it"):
            manager.save(simple(), step)
        assert (tmp_path / f"step-{step:08d}.pt").exists()


def test_another_number_of_ranks(tmp_path):
    """Generators belong to a rank: with other ranks they stay as they are, and a warning says so."""

    def save(folder):
        CheckpointManager(folder).save(build(), 5)

    def load(folder):
        state = build(seed=1)
        seed_rank()
        expected = torch.rand(3)
        seed_rank()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = CheckpointManager(folder).load(state)
        return found["world_size"], torch.equal(torch.rand(3), expected), [str(w.message) for w in caught]

    launch(save, 2, str(tmp_path))
    results = launch(load, 3, str(tmp_path))
    assert [result[:2] for result in results] == [(2, True)] * 3
    assert "saved by 2 ranks, loaded by 3; generators not restored" in results[0][2][0]
    assert [result[2] for result in results[1:]] == [[], []]


def test_what_is_left_out_is_named(tmp_path):
    state = build()
    manager = CheckpointManager(tmp_path)
    manager.save(state, 1)
    with pytest.warns(UserWarning, match="also holds optimizer, scheduler, scaler, which nothing was loaded into"):
        manager.load({"model": state["model"]})


def test_what_weights_only_would_refuse_is_not_saved(tmp_path):
    manager = saved(tmp_path, 1)
    for value, name in ((Path("runs"), "pathlib"), (np.float64(1), "numpy"), (np.random.get_state(), "numpy")):
        with pytest.raises(CheckpointError, match=rf"not saved: .*refused: it needs .*{name}.*plain types"):
            manager.save({**simple(), "value": value}, 2)
    with pytest.raises(CheckpointError, match="'step' is saved by itself"):
        manager.save({**simple(), "step": 1}, 2)
    with pytest.raises(CheckpointError, match="at least 0; got -1"):
        manager.save(simple(), -1)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000001.pt"]


# -- killed -------------------------------------------------------------------------------------------


def check_after_kill(folder, acknowledged, keep):
    """The step that a fresh start finds: at least the acknowledged one, at most the one after it, and exact."""
    target = simple(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing torn to be skipped, either
        found = CheckpointManager(folder, keep).load(target)
    step = -1 if found is None else found["step"]
    assert acknowledged <= step <= acknowledged + 1, (acknowledged, step)
    assert all(torch.equal(p, torch.full_like(p, float(step))) for p in target["model"].parameters())
    return step


def torture(folder, kills, keep=2, seed=0):
    """Kill a run at random moments; return what the kills left: drafts, one file too many, neither."""
    torch.set_num_threads(1)  # and so this process may be forked
    chance = random.Random(seed)
    acknowledged = mmap.mmap(-1, 8)  # shared with the child: the last step whose save() returned, plus one
    left = {"draft": 0, "not rotated": 0, "clean": 0, "saves": 0}

    def run():
        manager, state = CheckpointManager(folder, keep), simple()
        found = manager.load(state)
        step = 0 if found is None else found["step"] + 1
        while True:
            with torch.no_grad():
                for parameter in state["model"].parameters():
                    parameter.fill_(float(step))
            manager.save(state, step)
            acknowledged[:8] = (step + 1).to_bytes(8, "little")
            step += 1

    for _ in range(kills):
        before = int.from_bytes(acknowledged[:8], "little") - 1
        pid = in_child(run)
        enough = before + 1 + chance.choice((0, 0, 1, 2, 3))  # saves that it may finish first
        while int.from_bytes(acknowledged[:8], "little") < enough and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL  # it had not failed by itself
        names = [path.name for path in Path(folder).glob("step-*")]
        drafts, whole = sum(n.endswith("draft") for n in names), sum(n.endswith("pt") for n in names)
        assert drafts <= 1
        step = check_after_kill(folder, int.from_bytes(acknowledged[:8], "little") - 1, keep)
        left["draft" if drafts else "not rotated" if whole > keep else "clean"] += 1
        left["saves"] += step - before
        acknowledged[:8] = (step + 1).to_bytes(8, "little")
    CheckpointManager(folder, keep).save(simple(step + 1), step + 1)  # one save that is left alone tidies up
    assert sorted(path.name for path in Path(folder).glob("step-*")) == [f"step-{s:08d}.pt" for s in (step, step + 1)]
    return left


def test_killed_at_any_moment(tmp_path):
    """SIGKILL at random moments of load, save and rotation: no checkpoint is lost, and no more than one save."""
    ((left),) = launch(torture, 1, str(tmp_path), KILLS, init=False, timeout_s=PATIENCE_S)
    print(left)
    assert left["draft"] + left["not rotated"] + left["clean"] == KILLS
    assert left["draft"] > 0  # some fell into a write
    assert left["saves"] >= KILLS / 2  # and the run went on between the kills


def test_killed_before_every_file_operation(in_memory):
    """A save is killed before the first thing that it does with the files of its folder, the second, and so on."""

    def worker(folder):
        torch.set_num_threads(1)
        last = []
        while not last or last[-1] != "end":
            shared, at = mmap.mmap(-1, 64), len(last)

            def run(at=at, shared=shared):
                manager = CheckpointManager(folder, keep=2)
                manager.save(simple(1), 1)
                manager.save(simple(2), 2)
                passed = 0

                def before(event, arguments):
                    nonlocal passed
                    if event in EVENTS and str(arguments[0]).startswith(folder):
                        if passed == at:
                            shared[: len(event)] = event.encode()
                            os.kill(os.getpid(), signal.SIGKILL)
                        passed += 1

                sys.addaudithook(before)
                manager.save(simple(3), 3)
                shared[:3] = b"end"

            for path in Path(folder).glob("*"):
                path.unlink()
            os.waitpid(in_child(run), 0)
            last.append(shared[:64].rstrip(b"\0").decode())
            check_after_kill(folder, 3 if last[-1] == "end" else 2, 2)
            saved(folder, 4, keep=2)  # in this process; it sweeps what the killed one left
            assert not list(Path(folder).glob("*.draft"))
            assert len(list(Path(folder).glob("step-*"))) <= 2
        return last

    ((*killed_before, _),) = launch(worker, 1, str(in_memory), init=False, timeout_s=PATIENCE_S)
    assert set(killed_before) == EVENTS


# -- damaged files ------------------------------------------------------------------------------------


def latest_and_warning(manager):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return manager.latest(), [str(w.message) for w in caught]


def test_truncated_at_any_length(in_memory):
    manager = saved(in_memory, 1, 2)
    path = in_memory / "step-00000002.pt"
    whole = path.read_bytes()
    lengths = {*range(0, len(whole), len(whole) // 150), *range(len(whole) - 100, len(whole))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        step, (warning,) = latest_and_warning(manager)
        assert step == 1
        assert warning.startswith(f"skipped a checkpoint: {path}: torn")
    with pytest.raises(CheckpointError, match=r"step-00000002.pt: torn, or not of this kind"):
        manager.load(simple(), step=2)
    with pytest.warns(UserWarning, match="torn"):
        assert manager.load(simple())["step"] == 1


def test_a_flipped_bit_anywhere(in_memory):
    """torch.load takes most of these files in silence; the manager takes none."""
    manager = saved(in_memory, 1, 2)
    path = in_memory / "step-00000002.pt"
    whole, chance, silent = path.read_bytes(), random.Random(0), 0
    places = [chance.randrange(len(whole)) for _ in range(200)] + list(range(len(whole) - 73, len(whole)))
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(Exception):
            silent += torch.load(path) is not None
        step, (warning,) = latest_and_warning(manager)
        assert step == 1
        assert f"{path}: corrupt" in warning or f"{path}: torn" in warning
        with pytest.raises(CheckpointError, match=r"corrupt|torn"):
            manager.load(simple(), step=2)
    assert silent > len(places) / 2
    path.write_bytes(whole)
    assert latest_and_warning(manager) == (2, [])


def test_a_file_of_somebody_else(tmp_path):
    """Whole by its checksum, since whoever wrote it could compute one, and yet not a checkpoint."""
    manager, path = CheckpointManager(tmp_path), tmp_path / "step-00000002.pt"
    torch.save({"model": {}}, path)
    assert latest_and_warning(manager)[0] is None
    for content, message in (
        (path.read_bytes(), "not a checkpoint of CheckpointManager"),
        (pickle.dumps([1]), "cannot be read: ValueError"),
    ):
        path.write_bytes(content + f"\nsha256 {hashlib.sha256(content).hexdigest()}\n".encode())
        with pytest.raises(CheckpointError, match=message):
            manager.load()


# -- what does not fit --------------------------------------------------------------------------------


def test_a_model_that_does_not_fit(tmp_path):
    """Each difference is named in a line, and no object has changed."""
    manager = CheckpointManager(tmp_path)
    state = build()
    train(state, 1)
    manager.save(state, 1)
    deeper = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2), nn.Linear(2, 2)).to(device())
    half = build()["model"].half()
    adam = torch.optim.Adam(state["model"].parameters())
    fewer = torch.optim.AdamW(list(state["model"].parameters())[:3])
    cases = [
        ({"model": deeper}, r"its model is without 3\.bias, 3\.weight$"),
        ({"model": nn.Linear(4, 8)}, r"its model is without bias, weight; its model has besides 0\.bias, .* more$"),
        (
            {"model": build(9)["model"]},
            r"its model has 0\.bias float32 \(8,\) instead of float32 \(9,\), 0\.weight .* and 5 more",
        ),
        ({"model": half}, r"its model has 0\.bias float32 \(8,\) instead of float16 \(8,\), .*"),
        ({"optimizer": adam}, r"its optimizer has class AdamW instead of Adam$"),
        ({"optimizer": fewer}, r"its optimizer has besides group 0 parameter 3, .* and 1 more"),
        ({"ema": nn.Linear(1, 1)}, r"no 'ema' in it, only model, optimizer, scheduler, scaler$"),
    ]
    for other, message in cases:
        target = {**build(seed=1), **other}
        before = flat({**target, "model": target["model"]})
        with pytest.raises(CheckpointError, match=f"step-00000001.pt: does not fit, nothing was loaded: .*{message}"):
            manager.load(target)
        assert flat(target) == before


def test_a_state_that_fails_while_it_is_loaded(tmp_path):
    """A disabled scaler has an empty state, which an enabled one does not take."""
    manager, state = CheckpointManager(tmp_path), simple()
    manager.save({**state, "scaler": torch.amp.GradScaler("cpu", enabled=False)}, 1)
    with pytest.raises(CheckpointError, match="scaler: load_state_dict failed, it may be half loaded, do not train on"):
        manager.load({**state, "scaler": torch.amp.GradScaler("cpu")})


def test_a_sharded_model_is_refused(tmp_path):
    def worker(folder):
        from torch.distributed.fsdp import fully_shard

        model = nn.Linear(4, 4).to(device())
        fully_shard(model)
        CheckpointManager(folder).save({"model": model}, 1)

    for error in says(2, (worker, tmp_path))[0]:
        assert "a model is sharded; save it with torch.distributed.checkpoint" in error


# -- other ranks, other runs ----------------------------------------------------------------------------


def tries(folder, step):
    return CheckpointManager(folder).save({"model": nn.Linear(10, 10)}, step)


def finds(folder):
    return CheckpointManager(folder).load({"model": nn.Linear(10, 10)})["step"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    at, below = says(2, (tries, tmp_path / "file", 1), (tries, tmp_path / "file" / "below", 1))
    assert all(error.startswith("rank 0: ") and "File exists" in error for error in at)
    assert all("Not a directory" in error for error in below)


def test_one_rank_that_fails_takes_all_along(tmp_path):
    """What differs between ranks is reported on all of them, and nobody waits."""

    def different_steps(folder):
        tries(folder, 10 + dist.get_rank())

    def one_has_another_model(folder):
        CheckpointManager(folder).load({"model": nn.Linear(10 + (dist.get_rank() == 2), 10)})

    def one_sees_another_file(folder):
        CheckpointManager(Path(folder, str(min(dist.get_rank(), 1)))).load()

    for i in range(2):
        saved(tmp_path / str(i), i, keep=1)  # other weights under the same name
        CheckpointManager(tmp_path / str(i)).save(simple(i), 1)
    launch(tries, 3, str(tmp_path), 1)
    expected = {
        different_steps: r"the ranks save different steps: \[10, 11, 12\]",
        one_has_another_model: r"rank 2: .*does not fit, .* weight float32 \(10, 10\) instead of float32 \(10, 11\)",
        one_sees_another_file: (
            r".*/[01]: the ranks read different files: \['step 1 sha256 (\w+)'(, 'step 1 sha256 (?!\1)\w+'){2}\]"
        ),
    }
    found = says(3, *((worker, tmp_path) for worker in expected))
    for errors, message in zip(found, expected.values(), strict=True):
        for error in errors:
            assert re.fullmatch(message, error), error
    assert launch(finds, 3, str(tmp_path)) == [1, 1, 1]


def test_a_rank_that_is_gone(tmp_path):
    """Rank 1 dies in front of the load, or in front of the save: the other says that it is missing."""
    launch(tries, 2, str(tmp_path), 1)

    def worker(folder, act):
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            act(folder)
        except CheckpointError as error:
            print(error, flush=True)

    for act in (finds, lambda folder: tries(folder, 2)):
        left, killed = postmortem(worker, 2, str(tmp_path), act, timeout_s=PATIENCE_S)  # each comes to its own end
        assert "SIGKILL" in killed.error
        assert re.search("a rank is missing, it gave no answer: RuntimeError: .*Connection", left.printed)
    assert launch(finds, 2, str(tmp_path)) == [1, 1]


def test_two_runs_on_one_folder(tmp_path):
    """The second is refused also while the first is in the middle of a write, whose draft it leaves alone."""

    def worker(folder):
        torch.set_num_threads(1)
        told, ready = os.pipe()

        def stop(*_):
            os.write(ready, b"x")
            time.sleep(4321)

        def first():
            manager = saved(folder, 1)
            os.fsync = stop
            manager.save(simple(), 2)

        pid = in_child(first)
        os.read(told, 1)
        with pytest.raises(CheckpointError, match="another process saves here; give a second run its own folder"):
            saved(folder, 3)
        seen = sorted(path.suffix for path in Path(folder).glob("step-*"))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        saved(folder, 3)
        return seen, sorted(path.name for path in Path(folder).glob("step-*"))

    ((seen, names),) = launch(worker, 1, str(tmp_path), init=False, timeout_s=PATIENCE_S)
    assert seen == [".draft", ".pt"]
    assert names == ["step-00000001.pt", "step-00000003.pt"]


def test_a_reader_beside_a_writer(tmp_path):
    """Who reads while another process saves and rotates gets a whole checkpoint, or an error that it is gone."""

    def worker(folder):
        torch.set_num_threads(1)

        def write():
            for step in range(10_000):
                saved(folder, step, keep=2)

        pid, steps, refused = in_child(write), [], set()
        while len(set(steps)) < 10:  # the launch is bounded
            target = simple(-1)
            try:
                found = CheckpointManager(folder).load(target)
            except CheckpointError as error:
                refused.add("gone" if "No such file" in str(error) else str(error))
                continue
            if found:
                assert target["model"].weight[0, 0] == found["step"]
                steps.append(found["step"])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return steps, refused

    ((steps, refused),) = launch(worker, 1, str(tmp_path), init=False, timeout_s=PATIENCE_S)
    assert refused <= {"gone"}
    assert steps == sorted(steps)
