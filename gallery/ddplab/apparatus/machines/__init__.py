"""Several machines on one host, for programs that are to run on several machines.

On Linux a machine is a set of namespaces, with a host name and a network card of its own, whose cable can be pulled;
where the host forbids that, it is this host under one more loopback address, which is enough for agents to meet.
The system's own tools make them; nothing here imports torch, but for forks.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from .forks import Fork as Fork
from .host import Machine as Machine
from .host import loopback as loopback
from .host import torchrun as torchrun
from .nodes import NamespaceError as NamespaceError
from .nodes import Node as Node
from .nodes import Nodes as Nodes
from .programs import PATH as PATH
from .programs import Program as Program
from .sockets import Connection as Connection
from .sockets import connections as connections


@contextlib.contextmanager
def machines(count: int) -> Iterator[tuple[Sequence[Machine], str]]:
    """Machines while the ``with`` block runs: nodes where this host allows them, else loopback addresses.

    Yields:
        The machines, and in words why they are not nodes; empty if they are.
    """
    with contextlib.ExitStack() as stack:
        try:
            found: Sequence[Machine] = stack.enter_context(Nodes(count))
            why_not = ""
        except NamespaceError as reason:
            found, why_not = stack.enter_context(loopback(count)), str(reason)
        yield found, why_not
