"""What tests of claims that start programs share: an environment of no other launcher, and an option of torchrun."""

import os

import torch

CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("OMP_", "SLURM_", "TORCHELASTIC_"))}


def shutdown_timeout(seconds: int) -> list[str]:
    """The option of torchrun, where there is one: torchrun of 2.11 does not know it."""
    return [f"--shutdown-timeout={seconds}"] * (torch.__version__ >= (2, 13))
