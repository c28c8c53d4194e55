"""Somewhere to start programs: this host under a loopback address, and what a node has in common with that."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ...runtime.environment import reserve_port
from .forks import Fork
from .programs import Program


class Machine:
    """Somewhere to start programs, with an address: here, this host itself.

    Args:
        name: its host name.
        address: by which others reach it.
        interface: the network card of that address.
    """

    def __init__(self, name: str, address: str, interface: str) -> None:
        self.name = name
        self.address = address
        self.interface = interface
        # What torchrun needs: on one host all agents would else give the same name and address.
        self.agent_options = [f"--local-addr={address}"]
        self.agent_env = {"GLOO_SOCKET_IFNAME": interface}
        self.namespaces: list[str] = []  # files of those that a process enters to be there
        self._programs: list[Program] = []
        self._ports: list[socket.socket] = []

    def free_port(self) -> int:
        """A TCP port that nothing listens on, and that is given to nobody else until this is closed."""
        self._ports.append(reserve_port(self.address))
        return int(self._ports[-1].getsockname()[1])

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs this command there."""
        return list(command)

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
        """Start a command there and go on; it ends with the machine at the latest."""
        if command[0] == "torchrun":
            return self.fork(command, env)
        self._programs.append(Program(self.enter(command), env))
        return self._programs[-1]

    def fork(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
        """The same for torchrun and for Python with a file, in a process that has imported torch already."""
        self._programs.append(Program(command, env, partial(Fork, namespaces=self.namespaces)))
        return self._programs[-1]

    def run(self, command: Sequence[str], timeout_s: float = 30, env: Mapping[str, str] | None = None) -> str:
        """Run a command to its end and return its output. Raises RuntimeError if it fails, or TimeoutError."""
        program = self.start(command, env)
        if program.wait(timeout_s):
            raise RuntimeError(f"exit code {program.returncode}: {' '.join(command)}\n{program.output}")
        return program.output

    def kill(self, pid: int | str, sign: str = "KILL") -> None:
        """Signal a process; its number is the one that it sees itself."""
        self.run(["kill", f"-{sign}", str(pid)])

    def close(self) -> None:
        """End all that was started there."""
        for program in self._programs:
            program.kill()
        for port in self._ports:
            port.close()


@contextlib.contextmanager
def loopback(count: int) -> Iterator[list[Machine]]:
    """This host under several loopback addresses: what is left where namespaces are not allowed."""
    machines = [Machine("localhost", f"127.0.0.{i + 1}", "lo") for i in range(count)]
    for machine in machines:  # each takes any loopback address for its own; then the fastest would be the host
        machine.agent_options.append(f"--rdzv-conf=is_host={int(machine is machines[0])}")
    try:
        yield machines
    finally:
        for machine in machines:
            machine.close()


def torchrun(
    machines: Sequence[Machine],
    *command: str,
    each: Callable[[Machine], Sequence[str]] = lambda machine: (),
    port: int | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Program]:
    """Start one agent per machine, as a user would type it on each; they meet at the first one's address.

    Args:
        machines: where; one agent each.
        command: what follows the options of the rendezvous: more options, the program, its arguments.
        each: more options that differ between machines.
        port: of the rendezvous, at the first machine; by default a free one, which is 29400 on a node.
        env: more environment variables.
    """
    port = machines[0].free_port() if port is None else port
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines[0].address}:{port}", "--rdzv-id=handbook"]
    options = [f"--nnodes={len(machines)}", *meet]
    return [
        m.start(["torchrun", *options, *m.agent_options, *each(m), *command], {**m.agent_env, **(env or {})})
        for m in machines
    ]
