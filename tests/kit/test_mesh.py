"""named_mesh: answers by name, one mesh per process group, and why functools.cache does not do."""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ddplab import device, launch
from ddplab.apparatus.mesh import named_mesh


def init(folder, attempt):
    """Make the default group; a second attempt in the same process needs a store of its own."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.path.join(folder, str(attempt)), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def leave():
    dist.barrier()
    dist.destroy_process_group()


def members(group):
    return dist.get_process_group_ranks(group)


def sum_of_ranks(group):
    total = torch.tensor([float(dist.get_rank())]).to(device())
    dist.all_reduce(total, group=group)
    return total.item()


def test_places_sizes_and_groups_by_name():
    def worker():
        mesh = named_mesh(replica=2, data=3)
        return [(mesh.rank(axis), mesh.size(axis), members(mesh.group(axis))) for axis in ("replica", "data")]

    for rank, (replica, data) in enumerate(launch(worker, 6)):
        row, column = divmod(rank, 3)
        assert replica == (row, 2, [column, column + 3])
        assert data == (column, 3, [3 * row, 3 * row + 1, 3 * row + 2])


def test_the_same_axes_give_the_same_mesh_and_others_another():
    def worker():
        first, swapped = named_mesh(replica=2, data=2), named_mesh(data=2, replica=2)
        again = named_mesh(replica=2, data=2)
        return (
            again is first,
            again.group("data") is first.group("data"),
            swapped is first,
            members(swapped.group("data")),
        )

    assert launch(worker, 4)[0] == (True, True, False, [0, 2])


def test_what_it_refuses_and_what_it_says():
    def worker():
        def complaint(ask):
            try:
                ask()
            except ValueError as error:
                return str(error)

        mesh = named_mesh(replica=1, data=2)
        wrong = {"replica": 2, "data": 3}, {"data": -2, "replica": -1}, {}
        return [
            complaint(lambda: mesh.rank("model")),
            *(complaint(lambda axes=axes: named_mesh(**axes)) for axes in wrong),
        ]

    unknown, product, negative, none = launch(worker, 2)[0]
    assert unknown == "the mesh has no axis 'model'; its axes are replica, data"
    assert product == "named_mesh: replica=2 × data=3 is 6 ranks; the world size is 2"
    assert negative.startswith("named_mesh: data=-2 × replica=-1 ")
    assert none.startswith("named_mesh: no axis ")


def test_without_a_process_group_it_asks_for_one_and_makes_none():
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        named_mesh(data=1)
    assert not dist.is_initialized()  # init_device_mesh would have made one


def test_a_new_process_group_gets_a_new_mesh(tmp_path):
    def worker(folder):
        seen = []
        for attempt in (0, 1):
            init(folder, attempt)
            mesh = named_mesh(replica=2, data=2)
            seen.append((mesh, sum_of_ranks(mesh.group("data")), members(mesh.group("data"))))
            leave()
        (first, *one), (second, *other) = seen
        return first is not second, one == other, one

    for rank, seen in enumerate(launch(worker, 4, str(tmp_path), init=False)):
        pair = [0, 1] if rank < 2 else [2, 3]
        assert seen == (True, True, [sum(pair), pair])


def test_functools_cache_outlives_the_process_group(tmp_path):
    """The old mesh comes back. Its groups are names, first of nothing, then of whatever the new run called so."""

    def worker(folder):
        cached = functools.cache(
            lambda **axes: init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        )
        init(folder, 0)
        first, right = cached(replica=2, data=2), members(cached(replica=2, data=2).get_group("data"))
        leave()
        init(folder, 1)
        stale = cached(replica=2, data=2)
        with pytest.raises(RuntimeError, match="Could not resolve the process group"):
            stale.get_group("data")
        for _ in range(4):
            dist.new_group()  # groups of all ranks, with the names "1" to "4"
        wrong = members(stale.get_group("data"))
        leave()
        return stale is first, right, wrong

    for rank, seen in enumerate(launch(worker, 4, str(tmp_path), init=False)):
        assert seen == (True, [0, 1] if rank < 2 else [2, 3], [0, 1, 2, 3])
