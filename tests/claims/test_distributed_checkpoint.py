"""torch.distributed.checkpoint: saves in the background, shares of ranks, and what a reader may ask for."""

import os
import pickle
import signal
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from patience import launch, patient_group, postmortem, shorten
from proof import proves, side_by_side
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

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
    if wrapper != "bare":
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


def flat(value, name=""):
    """A nested dictionary as one of paths."""
    if not isinstance(value, dict):
        return {name: value}
    return {n: v for key in value for n, v in flat(value[key], f"{name}/{key}").items()}


def equal(a, b):
    """Bit for bit, with the same names."""
    a, b = flat(a), flat(b)
    same = (torch.equal(a[n], b[n]) if torch.is_tensor(b[n]) else a[n] == b[n] for n in a.keys() & b.keys())
    return a.keys() == b.keys() and all(same)


@proves("ckpt-async-saves-the-moment")
def test_what_is_saved_is_of_the_moment_of_the_call(tmp_path):
    """The write is held back until the optimizer has stepped: saved are weights and moments from before."""

    def worker(path):
        class Late(dcp.DefaultSavePlanner):
            def finish_plan(self, plan):
                assert stepped.wait(PATIENCE_S)
                return super().finish_plan(plan)

        stepped, group = threading.Event(), dist.new_group(backend="gloo")
        model, optimizer = build()
        train(model, optimizer)
        state = state_of(model, optimizer)
        called = pickle.loads(pickle.dumps(state))
        future = dcp.async_save(state, checkpoint_id=path, planner=Late(), process_group=group)
        returned_before_the_end = not future.done()
        train(model, optimizer)
        stepped.set()
        future.result()
        now = pickle.loads(pickle.dumps(state_of(model, optimizer)))
        found = state_of(model, optimizer)
        dcp.load(found, checkpoint_id=path)
        return returned_before_the_end, equal(found, called), equal(found, now)

    assert launch(worker, 2, tmp_path / "saved") == [(True, True, False)] * 2


@proves("ckpt-async-stages-all")
def test_every_rank_copies_all_of_a_replicated_state_and_writes_a_share(tmp_path):
    """Storages of the staged copy against those of the state, and entries by the file that holds them."""

    def worker(path):
        model, optimizer = build()
        state = state_of(model, optimizer)
        staged = DefaultStager(StagingOptions(False, False, False, False)).stage(state)
        dcp.async_save(state, checkpoint_id=path, process_group=dist.new_group(backend="gloo")).result()
        mine = {n: t for n, t in flat(state).items() if torch.is_tensor(t)}
        copies = {n: t for n, t in flat(staged).items() if torch.is_tensor(t)}
        apart = {t.data_ptr() for t in mine.values()}.isdisjoint(t.data_ptr() for t in copies.values())
        return apart, sum(t.nbytes for t in mine.values()), sum(t.nbytes for t in copies.values())

    for apart, nbytes, copied in launch(worker, 3, tmp_path / "saved"):
        assert apart
        assert copied == nbytes
    stored = dcp.FileSystemReader(tmp_path / "saved").read_metadata().storage_data
    holders = [info.relative_path for info in stored.values()]
    assert set(holders) == {f"__{rank}_0.distcp" for rank in range(3)}
    assert len({index.fqn for index in stored}) == len(holders)  # each name once


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
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=path)
        options = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizer, **options)
        return state_of(model, optimizer, whole=True)

    called, _ = launch(write, 2, tmp_path / "saved", env=ON_CPU)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [".metadata", "__0_0.distcp"]
    for wrapper, ranks in (("DDP", 1), ("FSDP2", 3)):
        assert all(equal(found, called) for found in launch(read, ranks, tmp_path / "saved", wrapper, env=ON_CPU))


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


