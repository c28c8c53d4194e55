"""Load a pickle that may come from anywhere: plain data is read, everything that could run code is refused."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, NoReturn

# The opcodes that plain data is made of. None of them can name a class, call a function or reach outside.
_PLAIN = set(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
        BINUNICODE SHORT_BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8
        EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
        BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE
        """,
    )
)


class _PlainUnpickler(pickle.Unpickler):
    """A second lock: the opcodes that would come here have been refused already."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it names a persistent object")


class PlainDataError(ValueError):
    """The file is not a pickle of plain data; the text says why."""


def load_plain(path: Path) -> Any:
    """The plain data in the file.

    Raises:
        PlainDataError: it cannot be read, is no pickle, is damaged, or holds more than plain data.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if len(start) < 2 or start[0] != 0x80 or start[1] > 5:
                raise PlainDataError("it is not a pickle" if start else "it is empty")
            data = start + file.read()
    except OSError as problem:
        raise PlainDataError(problem.strerror or "it cannot be opened") from None
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name not in _PLAIN:
                raise PlainDataError(f"it holds more than plain data ({opcode.name}), and could run code")
            if opcode.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
                raise PlainDataError("it is damaged")  # a memo that large would take all memory
        return _PlainUnpickler(io.BytesIO(data)).load()
    except PlainDataError:
        raise
    except Exception:  # genops and load raise nearly anything on junk
        raise PlainDataError("it is damaged or cut off") from None
