"""A device mesh that answers by name: this rank's place, the size and the process group of each axis.

``init_device_mesh`` makes new process groups each time it is called, but for an axis of all ranks, which has the
default group (torch/distributed/device_mesh.py, read with torch 2.13). Here the same axes give the same mesh, for as
long as the process group lives; after that ``functools.cache`` would still give it, and torch's mesh, which looks
groups up by name, find others of that name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..runtime.group import device


@dataclass(frozen=True)
class Mesh:
    """All ranks along named axes. ``torch_mesh`` is for calls that take torch's own mesh, such as ``fully_shard``."""

    torch_mesh: DeviceMesh
    groups: dict[str, dist.ProcessGroup]

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the group of the ranks that differ from this one along ``axis`` only; itself included."""
        if axis not in self.groups:
            raise ValueError(f"the mesh has no axis {axis!r}; its axes are {', '.join(self.groups)}")
        return self.groups[axis]

    def rank(self, axis: str) -> int:
        """Return the place of this rank along ``axis``, from 0."""
        return self.group(axis).rank()

    def size(self, axis: str) -> int:
        """Return the number of ranks along ``axis``."""
        return self.group(axis).size()


_meshes: dict[tuple[tuple[str, int], ...], Mesh] = {}
_world: dist.ProcessGroup | None = None  # the default group that they were made under


def named_mesh(**axes: int) -> Mesh:
    """Return the mesh of these axes, slowest first: ``named_mesh(replica=2, data=4)``. All ranks must call it.

    Raises:
        RuntimeError: there is no process group.
        ValueError: a size is not positive, or the product of the sizes is not the world size.
    """
    global _world
    if not dist.is_initialized():
        raise RuntimeError("named_mesh: there is no process group; call init_process_group first")
    ranks, spelled = math.prod(axes.values()), " × ".join(f"{name}={size}" for name, size in axes.items())
    if not axes or min(axes.values()) < 1 or ranks != dist.get_world_size():
        raise ValueError(
            f"named_mesh: {spelled or 'no axis'} is {ranks} ranks; the world size is {dist.get_world_size()}"
        )
    if _world is not dist.group.WORLD:  # initialized anew: the groups of these meshes are gone
        _meshes.clear()
        _world = dist.group.WORLD
    if (key := tuple(axes.items())) not in _meshes:
        made = init_device_mesh(device().type, tuple(axes.values()), mesh_dim_names=tuple(axes))
        _meshes[key] = Mesh(made, {axis: made.get_group(axis) for axis in axes})
    return _meshes[key]
