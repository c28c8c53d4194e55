"""What a lab or a claim needs: where that is missing, it is "not shown here", which is not a failure."""

from __future__ import annotations

import re
from importlib import metadata

# For launch(env=…) and torchrun(env=…): what is shown needs no GPU, or would be another thing on one.
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def a_gpu_each(ranks: int) -> dict[str, str]:
    """For ``env`` of a program that gives each rank a GPU of its own: with fewer GPUs than ``ranks`` it gets none."""
    import torch

    return {} if torch.cuda.device_count() >= ranks else ON_CPU


class NotShownHere(Exception):  # noqa: N818  not an error: the edition says so and goes on
    """This machine or this torch lacks what a lab or a claim needs; the message names it."""


def needs(*, torch: str) -> None:
    """Go on only where the installed torch is new enough.

    Call it first in a lab, or in the test of a claim.

    Args:
        torch: the oldest torch that will do, such as ``"2.12"``.

    Raises:
        NotShownHere: torch is older, or not installed.
    """
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise NotShownHere(f"needs torch {torch} or newer; no torch is installed") from None
    if _release(installed) < _release(torch):
        raise NotShownHere(f"needs torch {torch} or newer; this is {installed}")


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version before any suffix: ``2.13.0+cpu`` is (2, 13, 0)."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))  # type: ignore[index]
