"""torch.distributed.checkpoint: saves in the background, shares of ranks, and what a reader may ask for."""

import os
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.apparatus.storages import flat_state, same_state
from ddplab.runtime.needs import ON_CPU
from ddplab.runtime.torch_private import flight_records
from tools import PATIENCE_S, wait_until


def wait_for_collective(before):
    """Until another thread of this rank has begun a collective."""
    wait_until(lambda: len(flight_records()) > before)


def content(step):
    """Two tensors, one for each of two ranks to write."""
    return {name: torch.full((1000,), float(step)) for name in "ab"}


def save(path, step=1):
    """Blocking; returns nothing, since metadata cannot be sent to the parent cheaply."""
    dcp.save(content(step), checkpoint_id=path)


def load(path):
    """Which step each tensor is of, or the error."""
    found = content(0)
    try:
        dcp.load(found, checkpoint_id=path)
    except dcp.api.CheckpointException as error:
        return str(error)
    assert all((value == value[0]).all() for value in found.values())
    return {name: int(value[0]) for name, value in found.items()}


def build(wrapper="DDP", seed=0):
    """Odd sizes: with 4 ranks some hold fewer rows, and one of a bias none."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
    model = DDP(model) if wrapper == "DDP" else fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, steps=3):
    """On data that differ between ranks."""
    own = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 7, generator=own)).square().mean().backward()
        optimizer.step()


def state_of(model, optimizer, whole=False):
    """Weights and moments under names that do not depend on the wrapper."""
    weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=whole))
    return {"model": weights, "optimizer": moments}


def restore(model, optimizer, path):
    """Load what ``state_of`` names."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def meet(path, own):
    """A training loop and a save in the background that meet in different orders on two ranks."""

    class Held(dcp.DefaultSavePlanner):
        def create_local_plan(self):
            if dist.get_rank() == 1:
                looped.wait(PATIENCE_S)
            return super().create_local_plan()

    looped = threading.Event()
    loop = patient_group()
    group = dist.new_group(backend="gloo") if own else loop
    before = len(flight_records())
    future = dcp.async_save(content(1), checkpoint_id=path, planner=Held(), process_group=group)
    if dist.get_rank() == 0:
        wait_for_collective(before)  # of the save, while rank 1's is held
    if group is loop:
        shorten(loop, 1)
    summed = torch.ones(3)
    work = dist.all_reduce(summed, group=loop, async_op=True)
    looped.set()
    try:
        work.wait()
        future.result()
    except RuntimeError:
        return "timeout"
    return summed.tolist()


@proves("ckpt-async-own-group")
def test_a_save_in_the_background_needs_a_group_of_its_own(tmp_path):
    """The same order of calls on one group, and on two."""
    one, two = side_by_side(
        lambda: launch(meet, 2, tmp_path / "one", False),
        lambda: launch(meet, 2, tmp_path / "two", True),
    )
    assert one == ["timeout"] * 2
    assert two == [[2.0] * 3] * 2
    assert launch(load, 2, tmp_path / "two") == [{"a": 1, "b": 1}] * 2


@proves("ckpt-async-one-at-a-time")
def test_a_second_save_before_the_end_of_the_first(tmp_path):
    """Rank 1's first thread is late, so its second one overtakes it on the shared group; with a wait it cannot."""

    def worker(folder, wait):
        class Late(dcp.DefaultSavePlanner):
            def create_local_plan(self):
                if dist.get_rank() == 1 and not wait:
                    second.wait(PATIENCE_S)
                    wait_for_collective(before)
                return super().create_local_plan()

        second = threading.Event()
        group = patient_group()
        before = len(flight_records())
        futures = [dcp.async_save(content(1), checkpoint_id=folder / "1", planner=Late(), process_group=group)]
        if wait:
            futures[0].result()
        elif dist.get_rank() == 0:
            wait_for_collective(before)  # of the first save, while rank 1's is late
        if not wait:
            shorten(group, 1)
            before = len(flight_records())
        futures += [dcp.async_save(content(2), checkpoint_id=folder / "2", process_group=group)]
        second.set()
        return [type(f.exception(PATIENCE_S)).__name__ for f in futures]

    waited, overtaken = tmp_path / "waited", tmp_path / "overtaken"
    in_turn, at_once = side_by_side(
        lambda: launch(worker, 2, waited, True),
        lambda: postmortem(worker, 2, overtaken, False),
    )
    assert in_turn == [["NoneType"] * 2] * 2
    assert launch(lambda: [load(waited / str(step))["a"] for step in (1, 2)], 2) == [[1, 2]] * 2
    for end in at_once:  # gloo may see that the sizes differ before the time is up: then it aborts the rank
        assert "RuntimeError" in (end.value or ()) or end.error == "was killed by SIGABRT", str(end)


