"""Lists the messages that a user of DDP can meet, with the versions whose sources hold them.

    (cd tests && python -m messages.collect SOURCES)

``SOURCES`` holds

- ``torch-<version>/``: the Python files of a wheel, an empty file ``done``, and ``<library>.so.txt``, which is what
  ``strings -n 6`` finds in its libraries;
- ``cpp-<name>/``: trees of torch's C++ at some commits;
- ``nccl/<version>/`` and ``gloo/``.

A text of torch's C++ counts as of a version if all its literal parts stand in that wheel's libraries.
The list is ``tests/kit/diagnose/messages.toml``; a test measures which part of it has an entry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from . import cpp, python
from .scope import FILES
from .write import write

C10D = "torch/csrc/distributed/c10d/"
NCCL = C10D + "ProcessGroupNCCL.cpp"
# Messages of releases whose C++ was not at hand, found in the strings of their libraries: file, kind, text.
SEEN = [
    (NCCL, "warning", "An unbatched P2P op (send/recv) was called on this ProcessGroup with size {}"),
    (
        NCCL,
        "error",
        "NCCL communicator has not been initialized before mem pool creation. You can pass `device_id` to "
        "init_process_group -- one way of eager initialization -- to work around this issue",
    ),
    (
        NCCL,
        "warning",
        "Guessing device ID based on global rank. {}This can cause a hang if rank to GPU mapping is heterogeneous.",
    ),
    (
        NCCL,
        "warning",
        "TORCH_NCCL_AVOID_RECORD_STREAMS is the default now",
    ),
    (NCCL, "error", "Parent communicator missing in eager initialization mode."),
    (NCCL, "error", "Unsupported Float8 type for NCCL reduction"),
    (NCCL, "error", "opts not a ProcessGroupNCCL::Options."),
    (NCCL, "error", "opts not a ProcessGroupGloo::Options."),
    (NCCL, "error", "backend must be a NCCL process group"),
    (NCCL, "error", "Process Group shutdown on rank {}"),
    (NCCL, "error", "[Rank {}] monitoring thread detects no heartbeat and will finally kill the process!"),
    (
        NCCL,
        "error",
        "[Rank {}] NCCL monitor thread timeout. Basically, this could {}be due to CUDA or NCCL calls being "
        "unexpectedly "
        "blocking, {}especially when your program enters a deadlock state in watchdogor destructors.",
    ),
    (NCCL, "error", "[Rank {}] main process destroyed cuda before watchdog loop exited, terminating watchdog."),
    (
        NCCL,
        "error",
        "[{}] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d "
        "key-value store by key '{}'",
    ),
    (
        C10D + "ProcessGroupWrapper.cpp",
        "error",
        "Detected mismatch between collectives on ranks. Rank {} is running inconsistent collective: {}",
    ),
    (
        C10D + "ProcessGroupGloo.cpp",
        "warning",
        "Tried to pass options to ProcessGroupGloo::split that are not ProcessGroupGloo::Options."
        "Falling back to default options.",
    ),
    (
        C10D + "ProcessGroupGloo.cpp",
        "error",
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
    ),
    (
        C10D + "FlightRecorder.cpp",
        "warning",
        "DebugInfoWriter has already been registered, and since we need the writer to stay outside ProcessGroup",
    ),
    (C10D + "TCPStoreBackend.hpp", "error", "queues not implemented on legacy TCPStore backend"),
    (C10D + "reducer.cpp", "error", "received invalid bucket_size, was abort called?"),
    (
        "torch/csrc/autograd/input_buffer.cpp",
        "warning",
        "The AccumulateGrad node's stream does not match the stream of the node that produced the incoming gradient.",
    ),
]


_SYMBOL = re.compile(r"_Z|_N|St\d|void |static |\(?std::|at::|c10::|const |typename |\W{3}")


def gather(sources: Path) -> dict[str, dict[tuple[str, str, str], set[str]]]:
    """By project: (file, kind, text) → versions."""
    found: dict[str, dict[tuple[str, str, str], set[str]]] = {"torch": {}, "nccl": {}, "gloo": {}}
    wheels = {path.name[6:]: path for path in sorted(sources.glob("torch-*")) if (path / "done").exists()}
    for version, wheel in wheels.items():
        for path in _files(wheel, FILES["torch-python"]):
            for kind, text in python.messages(path):
                _add(found["torch"], (str(path.relative_to(wheel)), kind, text), version)
    templates: dict[str, tuple[str, str, str]] = {text: (file, kind, text) for file, kind, text in SEEN}
    for tree in sorted(sources.glob("cpp-*")):
        for path in _files(tree, FILES["torch-cpp"]):
            name = str(path.relative_to(tree)).replace("torch/lib/", "torch/csrc/distributed/")
            for kind, text in cpp.messages(path):
                templates.setdefault(text, (name, kind, text))
    for version, wheel in wheels.items():
        lines = {line for path in wheel.glob("*.so.txt") for line in path.read_text(errors="replace").split("\n")}
        strings = "\n".join(line for line in lines if " " in line and not _SYMBOL.match(line))
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
            _add(found["gloo"], (str(path.relative_to(sources / "gloo")), kind, text), "2025.5")
    return found


def _files(tree: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(tree.rglob("*.*")) if re.fullmatch(pattern, str(path.relative_to(tree)))]


def _add(found: dict[tuple[str, str, str], set[str]], key: tuple[str, str, str], version: str) -> None:
    if sum(c.isalpha() for c in key[2].replace("{}", "")) >= 12 and " " in key[2].strip():
        found.setdefault(key, set()).add(version)


if __name__ == "__main__":
    write(gather(Path(sys.argv[1])))
