"""Every private torch name that the handbook uses, each behind one public function.

A new torch that renames one of them breaks this file and no other. Each docstring says why nothing
public would do, and in which versions of torch the name was seen.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# -- DDP and its reducer ----------------------------------------------------------------------------


def ddp_facts(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return what DDP logs about itself: caps in bytes, bucket sizes in bytes, times in ns, flags as 0 or 1.

    Lists come as strings, ``"4096, 8192"``. Run-time entries are those of the previous iteration; some appear
    only after the first backward, ``rebuilt_bucket_sizes`` two forwards after it.

    Private because: no public call tells the cap in bytes, the sizes at construction or the rebuilt sizes.
    Seen: ``DistributedDataParallel._get_ddp_logging_data`` in torch 2.13.
    """
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]


def torch_assign(tensors: Sequence[torch.Tensor], caps_bytes: Sequence[int]) -> list[list[int]]:
    """Return torch's own bucket assignment, each bucket a list of positions in ``tensors``.

    ``caps_bytes`` holds the cap of the first bucket, then that of the second, and so on; the last repeats.

    Private because: the reducer offers no public way to assign without building one.
    Seen: ``torch.distributed._compute_bucket_assignment_by_size`` in torch 2.13, where it returns
    the buckets and the cap of each.
    """
    assignment = dist._compute_bucket_assignment_by_size(list(tensors), list(caps_bytes))  # type: ignore[attr-defined]
    buckets, _caps = assignment
    return [list(bucket) for bucket in buckets]


# -- autograd -----------------------------------------------------------------------------------------


def after_backward(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, when the backward that now runs has computed everything; only a hook may ask for it.

    An exception of ``callback`` comes out of ``backward()``.

    Private because: autograd's hooks are per tensor and per node; none fires at the end of a backward.
    torch's own ``fully_shard`` uses the same call.
    Seen: ``torch.autograd.Variable._execution_engine.queue_callback`` in torch 2.13.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)


# -- tensors as keys --------------------------------------------------------------------------------


def weak_tensor_dict() -> MutableMapping[torch.Tensor, Any]:
    """Return an empty dictionary whose keys are tensors, each by its identity, and do not keep them alive.

    Private because: ``weakref.WeakKeyDictionary`` compares keys with ``==``, which for tensors is elementwise, and
    torch documents no dictionary of its own.
    Seen: ``torch.utils.weak.WeakTensorKeyDictionary`` in torch 2.13.
    """
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


# -- the flight recorder (what was issued, how large, from which line) ------------------------------


class FlightRecord(NamedTuple):
    """One collective or message, as the flight recorder of this rank kept it."""

    group: str  # name of the process group: "0" is the default group
    number: int  # collective_seq_id: counts the collectives of the group, from 1
    operation: str  # "all_reduce", "broadcast", …
    dtype: str  # of the first input: "Float", "Long", …
    elements: int  # in the first input
    frames: tuple[tuple[str, str, int], ...]  # (function, file name, line), innermost first


def flight_records() -> list[FlightRecord]:
    """Return what this rank's flight recorder holds, oldest first.

    ``TORCH_FR_BUFFER_SIZE`` in the environment of the rank says how many entries it keeps (2000 by default
    in torch 2.13, 0 switches it off).

    An entry's state is left out: on gloo it stays "scheduled" for ever. What a rank issued last says more.

    Raises:
        RuntimeError: the ranks use gloo, and this torch is older than 2.11, which records nothing of gloo.

    Private because: the public way in is the file that NCCL's watchdog writes when a collective times out;
    gloo has no watchdog.
    Seen: ``torch._C._distributed_c10d._dump_fr_trace`` (gloo) and ``_dump_nccl_trace`` in torch 2.13.
    """
    entries = [entry for raw in _recorders() for entry in pickle.loads(raw()).get("entries", [])]
    return [
        FlightRecord(
            group=entry["process_group"][0],
            number=entry["collective_seq_id"],
            operation=entry["profiling_name"].split(":")[1],
            dtype=entry["input_dtypes"][0] if entry["input_dtypes"] else "",
            elements=math.prod(entry["input_sizes"][0]) if entry["input_sizes"] else 0,
            frames=tuple((f["name"], f["filename"].rpartition("/")[2], f["line"]) for f in entry["frames"]),
        )
        for entry in sorted(entries, key=lambda entry: entry["time_created_ns"])
    ]


