"""Where the recipes and the exercises are: beside the kit in a copy of the book, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path


def shipped(room: str) -> Path:
    """Return the folder ``room`` (``"recipes"`` or ``"exercises"``); the build of the wheel puts it into ``_data``."""
    kit = Path(__file__).parent
    inside = kit / "_data" / room
    return inside if inside.is_dir() else kit.parent / room
