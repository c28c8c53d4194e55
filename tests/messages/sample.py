"""A message as a line of a log, with something plausible for what only a run knows."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:onnect to|from|address|recv from|socket on|host|connect) $")
_REASON = re.compile(r"(?:failed|error|due to|returned|because|[Rr]eason|exception)(?: with error| with)? ?:? $")
_SIGNAL = re.compile(r"(?:signal|via) $")
_VALUES = {
    "got signal: ": "15",
    "Received ": "15",
    "exit code ": "1",
    "exitcode: ": "-9",
    "terminated with signal ": "SIGTERM",
    "killed by signal: ": "Killed",
    "code: ": "-98",
    "name: ": "EADDRINUSE",
    "message: ": "address already in use",
    "with error ": "12",
}


def sample(file: str, kind: str, text: str) -> str:
    """The line that a rank writes; ``kind`` is an exception's name or what :mod:`cpp` and :mod:`python` call it."""
    filled = fill(text)
    name = file.rsplit("/", 1)[-1]
    if file.startswith("src/"):
        return f"node1:931:1103 [0] {name}:77 NCCL WARN {filled}" if kind == "warning" else f"NCCL error: {filled}"
    if file.startswith("gloo/"):
        place = f"/pytorch/third_party/gloo/{file}:77"
        if kind == "enforce":
            return f"[rank0]: RuntimeError: [enforce fail at {place}] condition. {filled}"
        return f"[rank0]: RuntimeError: [{place}] {filled}"
    if kind == "assert":
        place = f'INTERNAL ASSERT FAILED at "../{file}":77, please report a bug to PyTorch.'
        return f"[rank0]: RuntimeError: condition {place} {filled}"
    if kind in ("log", "warning") and file.endswith(".py"):
        warned = kind == "warning"
        return (
            f"/lib/{file}:77: UserWarning: {filled}" if warned else f"W1121 20:25:10.615000 28203 {file}:77] {filled}"
        )
    if kind == "warning":
        return f"[W1121 20:26:37.764960473 {name}:77] {filled}"
    return f"[rank0]: {kind if file.endswith('.py') else 'RuntimeError'}: {filled}"


def fill(text: str) -> str:
    """The text with its holes filled."""
    out = ""
    for part in re.split(r"(\{\})", text):
        if part != "{}":
            out += part
            continue
        known = next((value for end, value in _VALUES.items() if out.endswith(end)), "")
        if known:
            out += known
        elif _SIGNAL.search(out):
            out += "SIGTERM"
        elif _REASON.search(out):
            out += "Cannot assign requested address"
        elif _ADDRESS.search(out):
            out += "10.0.0.7<40113>"
        else:
            out += "7"
    return out
