"""Run gallery/recipes/train.py on ranks of this machine, and read what it says and leaves."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ddplab import LaunchError, launch
from ddplab.apparatus.machines import Fork, Program
from ddplab.apparatus.recipes import FOLDER
from ddplab.runtime.environment import torchrun_variables
from ddplab.runtime.needs import ON_CPU  # ranks would share a GPU, and one rank in bf16 is not two in fp32
from tools import PATIENCE_S, free_port

TRAIN = FOLDER / "train.py"
TINY = ["--width", 16, "--layers", 1, "--context", 16, "--batch", 8, "--log-every", 1, "--save-every", 999]


@dataclass
class Rank:
    """How one process ended."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        """The gloo of torch 2.8 says on standard output that it is connected."""
        self.out = "".join(line for line in self.out.splitlines(keepends=True) if not line.startswith("[Gloo] Rank "))


def start(ranks: int, *args: object, program: Path = TRAIN, slurm: bool = False, cwd: Path | None = None) -> list[Rank]:
    """Run the program as a launcher would, without one: so each rank's exit code and words are seen."""
    port = free_port()
    command = ["python", str(program), *map(str, args)]
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for r in range(ranks):
            env = torchrun_variables(r, ranks, port)
            if slurm:
                env = {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r), "SLURM_STEP_NUM_TASKS": str(ranks)}
                env |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid())}
            fork = partial(Fork, cwd=cwd, stderr=Path(folder) / str(r))
            started.append(Program(command, {**ON_CPU, **env}, fork))
        codes = [process.wait(PATIENCE_S) for process in started]
        return [Rank(codes[r], started[r].output, (Path(folder) / str(r)).read_text()) for r in range(ranks)]


def start_python(ranks: int, *args: object, program: Path = TRAIN, path: Path) -> list[Rank]:
    """The same in new Pythons, which find modules in this folder first."""
    port, more = free_port(), {**ON_CPU, "PYTHONPATH": f"{path}:{FOLDER.parent}"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), *map(str, args)],
            env={**os.environ, **torchrun_variables(r, ranks, port), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for r in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_S) for process in processes]
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

        sys.argv = ["train.py", *args]
        code, out, err = 0, io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                train.main.__wrapped__()  # without torchrun's @record, which wants a true stderr
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    options = {"init": False, "quiet": True, "timeout_s": PATIENCE_S, "env": ON_CPU}
    ended = launch(worker, ranks, str(FOLDER), [str(arg) for arg in args], **options)
    return [Rank(*end) for end in ended]


def live(ranks: int, log: Path, kill: str, when: float, *args: object) -> bool:
    """The same until it is killed; what rank 0 says is added to the log. Returns whether it came to its end.

    ``kill``: "all", every rank after ``when`` seconds, wherever it is; "file", rank 0 before the whole number ``when``
    of what it does with the files of checkpoints (open, rename, remove), and the others when they have missed it.
    """

    def worker(folder, log, kill, when, args):
        import os  # the worker travels by value
        import signal
        import sys

        sys.path.insert(0, folder)
        import train

        def before_a_file(event, args):
            nonlocal when
            if event in ("open", "os.rename", "os.remove") and "step-" in str(args[0]):
                when -= 1
                if when == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        if kill == "all":
            signal.setitimer(signal.ITIMER_REAL, when)  # no handler: the kernel ends the process, as SIGKILL does
        elif os.environ["RANK"] == "0":
            sys.addaudithook(before_a_file)
        sys.argv = ["train.py", *args]
        with open(log, "a") as file, contextlib.redirect_stdout(file):
            try:
                train.main.__wrapped__()
            except SystemExit as end:
                return end.code

    options = {"init": False, "quiet": True, "timeout_s": PATIENCE_S, "env": ON_CPU}
    try:
        codes = launch(worker, ranks, str(FOLDER), str(log), kill, when, [str(arg) for arg in args], **options)
    except LaunchError as death:
        if "was killed by SIG" not in str(death):
            raise
        return False
    assert codes == [0] * ranks
    return True


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


def files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def checkpoint(folder: Path) -> dict:
    """The newest one as plain torch reads it: state of each part, flags, step, generators of each rank."""
    content = torch.load(files(folder)[-1], weights_only=True)
    return {**content.pop("objects"), **content.pop("values"), **content}


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


def same_bits(one: Path, other: Path) -> None:
    """The newest checkpoints of two folders hold the same weights, moments of Adam, and generators."""
    once, twice = (tensors(checkpoint(folder)) for folder in (one, other))
    assert len(once) > 40
    assert once.keys() == twice.keys()
    for name, value in once.items():
        assert value.equal(twice[name]), name


def curve(said: str) -> list[str]:
    """What a run says of its losses, without its speed."""
    return re.findall(r"step +\d+  (?:loss \S+|validation .+)", said)
