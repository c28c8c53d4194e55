"""What the labs on GPUs share: whether they can run here, a timer on the GPU's clock, and kernels by name.

All of it works on the CPU as well, so that a lab can be rehearsed without a GPU; its times are then those of the CPU.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..runtime.clock import now, seconds, stamp
from ..runtime.gpus import cards
from ..runtime.needs import NotShownHere

Run = Callable[[], object]
MOST_RANKS = 8  # of a launch: those of one machine
# Steps of each new DDP before anything is timed. It takes statistics of iterations 1 to 10, and its next forward waits
# on the host for the events of each; the second forward waits for the order of the rebuilt buckets, too. So host and
# GPU run in lockstep until then (`Reducer::should_collect_runtime_stats`, `Logger::set_runtime_stats_and_log`,
# `Reducer::sync_bucket_indices` in torch/csrc/distributed/c10d; every hundredth iteration is sampled again).
DDP_WARM_UP = 11


def needs_gpus(count: int = 1) -> int:
    """Go on only on a machine with ``count`` GPUs; return how many there are, at most eight.

    Raises:
        NotShownHere: there are fewer; a recorder keeps that, and runs the lab again only on another machine.
    """
    here = len(cards())
    if here < count:
        raise NotShownHere("needs a GPU" if count == 1 else f"needs {count} GPUs; this machine has {here}")
    return min(here, MOST_RANKS)


def worlds(gpus: int) -> list[int]:
    """World sizes of a table: one rank, and one on each GPU where there are several."""
    return [1] if gpus == 1 else [1, gpus]


def gpu_times_ms(cases: Mapping[str, Run], rounds: int = 15, warm_up: int = 3) -> dict[str, float]:
    """Return the median time of each case in ms, by events in the current stream.

    The cases take turns, so that what disturbs one disturbs all. Nothing waits in between: work of one round is
    queued while the GPU does that of the round before, as in a training loop.

    Args:
        cases: name -> what is timed.
        rounds: timed runs of each.
        warm_up: runs of each before, which are not timed.
    """
    for _ in range(warm_up):
        for run in cases.values():
            run()
    now()
    stamps: dict[str, list[Any]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            before = stamp()
            run()
            stamps[name].append((before, stamp()))
    now()
    return {name: 1e3 * statistics.median(seconds(*pair) for pair in pairs) for name, pairs in stamps.items()}


def host_time_ms(run: Run, rounds: int = 9) -> float:
    """Return the median time in ms until a call returns, with an idle GPU before each."""
    times = []
    for _ in range(rounds):
        now()
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    now()
    return 1e3 * statistics.median(times)


def repeats(run: Run, milliseconds: float, most: int = 2000) -> int:
    """How often to call ``run`` so that the GPU is busy for about so long; at least once."""
    once_ms = gpu_times_ms({"": run}, rounds=5)[""]
    return max(1, min(most, round(milliseconds / max(once_ms, 1e-3))))


def kernels(run: Run) -> Counter[str]:
    """Count what one call puts on the GPU, by name, copies and fills included; on a CPU, its operators."""
    events = _profiled(run)
    # Ranges that the program has named appear on the GPU's side, too, and are no kernels.
    there = [e.name for e in events if _on_gpu(e) and not getattr(e, "is_user_annotation", False)]
    return Counter(there or [e.name for e in events])


def operators(run: Run) -> Counter[str]:
    """Count what one call runs on the host, by name: operators, and the ranges that DDP's reducer names."""
    return Counter(e.name for e in _profiled(run) if not _on_gpu(e))


def _on_gpu(event: Any) -> bool:
    return str(event.device_type) == "DeviceType.CUDA"


def _profiled(run: Run) -> list[Any]:
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    run()
    now()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * gpu)]) as profiler:
        run()
        now()
    return list(profiler.events() or ())