def flight_dump() -> dict[str, Any]:
    """Return this rank's flight recorder as NCCL's watchdog would write it, with the members of every group.

    On gloo torch leaves the members out (``pg_config`` has one nameless group); without them nobody can tell a rank
    that did not come from one that was not invited, and torch's own analyser stops with a KeyError.

    Raises:
        RuntimeError: as for :func:`flight_records`.

    Private because: as for :func:`flight_records`; and no public call lists the groups of a process.
    Seen: ``torch._C._distributed_c10d._dump_fr_trace``, ``_dump_nccl_trace`` and
    ``torch.distributed.distributed_c10d._world`` (``pg_group_ranks``, ``pg_names``) in torch 2.13.
    """
    dump, *more = [pickle.loads(raw()) for raw in _recorders()]
    for other in more:  # NCCL has a recorder of its own, beside that of gloo
        dump["entries"] = sorted(
            [*dump.get("entries", []), *other.get("entries", [])], key=lambda entry: entry["time_created_ns"]
        )
        dump["pg_config"] |= other.get("pg_config", {})
    dump.setdefault("entries", [])
    dump["pg_config"].pop("", None)
    world: Any = dist.distributed_c10d._world
    for group, name in world.pg_names.items():
        if isinstance(group, dist.ProcessGroup):  # not of this one: this rank is not a member
            config = {"name": name, "desc": group.group_desc, "ranks": str(sorted(world.pg_group_ranks[group]))}
            dump["pg_config"].setdefault(name, config)
    return dict(dump)


def flight_trace() -> bytes:
    """Return this rank's flight recorder on gloo as torch pickles it, to show what it lacks beside :func:`flight_dump`.

    Private because: as for :func:`flight_records`.
    Seen: ``torch._C._distributed_c10d._dump_fr_trace`` in torch 2.13.
    """
    return bytes(_recorders()[0]())


def flight_progress() -> tuple[int, ...]:
    """Return how many operations this rank has issued in each of its groups; microseconds, and no stack is read.

    Private because: as for :func:`flight_records`.
    Seen: ``torch._C._distributed_c10d._dump_fr_trace`` and its ``pg_status`` in torch 2.13.
    """
    dumps = [pickle.loads(raw(False, False, False)) for raw in _recorders()]
    return tuple(
        status["last_enqueued_collective"] for dump in dumps for _, status in sorted(dump.get("pg_status", {}).items())
    )


def backends_used() -> set[str]:
    """Return which backends have issued a collective or message for this rank, such as ``{"gloo"}``; barriers aside.

    Private because: as for :func:`flight_records`; a group names the backends that it has, not those that it used.
    Seen: ``torch._C._distributed_c10d._dump_fr_trace`` and ``_dump_nccl_trace`` in torch 2.13.
    """
    dumps = [pickle.loads(raw(True, False, False)) for raw in _recorders()]
    names = [entry["profiling_name"] for dump in dumps for entry in dump.get("entries", [])]
    return {name.partition(":")[0] for name in names if "barrier" not in name}


def _recorders() -> list[Any]:
    if torch.__version__ < "2.11" and dist.is_initialized() and "nccl" not in dist.get_backend_config():
        raise RuntimeError(
            f"torch {torch.__version__} keeps no flight record of gloo; torch 2.11 is the first that does"
        )
    c10d: Any = torch._C._distributed_c10d
    return [getattr(c10d, name) for name in ("_dump_fr_trace", "_dump_nccl_trace") if hasattr(c10d, name)]


# -- process groups ---------------------------------------------------------------------------------


def set_timeout(group: dist.ProcessGroup, timeout_s: float) -> None:
    """Give what this rank starts in ``group`` from now on another timeout.

    Private because: ``new_group`` takes the timeout of a group, which is then also that of its making.
    Seen: ``torch.distributed.distributed_c10d._set_pg_timeout`` in torch 2.4 to 2.13.
    """
    import datetime

    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout_s), group)


# -- torch.compile ----------------------------------------------------------------------------------


def set_ddp_optimizer(enabled: bool) -> None:
    """Let torch.compile split a DDP model's graph at bucket borders (its default), or not.

    Private because: the switch lives in ``torch._dynamo.config``, a module that cloudpickle refuses, so a worker
    that names it cannot be sent to its ranks ("cannot pickle 'ConfigModuleInstance' object").
    Seen: ``torch._dynamo.config.optimize_ddp`` in torch 2.13.
    """
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = enabled


def aot_backend(fw_compiler: Callable[..., Any], bw_compiler: Callable[..., Any]) -> Any:
    """Return a torch.compile backend that traces forward and backward ahead of time, and compiles each with these.

    Private because: torch's page on custom backends names no public module for it.
    Seen: ``torch._dynamo.backends.common.aot_autograd`` in torch 2.13.
    """
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=fw_compiler, bw_compiler=bw_compiler)


# -- DDP's own mixed precision ----------------------------------------------------------------------


def mixed_precision(dtype: torch.dtype) -> Any:
    """Return what DDP takes as ``mixed_precision=``: parameters and all-reduces in ``dtype``.

    Private because: the class of the argument is, and its docstring calls it experimental.
    Seen: ``torch.nn.parallel.distributed._MixedPrecision`` in torch 2.13.
    """
    from torch.nn.parallel.distributed import _MixedPrecision

    return _MixedPrecision(param_dtype=dtype, reduce_dtype=dtype)
