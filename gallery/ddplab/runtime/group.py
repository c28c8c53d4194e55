"""The device and the process group of a rank: which to take, how to join, how to leave without a crash."""

from __future__ import annotations

import atexit
import datetime
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_KEPT: list[Any] = []  # what must live until the process ends


def device() -> torch.device:
    """Return the device of the calling rank, as its launcher chose it: ``cuda:i`` or ``cpu``."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def gpu_uuid() -> str | None:
    """Return which GPU of the world the calling rank has, whatever number it has here; None without one."""
    import torch

    here = device()
    return str(torch.cuda.get_device_properties(here).uuid) if here.type == "cuda" else None


def gpus_differ(store: Any, rank: int, world_size: int) -> bool:
    """Return whether each rank has a GPU of its own, as NCCL wants; all ranks must ask.

    Each may see all GPUs of its machine or, under Slurm, its own only: so their UUIDs are compared, not their numbers.
    """
    store.set(f"ddplab/gpu/{rank}", gpu_uuid() or "none")
    gpus = {store.get(f"ddplab/gpu/{other}") for other in range(world_size)}
    return len(gpus) == world_size and b"none" not in gpus


def join_group(store: Any, rank: int, world_size: int, timeout_s: float, backend: str) -> None:
    """Initialize the default process group on the rank's device; all ranks must.

    Args:
        store: a ``torch.distributed.Store`` that all ranks share.
        rank: of this process.
        world_size: number of ranks.
        timeout_s: seconds after which a collective fails.
        backend: ``"nccl"`` or ``"gloo"``. NCCL takes CUDA tensors only, so gloo takes those of the CPU beside it.
    """
    import torch
    import torch.distributed as dist

    here = device()
    if here.type == "cuda":  # under gloo, too: events and generators belong to the current device
        torch.cuda.set_device(here)
    backends, bound = ("cpu:gloo,cuda:nccl", here) if backend == "nccl" else (backend, None)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=bound)


def leave_group() -> None:
    """Wait for all ranks, then destroy the default process group; all ranks must call it.

    Without the wait a rank leaves while a peer still uses its sockets, and gloo aborts in several per cent of exits.
    """
    import torch.distributed as dist

    work = dist.barrier(async_op=True)
    work.wait()
    keep_until_exit(work)  # gloo can abort if its own thread is the last to drop it
    keep_group()
    dist.destroy_process_group()


def keep_group() -> None:
    """Keep the default process group, if there is one, until the process ends.

    Else DDP's reducer may be the last to drop a destroyed group. It waits for gloo's thread while it holds Python's
    lock, and that thread waits for the lock, to drop the last of its Work (torch 2.13).
    """
    import torch.distributed as dist

    if dist.is_initialized():
        keep_until_exit(dist.group.WORLD)


def keep_until_exit(thing: Any) -> None:
    """Keep an object until Python ends, but not longer: its destructor may need a Python that works."""
    if not _KEPT:
        atexit.register(_KEPT.clear)
    _KEPT.append(thing)
