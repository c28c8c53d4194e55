"""Make a save atomic: a solution"""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

DIGEST_BYTES = hashlib.sha256().digest_size


def save(state: dict[str, Any], folder: Path, step: int, keep: int = 2) -> None:
    """Save `state` as the checkpoint of `step` in `folder`, which is there."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    draft = folder / "draft"  # in the folder: a rename does not cross file systems
    try:
        with draft.open("wb") as file:
            file.write(data + hashlib.sha256(data).digest())
            file.flush()  # from Python to the kernel
            os.fsync(file.fileno())  # from the kernel to the disk: the bytes before the name
        draft.replace(folder / f"step-{step:012d}.pt")
    except BaseException:
        draft.unlink(missing_ok=True)  # leave the room to others
        raise
    sync_names(folder)  # the new name before the old ones go
    for old in finished(folder)[:-keep]:
        old.unlink()


def sync_names(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    entries = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entries)
    finally:
        os.close(entries)


def finished(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first; a draft has another name."""
    return sorted(folder.glob("step-*.pt"))


def load_latest(folder: Path) -> dict[str, Any] | None:
    """Return the newest state that is whole, or None."""
    for path in reversed(finished(folder)):
        content = path.read_bytes()
        data, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if hashlib.sha256(data).digest() == digest:
            return torch.load(io.BytesIO(data))
        print(f"{path}: damaged, passed over")
    return None
