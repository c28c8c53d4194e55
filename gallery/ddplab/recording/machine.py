"""What an edition is recorded on: the machine, told without importing torch, and in bounded time."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..runtime.gpus import NUMBERS, cards, driver, loaded_nccl, nvidia_smi

_PROCESSOR = ("cpu", "cores")
_SWITCHES = re.compile(r"NCCL_\w+|NVIDIA_TF32_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX\w+)")


def machine() -> dict[str, Any]:
    """What the evidence of this machine depends on: processor, GPUs and driver, and the versions that pip installed.

    The GPUs are those that CUDA_VISIBLE_DEVICES leaves. Launches add the backend.
    """
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.open() if line.startswith("model name")), cpu)
    there = cards()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpus": [card["name"] for card in there],
        "driver": there[0]["driver"] if there else driver(),
        "python": platform.python_version(),
        "system": platform.system(),
        "torch": _torch("__version__"),
        "cuda": _torch("cuda"),
        "nccl": _nccl(),
    }


def is_good_for(there: dict[str, Any], here: dict[str, Any], timed: Callable[[], bool]) -> bool:
    """Whether what was recorded on one machine need not be recorded on the other: only a time is of one processor.

    Args:
        there: the machine that recorded it.
        here: the other.
        timed: says whether it measures time; asked only where no more than the processor differs.
    """
    differ = set(differences(there, here))
    return not differ or (differ <= {*_PROCESSOR} and not timed())


def grouped(records: Mapping[str, dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """The machines of these records, that of most of them first, each with the names of its records."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for name, kept in records.items():
        known = next((names for machine, names in found if not differences(machine, kept["machine"])), None)
        if known is None:
            found.append((kept["machine"], [name]))
        else:
            known.append(name)
    return sorted(found, key=lambda group: -len(group[1]))


def processor(machine: dict[str, Any]) -> str:
    """``AMD EPYC, 2 cores``."""
    return f"{machine['cpu']}, {machine['cores']} cores"


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The facts that matter and differ: GPUs, driver, torch's build, NCCL; without GPUs also the processor.

    The driver's last number, its patch, differs between machines of one kind, and does not matter.
    """
    facts = ["gpus", "driver", "torch", "cuda", "nccl", "system"]
    if not one.get("gpus"):
        facts += _PROCESSOR
    drivers = [{"driver": ".".join((there.get("driver") or "").split(".")[:2])} for there in (one, other)]
    one, other = one | drivers[0], other | drivers[1]
    return [fact for fact in facts if one.get(fact) != other.get(fact)]


def hardware() -> dict[str, Any]:
    """More about the GPUs, for the reader of an edition: a list has an entry per GPU. Nothing is compared with it.

    Empty without GPUs; what ``nvidia-smi`` does not tell is left out.
    """
    there = cards()
    kept: dict[str, Any] = {
        name: [card[name] for card in there] for name in NUMBERS.values() if any(card.get(name) for card in there)
    }
    if len(there) > 1 and (topology := nvidia_smi("topo", "-m")):
        plain = re.sub(r"\x1b\[[\d;]*m", "", topology).partition("Legend:")[0]
        kept["topology"] = [line.rstrip() for line in plain.expandtabs().splitlines() if line.strip()]
    if there:
        switches = {name: value for name, value in sorted(os.environ.items()) if _SWITCHES.fullmatch(name)}
        kept["switches"] = {name: value for name, value in switches.items() if "/" not in value}  # no paths
    return kept


def _torch(name: str) -> str | None:
    """A fact of the installed torch, with its build: ``pip`` would say 2.13.0 of 2.13.0+cu130."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^{name}\b[^=]*= *['\"]([^'\"]+)", text)
    return found[1] if found else None


def _nccl() -> str | None:
    """The version of NCCL that torch will use, if it comes by LD_PRELOAD or in a wheel; launches tell any other.

    Whether this process has loaded torch by now makes no difference: all processes of a recorder must say the same.
    """
    if "nccl" in os.environ.get("LD_PRELOAD", "") and (loaded := loaded_nccl()):
        return ".".join(map(str, loaded))
    names = (found.metadata["Name"] or "" for found in metadata.distributions())
    name = next((name for name in names if name.startswith("nvidia-nccl")), None)
    return metadata.version(name) if name else None