@proves("ckpt-async-rank-0-alone")
def test_rank_0_saves_alone_in_the_background(tmp_path):
    """Without collectives, while all ranks train; read by one rank of DDP and by three of FSDP2."""

    def write(path):
        model, optimizer = build()
        train(model, optimizer)
        state = state_of(model, optimizer)
        called = pickle.loads(pickle.dumps(state))
        future = dcp.async_save(state, checkpoint_id=path, no_dist=True) if dist.get_rank() == 0 else None
        train(model, optimizer)
        if future is not None:
            future.result()
        return called

    def read(path, wrapper):
        model, optimizer = build(wrapper, seed=99)
        restore(model, optimizer, path)
        return flat_state(state_of(model, optimizer, whole=True))

    called, _ = launch(write, 2, tmp_path / "saved", env=ON_CPU)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [".metadata", "__0_0.distcp"]
    for wrapper, ranks in (("DDP", 1), ("FSDP2", 3)):
        for found in launch(read, ranks, tmp_path / "saved", wrapper, env=ON_CPU):
            assert same_state(found, flat_state(called))


@proves("ckpt-async-errors-in-the-future")
def test_a_failed_save_is_heard_of_in_the_future_only(tmp_path):
    """Rank 1 of 3 cannot write: the loop runs on, and all ranks' futures hold what is not an Exception."""

    def worker(path):
        class Fails(dcp.FileSystemWriter):
            def write_data(self, plan, planner):
                if dist.get_rank() == 1:
                    raise OSError(28, "No space left on device")
                return super().write_data(plan, planner)

        model, optimizer = build()
        group = dist.new_group(backend="gloo")
        future = dcp.async_save(state_of(model, optimizer), storage_writer=Fails(path), process_group=group)
        failed = future.exception(PATIENCE_S)
        train(model, optimizer)  # nothing raises here
        return type(failed), sorted(failed.failures), "No space left" in str(failed)

    for kind, ranks, named in launch(worker, 3, tmp_path / "saved"):
        assert kind is dcp.api.CheckpointException
        assert not issubclass(kind, Exception)
        assert (ranks, named) == ([1], True)
    assert not (tmp_path / "saved/.metadata").exists()


@proves("ckpt-dcp-flipped-bit")
def test_a_flipped_bit_loads(tmp_path):
    """One bit of one number in a share, in the middle of a whole checkpoint."""
    launch(save, 2, tmp_path)
    path = tmp_path / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(torch.ones(4).numpy().tobytes()) + 2] ^= 0x40
    path.write_bytes(data)

    def differing(path):
        found = content(0)
        dcp.load(found, checkpoint_id=path)
        return sum((value != 1).sum().item() for value in found.values())

    assert launch(differing, 2, tmp_path) == [1, 1]


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@proves("ckpt-dcp-metadata-is-pickle")
def test_metadata_is_unpickled_without_a_check(tmp_path):
    """A directory with a hostile ``.metadata``, and one with a hostile value, against torch.load of the same."""
    written = [tmp_path / name for name in ("by metadata", "by value", "by file")]
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile/.metadata").write_bytes(pickle.dumps(Hostile(written[0])))
    launch(load, 1, tmp_path / "hostile")  # says that there is no checkpoint, too late

    def value(path, creates):
        dcp.save({"value": Hostile(creates)}, checkpoint_id=path)
        assert not creates.exists()
        dcp.load({"value": None}, checkpoint_id=path)

    launch(value, 1, tmp_path / "value", written[1])
    torch.save(Hostile(written[2]), tmp_path / "file")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "file")
    assert [path.exists() for path in written] == [True, True, False]


