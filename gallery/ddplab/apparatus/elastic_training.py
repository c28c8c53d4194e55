"""A training program that may be killed and restarted: what the ranks of the labs on elastic agents run.

``python elastic_training.py FOLDER STEPS SAVE_EVERY FATAL_STEP PAUSE_S``: it saves to FOLDER after every SAVE_EVERY
steps and resumes from the newest checkpoint. Before its first restart, rank 1 kills itself after FATAL_STEP (0: never).
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddplab.checkpoint import CheckpointManager


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer, the same on every rank."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    rank: int = 0,
    world: int = 1,
) -> Tensor:
    """Train on this rank's share of the step's eight samples; return the share's mean loss."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))[rank::world]
    loss: Tensor = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def main(folder: str, steps: int, save_every: int, fatal_step: int, pause_s: float) -> None:
    """Train, and print one line for each event; it ends the process."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts, agent = os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid()

    def say(text: str) -> None:
        print(f"rank {rank} of {world} │ {text}\n", end="", flush=True)

    # The port changes with each restart. On a busy machine another program may have taken it
    # by now, so here it only names the file through which the ranks meet.
    meeting = f"file://{folder}/meeting-{os.environ['MASTER_PORT']}"
    wait = datetime.timedelta(seconds=60)
    options: dict[str, Any] = {"rank": rank, "world_size": world, "timeout": wait}
    dist.init_process_group("gloo", init_method=meeting, **options)
    plain, optimizer = build()
    model = DistributedDataParallel(plain)
    manager, state = CheckpointManager(folder), {"model": model, "optimizer": optimizer}
    found = manager.load(state)
    first = found["step"] + 1 if found else 1
    say(f"restart count {restarts}, pid {os.getpid()}, begins with step {first}")
    for step in range(first, steps + 1):
        loss = train_step(model, optimizer, step, rank, world) / world
        dist.all_reduce(loss)
        say(f"step {step}, loss {float(loss).hex()}")
        if step % save_every == 0:
            manager.save(state, step)
            say(f"saved step {step}")
        if (restarts, rank, step) == ("0", 1, fatal_step):
            os.kill(os.getpid(), 9)
        if agent and os.getppid() != agent:
            say("lost its agent, and trains on")
            agent = 0
        time.sleep(pause_s)
    dist.barrier()
    os._exit(0)  # a normal exit of Python may abort or hang in gloo, see hello_ddp.py


if __name__ == "__main__":
    steps, save_every, fatal_step = map(int, sys.argv[2:5])
    main(sys.argv[1], steps, save_every, fatal_step, float(sys.argv[5]))
