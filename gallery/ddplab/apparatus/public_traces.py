"""Profiler traces of real GPU jobs, from a public repository, reduced to what the book reads from them.

``gallery/performance/traces/`` keeps steps, NCCL's kernels with their arguments and launches, and when and on which
stream anything else ran; names of other kernels, the host's calls and stacks are left out. ``source`` in each file
says where the whole trace is. They stay Chrome traces: a trace viewer and ``ddplab trace`` open them.
Those of two of 128 ranks are samples, as the source calls them: all-reduces that the host asked for have no kernel.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from ..trace import Trace, read_trace

FOLDER = Path(__file__).parents[2] / "performance" / "traces"
JOBS = {  # traces in the folder, in words
    "a100-pair": "two A100, ResNet-50",
    "a100-of-8": "rank 3 of 8 A100",
    "v100-pair": "two V100",
    "of-128-rank-0": "rank 0 of 128",
    "of-128-rank-1": "rank 1 of 128",
}
SAMPLED = "of-128-rank-0", "of-128-rank-1"  # nothing that needs every kernel can be read from them
_KEPT_ARGUMENTS = (
    "stream",
    "correlation",
    "Collective name",
    "In msg nelems",
    "Group size",
    "dtype",
    "Process Group Name",
    "grid",
)
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def public_trace(name: str) -> Trace:
    """Return the trace of that name in the folder."""
    return read_trace(FOLDER / f"{name}.json.gz")


def reduce(path: Path, name: str, origin: dict[str, str], last_step: int | None = None) -> None:
    """Write the reduced form of a whole trace; ``last_step`` leaves out what is after that many steps."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        whole = json.load(file)
    events = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
    steps = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])[:last_step]
    until = steps[-1]["ts"] + steps[-1]["dur"]
    nccl = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    launches = {e["args"]["correlation"] for e in nccl}
    kept = [_short(e, e["name"]) for e in (*steps, *nccl) if e["ts"] < until]
    kept += [_short(e, "computes") for e in events if e.get("cat") in _ON_GPU and e not in nccl and e["ts"] < until]
    kept += [
        _short(e, "cudaLaunchKernel")
        for e in events
        if e.get("cat") == "cuda_runtime" and e["args"].get("correlation") in launches and e["ts"] < until
    ]
    head = {"source": origin, "distributedInfo": whole["distributedInfo"]}
    head["deviceProperties"] = [{"name": device["name"]} for device in whole.get("deviceProperties", [])[:1]]
    text = json.dumps({**head, "traceEvents": kept}, separators=(",", ":"))
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _short(event: dict[str, Any], name: str) -> dict[str, Any]:
    arguments = {key: event["args"][key] for key in _KEPT_ARGUMENTS if key in event.get("args", {})}
    if name == "computes":
        arguments = {"stream": arguments.get("stream")}
    kept = {key: event[key] for key in ("ph", "cat", "ts", "dur")}
    return {**kept, "name": name, "args": arguments}
