"""Make a save atomic

A colleague saves every few minutes, and keeps the newest checkpoints. The job was killed in
the middle of a save, and then it could not be resumed.

Fix `save` and `load_latest` so that

- if the process is killed at any moment of `save`, or the machine loses power, `load_latest`
  returns a state that was saved: the new one or, until `save` has returned, the one before,
- under the name that it will keep, a file is never there in part: others look there, too,
- if the disk fills up or fails, `save` raises, what was saved before can be loaded, and what
  is left over does not pile up from one failure to the next; with room again, `save` works,
- a checkpoint that was cut off, or in which a bit has flipped, is passed over, and the one
  before it is loaded,
- the newest `keep` checkpoints stay, and nothing older.

One process calls `save`, with growing steps; another one calls `load_latest` later, which
returns None if nothing was saved. How many files a checkpoint has, and what they hold, is up
to you.
"""

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], folder: Path, step: int, keep: int = 2) -> None:
    """Save `state` as the checkpoint of `step` in `folder`, which is there."""
    torch.save(state, folder / f"step-{step}.pt")
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()


def load_latest(folder: Path) -> dict[str, Any] | None:
    """Return the newest state that is whole, or None."""
    newest = sorted(folder.glob("step-*.pt"))[-1:]
    return torch.load(newest[0]) if newest else None
