"""A file of gradients: JSON, ``[[ready_ms, bytes], ...]``."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import BadInput
from ..model.assignment import MIB
from ..model.step import Gradient

_MOST_BYTES = 64 * MIB


def read_gradients(path: Path) -> list[Gradient]:
    """Return the gradients of a file in order of ready time; ties keep their order.

    Raises:
        BadInput: one line that names the file and, where there is one, the item and its value.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > _MOST_BYTES:
        raise BadInput(f"{path} holds over {_MOST_BYTES // MIB} MiB; give one [ready_ms, bytes] for each gradient")
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{path} is not JSON text; it must hold a list of [ready_ms, bytes]") from None
    if not isinstance(content, list) or not content:
        what = "an empty list" if content == [] else f"{type(content).__name__} {_short(content)}"
        raise BadInput(f"{path} must hold a list of [ready_ms, bytes], one per gradient; it holds {what}")
    found = []
    for position, item in enumerate(content):
        if not isinstance(item, list) or len(item) != 2:
            raise BadInput(f"{path}, item {position}: {_short(item)} is not a pair [ready_ms, bytes]")
        ready_ms, nbytes = item
        if not _is_number(ready_ms) or not 0 <= ready_ms <= 1e12:
            raise BadInput(f"{path}, item {position}: ready_ms must be a number of 0 or more; got {_short(ready_ms)}")
        if not _is_number(nbytes) or not 0 <= nbytes <= 2**53 or nbytes != int(nbytes):
            raise BadInput(f"{path}, item {position}: bytes must be a whole number of 0 or more; got {_short(nbytes)}")
        found.append((ready_ms / 1e3, int(nbytes)))
    return sorted(found, key=lambda gradient: gradient[0])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
