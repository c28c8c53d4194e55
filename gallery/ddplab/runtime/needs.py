"""What a lab or a claim needs: where that is missing, it is "not shown here", which is not a failure."""

from __future__ import annotations

import re
from importlib import metadata

from . import shared_gpu
from .gpus import cards

# For launch(env=…) and torchrun(env=…): what is shown needs no GPU, or would be another thing on one.
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def a_gpu_each(ranks: int) -> dict[str, str]:
    """For ``env`` of a program that gives each rank a GPU of its own: with fewer GPUs than ``ranks`` it gets none."""
    import torch

    return {} if torch.cuda.device_count() >= ranks else ON_CPU


class NotShownHere(Exception):  # noqa: N818  not an error: the edition says so and goes on
    """This machine or this torch lacks what a lab or a claim needs; the message names it."""


def needs_nccl_ranks(count: int = 2) -> int:
    """Go on only where NCCL can have ``count`` ranks; return how many to launch: one per GPU, or ``count`` that share.

    It names no clock: what measures time must not share a GPU, and is recorded without (see ``keys.names_a_clock``).

    Raises:
        NotShownHere: there are fewer GPUs, and sharing one is not asked for.
    """
    here = len(cards())
    if here >= count:
        return min(here, 8)
    if here and shared_gpu.is_asked():
        return count
    raise NotShownHere(f"needs {count} NCCL ranks: {count} GPUs, or one and {shared_gpu.ASKED}=1")


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
