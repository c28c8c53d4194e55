"""Who is connected to whom: read from /proc, so it needs no tool, and sees into nodes and loopback machines alike."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from .programs import Program, family

_ESTABLISHED, _LISTEN = "01", "0A"
_PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class Connection:
    """An open connection: who opened it, to whom, and the port that the latter listens on."""

    client: str
    server: str
    port: int


def connections(agents: list[Program]) -> list[Connection]:
    """The open TCP connections between torchrun agents and their ranks, as ``agent 0``, ``rank 3`` and so on."""
    names: dict[int, str] = {}
    for i, agent in enumerate(agents):
        for pid in family(agent.pid):
            with contextlib.suppress(OSError):
                environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
                rank = next((e[5:].decode() for e in environment if e.startswith(b"RANK=")), None)
                names[pid] = f"agent {i}" if rank is None else f"rank {rank}"
    listening: dict[int, str] = {}
    ends: dict[tuple[str, str], str] = {}
    for pid, name in names.items():
        for local, remote, state in _sockets(pid):
            if state == _LISTEN:
                listening[_port(local)] = name
            elif state == _ESTABLISHED:
                ends[local, remote] = name
    return sorted(
        Connection(ends[remote, local], name, _port(local))
        for (local, remote), name in ends.items()
        if listening.get(_port(local)) == name and (remote, local) in ends
    )


def _port(end: str) -> int:
    return int(end.rsplit(":", 1)[1], 16)


def _sockets(pid: int) -> list[tuple[str, str, str]]:
    """(local end, remote end, state) of a process's TCP sockets; an end is ``ADDRESS:PORT`` in hex."""
    own = set()
    with contextlib.suppress(OSError):
        for fd in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(os.readlink(fd))
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if f"socket:[{words[9]}]" in own:
                    # An IPv4 address in an IPv6 socket ends with the IPv4 address.
                    local, remote = (end[-13:] for end in words[1:3])
                    found.append((local, remote, words[3]))
    return found
