"""Flight-recorder dumps of all ranks, and the place where the ranks diverge.

Every rank of a torch program keeps a log of the collectives it issued. When a job hangs, the ranks' logs side by side
name the cause: the first collective that is not the same on all of them, or that one of them never issued.

:func:`write_dump` and :func:`dump_when_stuck` run in a rank, and need torch. Reading and comparing need the standard
library only, so that dumps can be read where no torch is installed.
"""

from .comparison import compare, compare_lines, without_dump
from .divergence import Divergence, Side
from .dumps import Call, Dump, DumpError, read_dumps
from .write import dump_when_stuck, write_dump

__all__ = [
    "Call",
    "Divergence",
    "Dump",
    "DumpError",
    "Side",
    "compare",
    "compare_lines",
    "dump_when_stuck",
    "read_dumps",
    "without_dump",
    "write_dump",
]
