"""With this folder on PYTHONPATH and SIMULATED_GPUS=8, every Python here takes itself for one on a machine with 8 GPUs.

It rehearses what a program decides: which device and backend each rank takes, what it tells the others of its GPU, what
an edition notes. NCCL is played by gloo, which like NCCL refuses two ranks on one GPU: up to 2.29 unless they name
different hosts (NCCL_HOSTID), from 2.30 on (SIMULATED_NCCL=2.30.7) unless NCCL_MULTI_RANK_GPU_ENABLE=1 lets two share.
CUDA tensors are CPU tensors with another name in the call that makes them.

It cannot show: that a CPU tensor goes to NCCL (or past it to gloo), or a CUDA tensor to an operator that has no kernel
for it; that work on a GPU runs behind the host, so neither a race nor a missing synchronization; memory, speed, NCCL's
own failures. Of memory it knows what was made on a GPU or moved there, and not what was freed: enough to refuse a
tensor beyond ``set_per_process_memory_fraction``.

With SIMULATED_LOCKSTEP=1 it refuses to tell a time in which a DDP ran one of its first eleven steps: on a GPU the host
waits in them for DDP's own statistics.

All labs and claims, as if there were two GPUs (nvidia-smi is simulated, too; what is kept is nobody's edition):

    PATH=tests/simulated:$PATH PYTHONPATH=tests/simulated:gallery SIMULATED_GPUS=2 MPLBACKEND=agg \\
        python -m ddplab.recording simulated-2 --into _build/simulated

HIDE_PACKAGES=ijson,nbclient hides these packages, with GPUs or without: a machine that lacks them.
"""

import json
import math
import os
import pickle
import socket
import sys
import threading
import time
import warnings
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

COUNT = int(os.environ.get("SIMULATED_GPUS", "0"))
NCCL = tuple(map(int, os.environ.get("SIMULATED_NCCL", "2.28.9").split(".")))
NAME = "Simulated GPU"
if {"ddplab.recording", "tests/device/visit.py"} & {*sys.orig_argv[1:4]}:
    COUNT = 0  # they start what uses GPUs; without torch they start sooner
if HIDDEN := set(filter(None, os.environ.get("HIDE_PACKAGES", "").split(","))):

    def find_spec(cls, name, path=None, target=None, real=PathFinder.find_spec):
        """Find nothing of what is hidden, so that an import fails, and a question for it answers None."""
        return None if name.partition(".")[0] in HIDDEN else real(name, path, target)

    PathFinder.find_spec = classmethod(find_spec)
if COUNT:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(COUNT))))

    import torch
    import torch.distributed as dist
    from torch import cuda
    from torch.distributed import device_mesh, distributed_c10d
    from torch.nn.parallel import DistributedDataParallel
    from torch.overrides import TorchFunctionMode

    state = SimpleNamespace(
        current=0,
        allocated=0,
        most=2**36,
        stream=None,
        backend={},
        connected=None,
        used=False,
        counted=False,
        forked=False,
        waits="default",
        lockstep=[],
    )
    os.register_at_fork(after_in_child=lambda: setattr(state, "forked", state.used or state.counted))


def visible():
    """The numbers of the GPUs that this process may see."""
    return [int(number) for number in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if number]


def index(device=None):
    """The number of a device among the visible ones; refused as CUDA would, and to a fork of a process that used it."""
    if state.forked:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess (simulated)")
    state.used = True
    if isinstance(device, str):
        device = torch.device(device)
    number = getattr(device, "index", device)
    number = state.current if number is None else number
    if not 0 <= number < len(visible()):
        raise RuntimeError(f"CUDA error: invalid device ordinal ({number} of {len(visible())}, simulated)")
    return number


def count():
    """How many GPUs there are. To ask initializes the driver, and in a fork behind that there are none.

    (``device_count`` alone does not where NVML answers; here it is taken for a machine where NVML does not.)
    """
    state.counted = True
    return 0 if state.forked else len(visible())


def uuid(device=None):
    """Of the GPU itself, whatever number it has here."""
    return f"{socket.gethostname()}-{visible()[index(device)]}"


def seat(device):
    """What NCCL compares between ranks, and on how many of them it may be the same."""
    if NCCL >= (2, 30):
        return uuid(device), 2 if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" else 1
    return f"{uuid(device)} {os.environ.get('NCCL_HOSTID', '')}", 1


