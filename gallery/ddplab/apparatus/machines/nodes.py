"""Several machines on one host: Linux namespaces with a name, a hosts file and a network card each.

A node is a process that waits for the end of its input, first in a PID namespace of its own. When the program
that made the cluster ends, however it ends, that input ends, and the kernel ends all that ran in the node and
removes its network: nothing has a name outside, so nothing can be left behind or collide.
Root is not needed where the kernel lets users make namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from .host import Machine
from .programs import PATH

# First process of a node. It says which process it is, seen from outside: /proc is still the host's.
# SIGCHLD is ignored, so that the kernel reaps orphans; without a reaper slurmd would see its jobs as zombies.
_INIT = """
import os, signal, subprocess, sys
pid = os.readlink("/proc/self")
if os.getpid() == 1:
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(pid, flush=True)
sys.stdin.read()
"""
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}


class NamespaceError(RuntimeError):
    """This host cannot, or does not let us, make network namespaces."""


class Node(Machine):
    """A machine of its own: host name, /etc/hosts, processes, and a network card ``eth0``; made by :class:`Nodes`."""

    def __init__(self, name: str, address: str, user: Sequence[str], outer: Sequence[str]) -> None:
        super().__init__(name, address, "eth0")
        self.agent_options, self.agent_env = [], {}  # its name is its own, and leads to its address
        self.by_root = not user  # real root's, not that of a user namespace
        self._user = user
        self._init, self.pid = _holder([*outer, "unshare", "--net", "--uts", "--mount", "--pid", "--fork"])
        kinds = [*(["user"] if user else []), "net", "uts", "pid", "mnt"]
        self.namespaces = [f"/proc/{self.pid}/ns/{kind}" for kind in kinds]

    def free_port(self) -> int:
        """Of the rendezvous: nothing else listens on a node."""
        return 29400

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs this command there, in a folder of the same name."""
        where = [f"--target={self.pid}", *self._user, "--net", "--uts", "--mount", "--pid"]
        # The folder by its name: the open one is that of the host's files, without the node's /etc/hosts.
        return ["nsenter", *where, "env", f"--chdir={Path.cwd()}", *command]

    def hosts(self, text: str) -> None:
        """Replace what the node's /etc/hosts says."""
        self.run(["sh", "-c", 'printf %s "$0" > /etc/hosts', text])

    def sysctl(self, **values: int) -> None:
        """Set values below /proc/sys/net/ipv4, such as ``tcp_retries2=4``."""
        for name, value in values.items():
            self.run(["sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}"])

    def rate(self, mbit_per_s: int) -> None:
        """Shape what the node sends, to so many million bit per second.

        The burst is one jumbo frame, so that short messages are shaped too.
        """
        shape = ["tbf", "rate", f"{mbit_per_s}mbit", "burst", "18kb", "latency", "400ms"]
        self.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *shape])

    @contextlib.contextmanager
    def blocked(self, port: int | str) -> Iterator[None]:
        """Drop silently what arrives for a TCP port, or for several ("32768-60999"), as a firewall does.

        Open connections live on.
        """
        # No packet filter is needed: a routing rule, asked before the one that delivers to local addresses.
        # That one has preference 0, the first, and so has to move.
        if self.run(["ip", "rule", "list", "pref", "0"]):
            self.run(["ip", "rule", "add", "pref", "20", "lookup", "local"])
            self.run(["ip", "rule", "del", "pref", "0"])
        rule = ["pref", "10", "iif", "eth0", "ipproto", "tcp", "dport", str(port), "blackhole"]
        self.run(["ip", "rule", "add", *rule])
        try:
            yield
        finally:
            self.run(["ip", "rule", "del", *rule])

    def close(self) -> None:
        """End the node: the kernel kills all that runs in it."""
        _end(self._init)
        super().close()


