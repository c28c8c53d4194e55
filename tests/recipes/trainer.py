"""Run gallery/recipes/train.py on ranks of this machine, and read what it says and leaves."""

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from ddplab import launch
from ddplab.recipes import FOLDER

TRAIN = FOLDER / "train.py"
TINY = ["--width", 16, "--layers", 1, "--context", 16, "--batch", 8, "--log-every", 1, "--save-every", 999]


@dataclass
class Rank:
    """How one process ended."""

    code: int
    out: str
    err: str


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def start(ranks: int, *args: object, program: Path = TRAIN, slurm: bool = False, **options) -> list[Rank]:
    """Run the program as a launcher would, without one: so each rank's exit code and words are seen."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    words = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "WORLD_SIZE"}
    if slurm:
        meet = {"OMP_NUM_THREADS": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid())}
        words = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
    env = {**os.environ, **meet, **options.pop("env", {})}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), *map(str, args)],
            env={**env, words["RANK"]: str(r), words["LOCAL_RANK"]: str(r), words["WORLD_SIZE"]: str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        for r in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return [Rank(p.returncode, *texts) for p, texts in zip(processes, said, strict=True)]


def call(ranks: int, *args: object) -> list[Rank]:
    """The same by way of ``launch``, whose processes have imported torch already."""

    def worker(folder, args):
        import sys  # the worker travels by value

        sys.path.insert(0, folder)
        import train

        leave = train.leave

        def keep_the_group(code):
            # DDP may drop it last, and hang: it waits for gloo's thread, which waits for Python's lock.
            train.last_work.append(train.dist.group.WORLD)
            leave(code)

        train.leave = keep_the_group
        sys.argv = ["train.py", *args]
        code, out, err = 0, io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                train.main.__wrapped__()  # without torchrun's @record, which wants a true stderr
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    ended = launch(worker, ranks, str(FOLDER), [str(arg) for arg in args], init=False, quiet=True, timeout_s=90)
    return [Rank(*end) for end in ended]


def train(ranks: int, *args: object, how=call, **options) -> str:
    """What rank 0 says in a run that completes, while the others are silent."""
    first, *others = how(ranks, *args, **options)
    assert first.code == 0, first.err
    assert all((other.code, other.out, other.err) == (0, "", "") for other in others), others
    assert first.err == ""
    return first.out


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"\d  loss (\S+)", said)]


def validation(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"validation loss (\S+)", said)]


def checkpoint(folder: Path) -> dict:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def tensors(state: object, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint: weights, moments of the optimizer, RNGs."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        return {}
    return {key: value for part, one in items for key, value in tensors(one, f"{name}/{part}").items()}
