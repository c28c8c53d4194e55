"""The GPUs of this machine, told without importing torch or touching CUDA, and in bounded time."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

_BOUND_S = 20.0  # for one call of nvidia-smi; a driver without persistence mode needs seconds
_PROC = Path("/proc/driver/nvidia")
NUMBERS = {  # fields of nvidia-smi, all of them older than the oldest driver that torch takes -> what we call them
    "memory.total": "gpu memory in MiB",
    "power.limit": "power limit in W",
    "clocks.max.sm": "highest SM clock in MHz",
    "clocks.max.memory": "highest memory clock in MHz",
    "clocks.sm": "SM clock at the start in MHz",
}


def cards() -> list[dict[str, Any]]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: ``name``, ``uuid``, ``driver``, and what nvidia-smi measures.

    As nvidia-smi tells them, which knows what a container was given, else as /proc does, which has no numbers.
    """
    told = nvidia_smi(f"--query-gpu=name,uuid,driver_version,{','.join(NUMBERS)}", "--format=csv,noheader,nounits")
    found: list[dict[str, Any]] = []
    for line in told.splitlines():
        name, uuid, version, *rest = (part.strip() for part in line.split(","))
        found.append(
            {"name": name, "uuid": uuid, "driver": version}
            | dict(zip(NUMBERS.values(), map(_number, rest), strict=False))
        )
    if not found:
        for information in sorted(_PROC.glob("gpus/*/information")):
            name, uuid = _first(information, r"Model:\s*(.+)") or "", _first(information, r"GPU UUID:\s*(\S+)") or ""
            found.append({"name": name, "uuid": uuid, "driver": driver()})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    by_number = {str(number): card for number, card in enumerate(found)}
    chosen = (
        by_number.get(one) or next((card for card in found if card["uuid"].startswith(one)), None)
        for one in map(str.strip, visible.split(","))
        if one
    )
    return [card for card in chosen if card]


def driver() -> str | None:
    """The version of the kernel's driver, if there is one."""
    return _first(_PROC / "version", r"Kernel Module\D*([\d.]+)")


def loaded_nccl() -> tuple[int, int, int] | None:
    """The version of the NCCL that this process has loaded: by ``import torch``, or before it by ``LD_PRELOAD``.

    ``torch.cuda.nccl.version()`` is that of the NCCL that torch was compiled with.
    """
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # none is loaded, or not on this system
        return None
    return number.value // 10000, number.value // 100 % 100, number.value % 100


@functools.cache
def nvidia_smi(*arguments: str) -> str:
    """What it prints; nothing where there is none, it fails, or takes too long."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=_BOUND_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _number(text: str) -> float | None:
    """A number, or None for ``[N/A]`` and its like."""
    try:
        return float(text)
    except ValueError:
        return None


def _first(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text(errors="replace")) if path.exists() else None
    return found[1].strip() if found else None