class Nodes(Sequence[Node]):
    """Machines ``node0`` … on one switch; use it in a ``with`` statement.

    Args:
        count: how many, at most 250.
        others: names of more machines, such as a login node; they come last.
        subnet: first three numbers of their addresses. They are seen in the nodes only, not by this host.
        mtu: largest packet in bytes; 9000 keeps a shaped link close to its rate.

    Raises:
        NamespaceError: on entering, with the reason.
    """

    def __init__(self, count: int, others: Sequence[str] = (), subnet: str = "10.77.0", mtu: int = 9000) -> None:
        names = [*(f"node{i}" for i in range(count)), *others]
        self._addresses = {name: f"{subnet}.{i + 1}" for i, name in enumerate(names)}
        self._mtu = mtu
        self._nodes: list[Node] = []
        self._stack = contextlib.ExitStack()

    def __len__(self) -> int:
        """How many there are, the others included."""
        return len(self._nodes)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        """As of a list."""
        return self._nodes[index]

    def __enter__(self) -> Nodes:
        """Make them and plug them in; or nothing is left of them."""
        for tool, package in _TOOLS.items():
            if shutil.which(tool, path=PATH) is None:
                raise NamespaceError(f"{tool} is not installed (Debian package: {package})")
        with contextlib.ExitStack() as stack:
            switch, self._user = _switch()
            stack.callback(_end, switch[0])
            self.switch = ["nsenter", f"--target={switch[1]}", *self._user, "--net"]
            outer = ["nsenter", f"--target={switch[1]}", *self._user] if self._user else []
            self._ip("link", "add", "switch", "type", "bridge")
            self._ip("link", "set", "switch", "up", "mtu", str(self._mtu))
            for name, address in self._addresses.items():
                try:
                    self._nodes.append(Node(name, address, self._user, outer))
                except OSError as error:
                    raise NamespaceError(f"a node could not be made: {error}") from None
                stack.callback(self._nodes[-1].close)
                self._plug(self._nodes[-1])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """End all that runs on them, and remove them."""
        self._stack.close()
        self._nodes.clear()

    @contextlib.contextmanager
    def unplugged(self, node: Node) -> Iterator[None]:
        """Pull a node's cable, and put it back."""
        self._ip("link", "set", node.name, "down")
        try:
            yield
        finally:
            self._ip("link", "set", node.name, "up")

    def hosts(self) -> str:
        """The hosts file that every node starts with: all names resolve, everywhere to the same address."""
        return "".join(f"{at} {name}\n" for name, at in {"localhost": "127.0.0.1", **self._addresses}.items())

    def _plug(self, node: Node) -> None:
        card = ["name", "eth0", "mtu", str(self._mtu), "netns", str(node.pid)]
        self._ip("link", "add", node.name, "mtu", str(self._mtu), "type", "veth", "peer", *card)
        self._ip("link", "set", node.name, "master", "switch", "up")
        # Files of its own, kept in its memory. No name server: an unknown name fails at once.
        script = f"""
            hostname {node.name}
            ip link set lo up
            ip address add {node.address}/24 dev eth0
            ip link set eth0 up
            mount -t tmpfs tmpfs /mnt
            touch /mnt/hosts /mnt/resolv.conf
            mount --bind /mnt/hosts /etc/hosts
            test ! -e /etc/resolv.conf || mount --bind /mnt/resolv.conf /etc/resolv.conf
            umount --lazy /mnt
        """
        node.run(["sh", "-ec", script])
        node.hosts(self.hosts())

    def _ip(self, *words: str) -> None:
        done = subprocess.run(
            [*self.switch, "ip", *words], env={**os.environ, "PATH": PATH}, text=True, capture_output=True
        )
        if done.returncode:
            raise NamespaceError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _switch() -> tuple[tuple[subprocess.Popen[str], int], list[str]]:
    """Start the process that holds the switch, if need be as root of a user namespace; how to enter that one."""
    as_user = (["--user", "--map-root-user"], ["--user", "--preserve-credentials"])
    for make, enter in [([], []), as_user] if os.geteuid() == 0 else [as_user]:
        try:
            return _holder(["unshare", *make, "--net"]), enter
        except OSError as error:
            refused = error
    raise NamespaceError(f"this host does not allow namespaces: {refused}")


def _holder(prefix: Sequence[str]) -> tuple[subprocess.Popen[str], int]:
    """Start a process that holds namespaces until its input ends; return it and its number on this host."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-I", "-S", "-c", _INIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": PATH},
        start_new_session=True,
    )
    assert process.stdout is not None
    number = process.stdout.readline()
    if not number:
        _, reason = process.communicate()
        raise OSError(reason.strip().splitlines()[-1])
    return process, int(number)


def _end(holder: subprocess.Popen[str]) -> None:
    """End a holder: the kernel then kills what is left in its namespace, and waits for it."""
    for end in (holder.stdin, holder.stdout, holder.stderr):
        if end is not None:
            end.close()
    holder.wait()