def set_device(device):
    """Make it the current one."""
    state.current = index(device)


def memory_stats(device=None):
    """Of an allocator that keeps nothing beyond what was ever made."""
    kinds = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    return {f"{kind}.all.{when}": state.allocated for kind in kinds for when in ("current", "peak")}


def set_per_process_memory_fraction(fraction, device=None):
    """Of what the GPU has; a tensor beyond it is refused."""
    state.most = fraction * 2**36


def give(nbytes):
    """Count a new tensor, or refuse it in torch's words (c10/cuda/CUDACachingAllocator.cpp, torch 2.11.0)."""
    if state.allocated + nbytes > state.most:
        asked, held, most = (f"{part / 2**20:.2f} MiB" for part in (nbytes, state.allocated, state.most))
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {asked}. GPU {state.current} has a total capacity of 64.00 GiB of "
            f"which 63.00 GiB is free. Including non-PyTorch memory, this process has {held} memory in use. {most} "
            f"allowed; Of the allocated memory {held} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
            "unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. (simulated)"
        )
    state.allocated += nbytes


PROTOTYPE = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"


def set_sync_debug_mode(mode, told=[]):  # noqa: B006
    """It tells once per process that it is a prototype."""
    if not told:
        told.append(True)
        warnings.warn(PROTOTYPE, stacklevel=2)
    state.waits = mode


class Graph:
    """It has run once, while it was captured; a replay does nothing."""

    def replay(self):
        """Nothing: what was captured is not known."""


class Stream:
    """All streams do their work at once."""

    def __init__(self, device=None, priority=0):
        self.device = torch.device("cuda", index(device))

    def synchronize(self):
        """Nothing is left to do."""

    wait_stream = wait_event = lambda self, other: None


class Event:
    """A moment on the host's clock, in which the simulated GPU works."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.timed, self.at_s = enable_timing, None

    def record(self, stream=None):
        """Note the moment."""
        self.at_s = time.perf_counter()

    def synchronize(self):
        """It is over already."""

    wait = lambda self, stream=None: None  # noqa: E731

    def elapsed_time(self, other):
        """Milliseconds until the other; both must have been recorded, and made to tell the time."""
        if not (self.timed and other.timed and self.at_s and other.at_s):
            raise RuntimeError("Both events must be recorded and created with enable_timing=True (simulated)")
        if os.environ.get("SIMULATED_LOCKSTEP") and any(self.at_s <= at_s <= other.at_s for at_s in state.lockstep):
            raise RuntimeError("this time holds one of the first eleven steps of a DDP (simulated)")
        return 1e3 * (other.at_s - self.at_s)


@contextmanager
def on_stream(stream):
    """Make it the current one for a block."""
    before, state.stream = state.stream, stream
    try:
        yield
    finally:
        state.stream = before


def on_the_cpu(value):
    """A CUDA device, or its name, as the CPU's."""
    if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] == "cuda"):
        device = torch.device(value)
        if device.type == "cuda":
            index(device)
            return torch.device("cpu")
    return value