@proves("ckpt-get-state-counts-a-step")
def test_a_look_before_the_first_step_counts_as_a_step():
    """Three steps of Adam with and without ``get_state_dict`` before the first; then the same after the first."""

    def worker(look_before):
        model, optimizer = build()
        for step in range(3):
            if step == look_before:
                state_of(model, optimizer)
            train(model, optimizer, steps=1)
        weight = model.module[0].weight
        return weight.detach(), optimizer.state[weight]["step"].item()

    looks = (None, 1, 0)
    (plain, steps), (late, late_steps), (early, early_steps) = launch(lambda: [worker(at) for at in looks], 2)[0]
    assert (steps, late_steps, early_steps) == (3, 3, 4)
    assert torch.equal(plain, late)
    assert not torch.equal(plain, early)


@proves("ckpt-gradients-hide-moments")
def test_a_backward_before_the_load_leaves_the_moments_behind(tmp_path):
    """A fresh optimizer whose parameters have gradients has no names for moments, so none are loaded."""

    def write(path):
        model, optimizer = build()
        train(model, optimizer)
        dcp.save(state_of(model, optimizer), checkpoint_id=path)

    def read(path, gradients):
        model, optimizer = build(seed=99)
        model(torch.ones(2, 7)).sum().backward()
        if not gradients:
            optimizer.zero_grad(set_to_none=True)
        restore(model, optimizer, path)
        return len(optimizer.state)

    launch(write, 2, tmp_path / "saved")
    assert launch(lambda path: (read(path, True), read(path, False)), 2, tmp_path / "saved") == [(0, 4)] * 2


@proves("ckpt-dcp-shares-the-writing")
def test_equal_tensors_are_written_once(tmp_path):
    """Eight tensors of one size on four ranks, with the default planner and with the lowest rank as writer.

    And one as large as eight others: the rank that has it gets nothing more.
    """

    def write(path):
        state = {f"{i}": torch.zeros(100) for i in range(8)}
        for lowest in (False, True):
            planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=lowest)
            dcp.save(state, checkpoint_id=path / str(lowest), planner=planner)
        large = {"large": torch.zeros(800), **{f"{i}": torch.zeros(100) for i in range(8)}}
        dcp.save(large, checkpoint_id=path / "one is large")

    launch(write, 4, tmp_path)
    for name, expected in ("False", [2] * 4), ("True", [8, 0, 0, 0]), ("one is large", [1, 3, 3, 2]):
        stored = dcp.FileSystemReader(tmp_path / name).read_metadata().storage_data.values()
        holders = [info.relative_path for info in stored]
        assert [holders.count(f"__{rank}_0.distcp") for rank in range(4)] == expected


@proves("ckpt-dcp-loads-what-you-name")
def test_a_reader_gets_what_it_names(tmp_path):
    """More names, another shape, another type and fewer names than the checkpoint has."""
    launch(save, 2, tmp_path)

    def read(path):
        said = []
        wishes = (
            {"a": torch.zeros(1000), "c": torch.zeros(3)},
            {"a": torch.zeros(999)},
            {"a": torch.zeros(1000, dtype=torch.float64)},
            {"a": torch.zeros(1000)},
        )
        for wish in wishes:
            try:
                dcp.load(wish, checkpoint_id=path)
            except dcp.api.CheckpointException as error:
                said.append(str(error).strip().splitlines()[-1])
            else:
                said.append((list(wish), wish["a"].dtype, wish["a"][0].item()))
        return said

    for more, shape, kind, fewer in launch(read, 2, tmp_path):
        assert "Missing key in checkpoint state_dict: c" in more
        assert "Size mismatch" in shape
        assert kind == (["a"], torch.float64, 1.0)
        assert fewer == (["a"], torch.float32, 1.0)
