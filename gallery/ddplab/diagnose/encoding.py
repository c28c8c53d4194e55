"""What the first bytes of a file say: its encoding, or what it is if it is no text."""

from __future__ import annotations

import re

from ..errors import BadInput
from .tables import limits, packed

_CONTROL = bytes(b for b in range(32) if b not in b"\t\n\r\b\f\x1b")
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def encoding_of(head: bytes, name: str) -> str:
    """The encoding of a log that begins with ``head``.

    Raises:
        BadInput: it is not text; the message says what it is and what to do.
    """
    for magic, at, what, todo in packed:
        if head[at : at + len(magic)] == magic:
            raise BadInput(f"{name} is {what}, not a text log; {todo.format(name=name)}")
    found = _MARKS.get(head[:2]) or _wide(head[:4096])
    if not found and is_binary(head):
        raise BadInput(f"{name} is not a text log, it holds binary data; give what the ranks printed")
    return found or "utf-8-sig"


def _wide(head: bytes) -> str:
    """UTF-16 by its zeros, where it has no mark; empty if it is something else."""
    even, odd = (head[start::2].count(0) / max(len(head[start::2]), 1) for start in (0, 1))
    most, least = limits.utf16_part, 1 - limits.utf16_part
    return "utf-16-le" if odd > most and even < least else "utf-16-be" if even > most and odd < least else ""


def is_binary(chunk: bytes) -> bool:
    """Whether more than a twentieth of the first bytes are control characters; logs may hold a few.

    Long runs of zeros do not count: a log that was emptied while a process wrote on has them.
    """
    head = re.sub(rb"\0{16,}", b"", chunk[:65536])
    odd = len(head) - len(head.translate(None, _CONTROL))
    return odd * 20 > len(head) and odd >= 2
