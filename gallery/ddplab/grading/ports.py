"""Ports that stay free until they are listened on."""

import socket

from ..runtime.environment import reserve_port

_RESERVED: list[socket.socket] = []  # until the process ends


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of this machine to listen on, which the system gives to nobody else."""
    _RESERVED.append(reserve_port(address))
    port: int = _RESERVED[-1].getsockname()[1]
    return port
