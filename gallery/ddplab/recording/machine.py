"""What an edition is recorded on: the machine, told without importing torch, and in bounded time."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_BOUND_S = 20.0  # for one call of nvidia-smi; a driver without persistence mode needs seconds
_FIELDS = {  # of nvidia-smi, all of them older than the oldest driver that torch takes -> name in the manifest
    "memory.total": "gpu memory in MiB",
    "power.limit": "power limit in W",
    "clocks.max.sm": "highest SM clock in MHz",
    "clocks.max.memory": "highest memory clock in MHz",
    "clocks.sm": "SM clock at the start in MHz",
}
_SWITCHES = re.compile(r"NCCL_\w+|NVIDIA_TF32_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX\w+)")


def machine() -> dict[str, Any]:
    """What the evidence of this machine depends on: processor, GPUs and driver, and the versions that pip installed.

    The GPUs are those that CUDA_VISIBLE_DEVICES leaves. Launches add the backend.
    """
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.open() if line.startswith("model name")), cpu)
    cards = _cards()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpus": [card["name"] for card in cards],
        "driver": cards[0]["driver"] if cards else _first(Path("/proc/driver/nvidia/version"), _DRIVER),
        "python": platform.python_version(),
        "system": platform.system(),
        "torch": _torch("__version__"),
        "cuda": _torch("cuda"),
        "nccl": _nccl(),
    }


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether what was recorded on one machine is good for the other, too: slices may come from equal machines."""
    return not differences(one, other)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The facts that matter and differ: GPUs, driver, torch's build, NCCL; without GPUs also the processor."""
    facts = ["gpus", "driver", "torch", "cuda", "nccl", "system"]
    if not one.get("gpus"):
        facts += ["cpu", "cores"]
    return [fact for fact in facts if one.get(fact) != other.get(fact)]


def hardware() -> dict[str, Any]:
    """More about the GPUs, for the reader of an edition: a list has an entry per GPU. Nothing is compared with it.

    Empty without GPUs; what ``nvidia-smi`` does not tell is left out.
    """
    cards = _cards()
    kept: dict[str, Any] = {
        name: [card[name] for card in cards] for name in _FIELDS.values() if any(card.get(name) for card in cards)
    }
    if len(cards) > 1 and (topology := _nvidia_smi("topo", "-m")):
        plain = re.sub(r"\x1b\[[\d;]*m", "", topology).partition("Legend:")[0]
        kept["topology"] = [line.rstrip() for line in plain.expandtabs().splitlines() if line.strip()]
    if cards:
        switches = {name: value for name, value in sorted(os.environ.items()) if _SWITCHES.fullmatch(name)}
        kept["switches"] = {name: value for name, value in switches.items() if "/" not in value}  # no paths
    return kept


_DRIVER = r"Kernel Module\D*([\d.]+)"


def _cards() -> list[dict[str, Any]]:
    """The GPUs that are to be used: as nvidia-smi tells them, which knows what a container was given, else as /proc."""
    told = _nvidia_smi(f"--query-gpu=name,uuid,driver_version,{','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    cards: list[dict[str, Any]] = []
    for line in told.splitlines():
        name, uuid, driver, *rest = (part.strip() for part in line.split(","))
        numbers = dict(zip(_FIELDS.values(), map(_number, rest), strict=False))
        cards.append({"name": name, "uuid": uuid, "driver": driver, **numbers})
    if not cards:
        driver_ = _first(Path("/proc/driver/nvidia/version"), _DRIVER)
        for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            uuid_ = _first(information, r"GPU UUID:\s*(\S+)") or ""
            cards.append({"name": _first(information, r"Model:\s*(.+)"), "uuid": uuid_, "driver": driver_})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return cards
    chosen = [one.strip() for one in visible.split(",") if one.strip()]
    by_number = {str(number): card for number, card in enumerate(cards)}
    found = (
        by_number.get(one) or next((card for card in cards if card["uuid"].startswith(one)), None) for one in chosen
    )
    return [card for card in found if card]


@functools.cache
def _nvidia_smi(*arguments: str) -> str:
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


def _torch(name: str) -> str | None:
    """A fact of the installed torch, with its build: ``pip`` would say 2.13.0 of 2.13.0+cu130."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return _first(Path(spec.origin).with_name("version.py"), rf"(?m)^{name}\b[^=]*= *['\"]([^'\"]+)")


def _nccl() -> str | None:
    """The version of NCCL that came with torch's wheel, if one did."""
    names = (found.metadata["Name"] or "" for found in metadata.distributions())
    name = next((name for name in names if name.startswith("nvidia-nccl")), None)
    return metadata.version(name) if name else None
