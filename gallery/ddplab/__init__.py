"""The lab kit of The DDP Handbook: what its scripts share, and nothing else.

This file only re-exports, so that a script which imports one name depends on one module
(editions re-execute exactly the scripts whose imports changed). A name is imported when it is first used:
what needs no ranks, such as ``ddplab diagnose``, starts without what ranks need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.evidence import record as record
    from .runtime.group import device as device
    from .runtime.launcher import LaunchError as LaunchError
    from .runtime.launcher import launch as launch

_HOMES = {"record": "evidence", "LaunchError": "launcher", "launch": "launcher", "device": "group"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".runtime.{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
