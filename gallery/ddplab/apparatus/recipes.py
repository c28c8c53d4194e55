"""Run the programs of ``gallery/recipes`` the way a reader will: under plain ``torchrun``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "recipes"


def torchrun(
    program: str, nproc: int, *args: str, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> str:
    """Run ``torchrun --standalone --nproc-per-node NPROC PROGRAM ARGS…`` and return what it printed.

    Args:
        program: file name in ``gallery/recipes``.
        nproc: number of ranks on this machine.
        args: arguments of the program.
        timeout_s: seconds after which torchrun and its ranks are killed.
        env: more environment variables for the program.

    Raises:
        FileNotFoundError: there is no such program.
        RuntimeError: it failed or outlived the time bound; the message ends with what it printed.
    """
    path = FOLDER / program
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such recipe")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}", str(path)]
    with subprocess.Popen(
        [*command, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},  # what torchrun sets by itself, with a warning
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise RuntimeError(f"{program} still ran after {timeout_s:g} s under torchrun:\n{printed}") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise RuntimeError(f"{program} failed under torchrun with exit code {process.returncode}:\n{printed}")
    return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("[Gloo]"))
