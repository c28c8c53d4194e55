"""Lists the messages that a user of DDP can meet, with the versions whose sources hold them.

    python tests/messages/collect.py SOURCES

``SOURCES`` holds ``torch-<version>/`` (the Python files of a wheel, and ``<library>.so.txt``: what ``strings -n 6`` finds
in its libraries), ``cpp-<name>/`` (trees of torch's C++ at some commits), ``nccl/<version>/`` and ``gloo/``.
A text of torch's C++ counts as of a version if all its literal parts stand in that wheel's libraries.
The list is ``tests/kit/diagnose/messages.toml``; a test measures which part of it has an entry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cpp
import python

OUT = Path(__file__).parents[1] / "kit" / "diagnose" / "messages.toml"
C10D = "torch/(?:lib/c10d|csrc/distributed/c10d)/(?:control_plane/)?"
FILES = {
    "torch-cpp": C10D + r"(?:ProcessGroup(?:NCCL|Gloo|GlooCuda|GlooDetail|Wrapper)?|NCCLUtils|GlooDeviceFactory|TCPStore\w*"
    r"|socket|\w+SockUtils|Utils|FileStore|HashStore|PrefixStore|Store|reducer|comm|logger|default_comm_hooks|init|Backend"
    r"|Ops|Work|Types|error|exception|TraceUtils|FlightRecorder\w*|NanCheck|debug|GroupRegistry|sequence_num)"
    r"\.(?:cpp|hpp|cu|h)|torch/csrc/DataLoader\.cpp|torch/csrc/cuda/(?:Module|nccl|python_nccl|comm)\.cpp"
    r"|c10/cuda/CUDA(?:Functions|Exception|CachingAllocator|MiscFunctions|DeviceAssertionHost|Stream|AllocatorConfig)\.(?:cpp|h)"
    r"|aten/src/(?:ATen/MapAllocator|TH/THAllocator)\.cpp",
    "torch-python": r"torch/nn/parallel/distributed\.py|torch/nn/modules/_functions\.py|torch/utils/data/(?:dataloader|"
    r"distributed|sampler|dataset|_utils/\w+)\.py|torch/distributed/(?:distributed_c10d|rendezvous|run|launch|constants|"
    r"utils|device_mesh|logging_handlers|c10d_logger|launcher/\w+|elastic/[\w/]+|algorithms/(?:join|ddp_comm_hooks/\w+))\.py"
    r"|torch/cuda/(?:__init__|_utils|memory|nccl)\.py|torch/multiprocessing/\w+\.py|torch/(?:cuda/)?amp/\w+\.py",
    "nccl": r"src/(?!.*(?:device|collectives/device|bindings|examples)/).*\.(?:cc|cu|h)",
    "gloo": r"gloo/(?:context|rendezvous/\w+|transport/(?:tcp|uv|ibverbs|shared|unbound_buffer|\w+)[\w/]*|common/\w+|\w+)\.(?:cc|h)",
}


def gather(sources: Path) -> dict[str, dict[tuple[str, str, str], set[str]]]:
    """By project: (file, kind, text) → versions."""
    found: dict[str, dict[tuple[str, str, str], set[str]]] = {"torch": {}, "nccl": {}, "gloo": {}}
    wheels = {path.name[6:]: path for path in sorted(sources.glob("torch-*")) if (path / "done").exists()}
    for version, wheel in wheels.items():
        for path in _files(wheel, FILES["torch-python"]):
            for kind, text in python.messages(path):
                _add(found["torch"], (str(path.relative_to(wheel)), kind, text), version)
    templates = {}
    for tree in sorted(sources.glob("cpp-*")):
        for path in _files(tree, FILES["torch-cpp"]):
            name = str(path.relative_to(tree)).replace("torch/lib/", "torch/csrc/distributed/")
            for kind, text in cpp.messages(path):
                templates.setdefault(text, (name, kind, text))
    for version, wheel in wheels.items():
        lines = {line for path in wheel.glob("*.so.txt") for line in path.read_text(errors="replace").split("\n")}
        strings = "\n".join(line for line in lines if " " in line and not line.startswith("_Z"))
        strings += "\n".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in wheel.rglob("*.[h]*p*"))
        for text, key in templates.items():
            parts = [part.strip() for part in re.split(r"\{\}|\n", text)]
            if all(part in strings for part in parts if " " in part and len(part) >= 10):
                _add(found["torch"], key, version)
    for tree in sorted((sources / "nccl").iterdir()):
        for path in _files(tree, FILES["nccl"]):
            for kind, text in cpp.messages(path, nccl=True):
                _add(found["nccl"], (str(path.relative_to(tree)), kind, text), tree.name)
    for path in _files(sources / "gloo", FILES["gloo"]):
        for kind, text in cpp.messages(path):
            _add(found["gloo"], (str(path.relative_to(sources / "gloo")), kind, text), "2025-05")
    return found


def _files(tree: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(tree.rglob("*.*")) if re.fullmatch(pattern, str(path.relative_to(tree)))]


def _add(found: dict[tuple[str, str, str], set[str]], key: tuple[str, str, str], version: str) -> None:
    if sum(c.isalpha() for c in key[2].replace("{}", "")) >= 12 and " " in key[2].strip():
        same = key
        found.setdefault(same, set()).add(version)