def killed(path, asynchronous):
    """Rank 1 dies before it writes its share of step 2; asynchronously, after the call has returned."""

    class Dies(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            assert not asynchronous or returned.wait(PATIENCE_S)
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write_data(plan, planner)

    returned = threading.Event()
    if not asynchronous:
        dcp.save(content(2), storage_writer=Dies(path))
        return
    group = dist.new_group(backend="gloo")
    future = dcp.async_save(content(2), storage_writer=Dies(path), process_group=group)
    returned.set()
    future.result()


@proves("ckpt-async-killed-leaves-no-metadata")
def test_killed_in_between(tmp_path):
    """In a directory of its own: the new one is refused with the name of what is missing, the old one is whole."""
    old, blocking, background = (tmp_path / name for name in ("old", "blocking", "background"))
    _, *killings = side_by_side(
        lambda: launch(save, 2, old),
        lambda: postmortem(killed, 2, blocking, False),
        lambda: postmortem(killed, 2, background, True),
    )
    found = launch(lambda: [load(path) for path in (old, blocking, background)], 2)
    for endings, new in zip(killings, (blocking, background), strict=True):
        assert [ending.how for ending in endings] == ["raised", "died"]
        assert (new / "__0_0.distcp").exists()
        assert not (new / ".metadata").exists()
    for whole, *refused in found:
        assert whole == {"a": 1, "b": 1}
        for error, new in zip(refused, (blocking, background), strict=True):
            # Before torch 2.13 the error does not name the file.
            named = torch.__version__ >= (2, 13)
            assert (f"No such file or directory: '{new / '.metadata'}'" if named else "metadata is None") in error


@proves("ckpt-dcp-overwrite-mixes")
def test_killed_over_the_old_one(tmp_path):
    """Over the old directory: its ``.metadata`` still fits, and the load mixes two steps without a message."""
    launch(save, 2, tmp_path)
    postmortem(killed, 2, tmp_path, False)
    assert launch(load, 2, tmp_path) == [{"a": 2, "b": 1}] * 2


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


@proves("ckpt-ddp-fsdp2-names")
def test_names_do_not_depend_on_the_wrapper(tmp_path):
    """``get_state_dict`` against the wrappers' own ``state_dict``, and a load across wrappers with the latter."""

    def names():
        through, own = [], []
        for wrapper in "bare", "DDP", "FSDP2":
            model, optimizer = build(wrapper)
            through.append(sorted(flat(state_of(model, optimizer))))
            own.append(sorted(model.state_dict()))
        return through, own

    def across(path):
        dcp.save({"model": build("DDP")[0].state_dict()}, checkpoint_id=path)
        try:
            dcp.load({"model": build("FSDP2")[0].state_dict()}, checkpoint_id=path)
        except dcp.api.CheckpointException as error:
            return str(error)

    for through, (bare, ddp, fsdp2) in launch(names, 2, env=ON_CPU):
        assert through[0] == through[1] == through[2]
        assert "/optimizer/state/0.weight/exp_avg" in through[0]
        assert bare == fsdp2
        assert ddp == [f"module.{name}" for name in bare]
    for said in launch(across, 2, tmp_path / "saved", env=ON_CPU):
        assert "Missing key in checkpoint state_dict: model.0." in said


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
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=path)
        options = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizer, **options)
        return len(optimizer.state)

    launch(write, 2, tmp_path / "saved")
    assert launch(lambda path: (read(path, True), read(path, False)), 2, tmp_path / "saved") == [(0, 4)] * 2


@proves("ckpt-dcp-one-value-per-name")
def test_what_differs_between_ranks_is_saved_once(tmp_path):
    """A tensor and a number under the same names on three ranks, and a name for each rank at another world size."""

    def write(path):
        rank = dist.get_rank()
        own = {"tensor": torch.full((4,), rank), "number": 10 * rank}
        dcp.save({**own, f"of {rank}": rank}, checkpoint_id=path)
        found = {"tensor": torch.full((4,), -1), "number": -1}
        dcp.load(found, checkpoint_id=path)
        return found["tensor"][0].item(), found["number"]

    def read(path):
        found = {f"of {dist.get_rank()}": -1}
        try:
            dcp.load(found, checkpoint_id=path)
        except dcp.api.CheckpointException as error:
            return str(error)
        return found

    first, *others = launch(write, 3, tmp_path / "saved")
    assert others == [first] * 2
    assert first[0] in (0, 1, 2)
    assert launch(read, 3, tmp_path / "saved") == [{f"of {rank}": rank} for rank in range(3)]
    for said in launch(read, 4, tmp_path / "saved"):
        assert "Missing key in checkpoint state_dict: of 3" in said


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
