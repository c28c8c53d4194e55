"""A link that is slow on purpose, played by a DDP communication hook: no root, no network, any machine.

The real all-reduce runs at once, and its result is handed over when a link of the given latency and rate would
have delivered it. Only the time is made up: the sum is the real one.
One link serves one transfer after the other, in the order in which they were launched:

    start = max(launched, the link is free)
    due   = start + latency_s + nbytes / bytes_per_s
    done  = max(due, the real all-reduce is done)

Every rank plays its own link, so ranks need no common clock.
"""

# No "from __future__ import annotations" here: DDP compares the annotation of a hook's `bucket` with the class.

import contextlib
import ctypes
import math
import queue
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class Transfer(NamedTuple):
    """What one transfer asked of the link; times in seconds on the clock of ``time.perf_counter``."""

    nbytes: int
    launched_s: float
    done_s: float  # the moment before its result was handed over


class SlowLink:
    """A link with a latency and a rate. Make it in the worker, once the process group is there.

    Use it as DDP's communication hook, ``ddp.register_comm_hook(link, SlowLink.hook)``, or by itself,
    ``link.all_reduce(tensor).wait()``. ``latency_s`` and ``bytes_per_s`` may be changed between steps.
    Its thread ends once the link is gone and all that it carried is delivered.

    Args:
        latency_s: seconds that every transfer pays, however small.
        bytes_per_s: rate of the link, in bytes per second.

    Attributes:
        log: the transfers that have ended, as :class:`Transfer`, in order; failed ones are not among them.

    Raises:
        ValueError: a latency is negative, a rate is not positive, or one of them is not finite.
    """

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.log: list[Transfer] = []
        self._sent: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # The thread knows the queue and the log, not the link: it does not keep the link alive.
        threading.Thread(target=_serve, args=(self._sent, self.log), name="slow link", daemon=True).start()
        weakref.finalize(self, self._sent.put, None)

    @property
    def latency_s(self) -> float:
        """Seconds that every transfer pays, however small."""
        return self._latency_s

    @latency_s.setter
    def latency_s(self, value: float) -> None:
        if not 0 <= value < math.inf:
            raise ValueError(f"SlowLink: latency_s must be a finite number of seconds, 0 or more; got {value!r}")
        self._latency_s = value

    @property
    def bytes_per_s(self) -> float:
        """Rate of the link, in bytes per second."""
        return self._bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(f"SlowLink: bytes_per_s must be a finite number above 0; got {value!r}")
        self._bytes_per_s = value

    def seconds(self, nbytes: int) -> float:
        """How long a transfer of so many bytes keeps the link: ``latency_s + nbytes / bytes_per_s``."""
        return self._latency_s + nbytes / self._bytes_per_s

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Sum ``tensor`` over all ranks, in place; the future holds it once the link would have delivered it.

        An error of the real all-reduce comes out of the future, and so out of ``backward()``.
        """
        launched_s, ready = time.perf_counter(), None
        if tensor.is_cuda:  # the host runs ahead of the device: launched is when the device has the gradient
            ready = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            ready.record()
        real = dist.all_reduce(tensor, async_op=True)
        gate: torch.futures.Future[Any] = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
        self._sent.put(_Job(tensor, self.seconds(tensor.nbytes), launched_s, ready, real, gate))
        return gate.then(_open)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """The communication hook: the mean over ranks, as DDP computes it without a hook."""
        # The reciprocal, as reducer.cpp's mark_variable_ready_dense does: x / 3 and x · (1/3) differ in the last bit.
        return self.all_reduce(bucket.buffer().mul_(1 / dist.get_world_size()))


@dataclass
class _Job:
    """A transfer on its way."""

    tensor: torch.Tensor
    takes_s: float
    launched_s: float
    ready: torch.cuda.Event | None
    real: Any  # the Work of the real all-reduce
    gate: torch.futures.Future[Any]  # gets the tensor, or the error


def _open(gate: torch.futures.Future[Any]) -> torch.Tensor:
    """Pass on what the gate got. An error has to be raised in a callback: only so C++ sees that it is one."""
    got = gate.value()
    if isinstance(got, Exception):
        raise got
    assert isinstance(got, torch.Tensor)
    return got


def _serve(sent: "queue.SimpleQueue[_Job | None]", log: list[Transfer]) -> None:
    """Deliver what was sent, one after the other, until ``None`` comes. The life of the link's thread."""
    _wake_on_time()
    free_s, gpu = -math.inf, None
    while (job := sent.get()) is not None:
        try:
            if job.ready is not None:
                gpu = gpu or _Gpu(job.tensor.device)
                job.launched_s = gpu.when(job.ready)
            due_s = max(job.launched_s, free_s) + job.takes_s
            with torch.cuda.stream(gpu.stream) if gpu else contextlib.nullcontext():
                job.real.wait()
                if gpu:  # NCCL's wait() holds back a stream, not this thread
                    torch.cuda.current_stream().synchronize()
                free_s = max(due_s, time.perf_counter())
                while (left_s := due_s - time.perf_counter()) > 0:
                    time.sleep(left_s)
                log.append(Transfer(job.tensor.nbytes, job.launched_s, time.perf_counter()))
                job.gate.set_result(job.tensor)  # whoever takes it waits for the link's stream
        except Exception as error:
            job.gate.set_result(error)
        job = None  # the last tensor is not to live until the next transfer


class _Gpu:
    """The link's own stream and clock on a GPU.

    On the stream of the model the link would wait for all that is queued there, and no transfer would overlap it.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)  # of this thread
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._zero = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self._zero.record()
            self._zero.synchronize()
        self._zero_s = time.perf_counter()

    def when(self, event: torch.cuda.Event) -> float:
        """Wait until the GPU has come to the event; return when that was, on the clock of ``time.perf_counter``."""
        event.synchronize()
        return float(self._zero_s + self._zero.elapsed_time(event) / 1e3)


def _wake_on_time() -> None:
    """Let the sleeps of this thread end within some 10 µs instead of 50 more (Linux; elsewhere nothing is asked).

    Spinning for the rest would end them to the microsecond, and take a core and Python's lock from the backward.
    """
    if sys.platform == "linux":
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1000, 0, 0, 0)
