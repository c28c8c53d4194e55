"""One rank of the lab on a shaped network: it times all-reduces or DDP steps when asked to.

``python shaped_steps.py FOLDER SETTINGS TASK…``: it does each task, "fit-…" or "steps-…", once FOLDER has a file of
that name; SETTINGS are JSON. Rank 0 prints "TASK took", and the seconds of each round and load.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddplab.apparatus.sleeping import SleepingLayers


def timed(run: Callable[[Any], None], load: Any) -> float:
    """Return the seconds that ``run(load)`` takes on the slower rank."""
    dist.barrier()
    began = time.perf_counter()
    run(load)
    took_s = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return took_s.item()


def all_reduces(tensors: Sequence[Tensor]) -> None:
    """Start one all-reduce for each tensor, as DDP does, and wait for all."""
    for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()


def step(ddp: nn.Module) -> None:
    """Run a forward and a backward."""
    ddp(torch.ones(1)).sum().backward()


def main(folder: Path, settings: dict[str, Any], tasks: Sequence[str]) -> None:
    """Do the tasks; it ends the process."""
    dist.init_process_group("gloo")
    loads: list[Any]
    for task in tasks:
        while not (folder / task).exists():
            time.sleep(0.01)
        fit = task.startswith("fit")
        if fit:
            count = range(settings["at_once"])
            loads = [[torch.ones(n // 4) for _ in count] for n in settings["sizes"]]
        else:
            loads = [
                DistributedDataParallel(SleepingLayers(*settings["layers"]), bucket_cap_mb=cap)
                for cap in settings["caps"]
            ]
        run: Callable[[Any], None] = all_reduces if fit else step
        times = range(settings["warm"] + settings["rounds"])
        rounds = [[timed(run, load) for load in loads] for _ in times]
        if dist.get_rank() == 0:
            print(f"{task} took {json.dumps(rounds[settings['warm'] :])}", flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