if COUNT:

    class CudaIsTheCpu(TorchFunctionMode):
        """What is made on a GPU, or moved there, is on the CPU; that it was is remembered."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if function in (torch.device, torch._C._nn._parse_to):  # they only name it; Module.to asks the second
                return function(*args, **kwargs)
            if function is torch.Tensor.cuda:
                function, args, kwargs = torch.Tensor.to, (args[0], torch.device("cuda", index(*args[1:2]))), {}
            if function is torch.Tensor.item and state.waits == "warn":
                warnings.warn("called a synchronizing CUDA operation (simulated)", stacklevel=2)
            here = [on_the_cpu(value) for value in args], {name: on_the_cpu(value) for name, value in kwargs.items()}
            moved = any(
                a is not b for a, b in zip((*args, *kwargs.values()), (*here[0], *here[1].values()), strict=True)
            )
            made = function(*here[0], **here[1])
            if moved and isinstance(made, torch.Tensor):
                give(made.nbytes)
            return made

    def in_this_thread_too(thread, run=threading.Thread.run):
        """A mode holds in the thread that entered it."""
        with CudaIsTheCpu():
            run(thread)

    def wrap_with_gpus(real):
        """NCCL under gloo's name: it refuses ranks that share a GPU and may not."""

        def init_process_group(backend=None, *args, device_id=None, **kwargs):
            asked = backend or ("cpu:gloo,cuda:nccl" if visible() else "gloo")
            real("gloo" if "nccl" in asked else asked, *args, **kwargs)
            state.backend[dist.group.WORLD.group_name] = asked
            if "nccl" in asked and device_id is not None:  # else it connects with the first CUDA tensor
                connect(device_id)

        return init_process_group

    def connect(device=None):
        """As NCCL connects all ranks: none may have the GPU of another, unless they call their hosts differently."""
        store = distributed_c10d._get_default_store()  # a collective would be counted by the flight recorder
        key, (taken, most) = f"simulated/{dist.group.WORLD.group_name}", seat(device)
        store.set(f"{key}/{dist.get_rank()}", taken)
        seats = [store.get(f"{key}/{rank}") for rank in range(dist.get_world_size())]
        if any(seats.count(one) > most for one in seats):
            raise dist.DistBackendError("ncclInvalidUsage: Duplicate GPU detected (simulated)")
        state.connected = dist.group.WORLD

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False, real=dist.all_reduce):
        """The first of all ranks connects them."""
        if group is None and state.connected is not dist.group.WORLD and get_backend() == "nccl":
            connect()
        return real(tensor, op, group, async_op)

    def new_group(ranks=None, timeout=None, backend=None, *args, real=dist.new_group, **kwargs):
        """Without a backend it has that of all ranks; NCCL is played by gloo here, too."""
        group = real(ranks, timeout, "gloo" if "nccl" in (backend or "") else backend, *args, **kwargs)
        if hasattr(group, "group_name"):
            state.backend[group.group_name] = backend or state.backend.get(dist.group.WORLD.group_name, "gloo")
        return group

    def record_of(nccl, real=torch._C._distributed_c10d._dump_fr_trace):
        """The flight recorder of gloo, or of the NCCL that it plays."""

        def dump(*what):
            kept = pickle.loads(real(*what))
            played = [one for one in kept.pop("entries", []) if nccl == plays_nccl(one["process_group"][0])]
            for one in played if nccl else ():
                one["profiling_name"] = one["profiling_name"].replace("gloo:", "nccl:")
            return pickle.dumps({"entries": played} if nccl else {**kept, "entries": played})

        return dump

    def plays_nccl(name):
        return state.allocated > 0 and "nccl" in state.backend.get(name, "")

    # In a stack they are torch's: no program stands there.
    for function in (CudaIsTheCpu.__torch_function__, new_group, all_reduce):
        function.__code__ = function.__code__.replace(co_filename=torch.overrides.__file__)

    def get_backend(group=None, real=dist.get_backend):
        """What was asked for."""
        return state.backend.get(getattr(group or dist.group.WORLD, "group_name", None)) or real(group)

    def profile_init(self, *, activities=None, real=torch.profiler.profile.__init__, **options):
        """Of the CPU only: asked for a GPU that it was not built for, the profiler hangs in a backward."""
        options["record_shapes"] = True  # NCCL's kernels say their sizes
        real(self, activities=[torch.profiler.ProfilerActivity.CPU] if activities else None, **options)

    def export_chrome_trace(self, path, real=torch.profiler.profile.export_chrome_trace):
        """With a launch and a kernel for each operator that no other operator has called, and for each of NCCL's."""
        real(self, path)
        trace = json.loads(Path(path).read_text())
        events = sorted(
            (e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e["dur"])
        )
        by_nccl = dist.is_initialized() and plays_nccl(dist.group.WORLD.group_name)
        played, free_at, until = [], {}, 0
        for number, e in enumerate(events):
            nccl = by_nccl and e["name"] == "c10d::allreduce_"
            if e["ts"] < until and not nccl:
                continue
            until = max(until, e["ts"] + e["dur"])
            name, stream, took, said = e["name"], 7, e["dur"], {}
            if nccl:  # a second for each: so they end together on all ranks, however busy those are
                elements = sum(math.prod(shape) for shape in e["args"]["Input Dims"][0])
                said = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float"}
                name, stream, took = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 1e6
            start = max(e["ts"] + 5, free_at.get(7, 0), free_at.get(stream, 0))  # NCCL's wait for the gradients
            free_at[stream] = start + took
            same = {"ph": "X", "pid": 0, "args": {"correlation": number, "stream": stream, **said}}
            launch = {**same, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": e["ts"], "dur": 2}
            kernel = {**same, "cat": "kernel", "name": name, "tid": stream, "ts": start, "dur": took}
            played += [launch, kernel]
        trace["traceEvents"] += played
        Path(path).write_text(json.dumps(trace))

    def autocast_init(self, device_type, *args, real=torch.autocast.__init__, **kwargs):
        """On the CPU, where the tensors are."""
        real(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def ddp_init(self, module, device_ids=None, output_device=None, *args, real=DistributedDataParallel.__init__, **kw):
        """Its module is on the CPU, where it takes no device."""
        for device in device_ids or ():
            index(device)
        real(self, module, None, None, *args, **kw)

    def pre_forward(self, *inputs, real=DistributedDataParallel._pre_forward, **kwargs):
        """Note the steps in which DDP takes statistics, or waits for those of the step before."""
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self.simulated_steps = getattr(self, "simulated_steps", 0) + 1
            if self.simulated_steps <= 11:
                state.lockstep.append(time.perf_counter())
        return real(self, *inputs, **kwargs)

    cuda.is_available, cuda.is_initialized = lambda: count() > 0, lambda: state.used and not state.forked
    cuda.device_count = count
    cuda.current_device, cuda.set_device = lambda: state.current, set_device
    cuda.get_device_name = lambda device=None: f"{NAME} {visible()[index(device)]}"
    cuda.get_device_properties = lambda device=None: SimpleNamespace(
        name=cuda.get_device_name(device),
        uuid=uuid(device),
        total_memory=2**36,
        major=9,
        minor=0,
        multi_processor_count=4,
    )
    cuda.memory_allocated = cuda.max_memory_allocated = lambda device=None: state.allocated
    cuda.memory_stats = memory_stats
    cuda.CUDAGraph, cuda.graph = Graph, lambda graph, **options: nullcontext()
    cuda.set_sync_debug_mode, cuda.set_per_process_memory_fraction = (
        set_sync_debug_mode,
        set_per_process_memory_fraction,
    )
    torch.Tensor.pin_memory = lambda self, device=None: self.clone()
    torch.Tensor.record_stream = lambda self, stream: None
    DistributedDataParallel._check_comm_hook = lambda self, hook: None  # no bf16 hook without CUDA
    torch.profiler.profile.__init__ = profile_init
    torch.profiler.profile.export_chrome_trace = export_chrome_trace
    cuda.memory_snapshot, cuda.is_current_stream_capturing = list, lambda: False  # an optimizer asks the second
    cuda.mem_get_info = lambda device=None: (2**36 - state.allocated, 2**36)
    cuda.synchronize = cuda.empty_cache = cuda.reset_peak_memory_stats = lambda device=None: None
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.get_rng_state = lambda device=None: (index(device), torch.get_rng_state())[1]
    cuda.set_rng_state = lambda new_state, device="cuda": None
    cuda.Stream, cuda.Event, cuda.stream = Stream, Event, on_stream
    cuda.current_stream = cuda.default_stream = lambda device=None: state.stream or Stream(device)
    cuda.nccl = SimpleNamespace(version=lambda: NCCL)
    sys.modules["torch.cuda.nccl"] = cuda.nccl
    torch.version.cuda = "simulated"
    torch.accelerator.is_available = lambda: False  # a DataLoader would pin memory
    dist.init_process_group = distributed_c10d.init_process_group = wrap_with_gpus(dist.init_process_group)
    dist.get_backend = distributed_c10d.get_backend = get_backend
    dist.all_reduce = distributed_c10d.all_reduce = all_reduce
    dist.new_group = distributed_c10d.new_group = device_mesh.new_group = new_group
    torch._C._distributed_c10d._dump_nccl_trace, torch._C._distributed_c10d._dump_fr_trace = map(
        record_of, (True, False)
    )
    DistributedDataParallel.__init__, torch.autocast.__init__ = ddp_init, autocast_init
    DistributedDataParallel._pre_forward = pre_forward
    threading.Thread.run = in_this_thread_too
    CudaIsTheCpu().__enter__()
