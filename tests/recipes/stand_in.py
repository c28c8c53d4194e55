"""A small training program with the manners of gallery/recipes/train.py, in which every rank speaks.

On USR1 it saves and leaves with 75; started again it resumes; at the end each rank says a hash of its weights.
"""

import argparse
import hashlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group, see hello_ddp.py
from torch.nn.parallel import DistributedDataParallel

from ddplab.runtime.group import leave_group

SAVED = 75


def say(text: str) -> None:
    sys.stdout.write(f"rank {os.environ['RANK']}: {text}\n")  # one piece: ranks write into the same file
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--meet-s", type=float, default=900, help="how long ranks wait for each other")
    parser.add_argument("--timeout-s", type=float, help="of each collective after that, if it differs")
    parser.add_argument("--wait-at", type=int, help="wait at this step until the signal comes")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()

    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.meet_s))
    group = dist.new_group(timeout=timedelta(seconds=args.timeout_s)) if args.timeout_s else None
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = code = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        first = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        say(f"resumes at step {first}")
    for step in range(first, args.steps):
        say(f"pid {os.getpid()}, step {step}")
        while step == args.wait_at and not asked and not first:
            time.sleep(0.05)
        began = time.monotonic()
        try:
            stop = torch.tensor(len(asked))
            dist.all_reduce(stop, group=group)  # all stop at the same step: the signal comes to each in its own time
            if stop:
                if dist.get_rank() == 0:
                    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, args.checkpoint)
                say(f"stops at step {step}")
                code = SAVED
                break
            torch.manual_seed(1000 * step + dist.get_rank())
            model(torch.randn(4, 8)).square().mean().backward()
        except RuntimeError as error:
            say(f"fails after {time.monotonic() - began:.1f} s in step {step}: {str(error).splitlines()[0]}")
            raise
        optimizer.step()
        optimizer.zero_grad()
    else:
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        say(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]} of {dist.get_world_size()} ranks")
    leave_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
