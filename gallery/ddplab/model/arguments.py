"""Checks of arguments, with messages that name the argument and its value."""

from __future__ import annotations

import sys

MOST = sys.float_info.max  # 10**400 is a fine int and no float


def at_least_zero(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a finite number of 0 or more."""
    if not 0 <= value <= MOST:
        raise ValueError(f"{name} must be a finite number, 0 or more; got {value!r}")


def above_zero(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0."""
    if not 0 < value <= MOST:
        raise ValueError(f"{name} must be a finite number above 0; got {value!r}")


def count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is a whole number from 1 to 2⁵³."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**53:
        raise ValueError(f"{name} must be a whole number from 1 to 2⁵³; got {value!r}")
