"""What an outcome depends on beside the project: Python, the system, and the versions of what a test uses."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata

from .watch import ROOT

# Tools that a test asks for by the name of their package; WeasyPrint takes the last two, whoever calls it.
PACKAGES = ("chromium", "poppler-utils", "epubcheck", "slurm-wlm", "iproute2", "libpango-1.0-0", "fonts-dejavu-core")


def here() -> dict[str, str]:
    """This machine, as far as a pass on another one counts here."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, "system": f"{platform.system()} {platform.machine()}", "torch": _installed("torch")}


def at_home(ledger: dict[str, str]) -> bool:
    """Whether passes of this ledger count here: the same Python, system and build of torch, at the pinned version.

    Which version is pinned does not matter: it is part of the keys of what uses torch.
    """
    now = here()
    version, _, build = now["torch"].partition("+")
    same = all(ledger.get(name) == now[name] for name in ("python", "system"))
    return same and ledger.get("torch", "").partition("+")[2] == build and version == pinned().get("torch")


def versions(modules: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """The versions of the packages behind modules, with all that these need, and of the system's that are named.

    Args:
        modules: top-level names of imports.
        names: words of which some are names of packages of the system.
    """
    pins = pinned()  # `at_home` sees that torch is as pinned, and has no say in the others
    found = {name: pins.get(name) or _installed(name) for module in modules for name in _behind(module)}
    system = {*names} & {*PACKAGES} | ({*PACKAGES[-2:]} if "weasyprint" in found else set())
    return found | {name: _system().get(name, "missing") for name in system}


def pinned() -> dict[str, str]:
    """What constraints.txt says."""
    return _read_pins((ROOT / "constraints.txt").stat().st_mtime_ns)


@functools.cache
def _read_pins(_modified: int) -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_plain(name): version for name, _, version in (line.partition("==") for line in lines) if version}


@functools.cache
def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


@functools.cache
def _behind(module: str) -> frozenset[str]:
    """The packages that bring a module, and all that these need."""
    found: set[str] = set()
    waiting = [_plain(name) for name in _packages().get(module, ())]
    while waiting:
        name = waiting.pop()
        if name not in found and _installed(name) != "missing":
            found.add(name)
            needs = (need for need in metadata.requires(name) or () if "extra ==" not in need)
            waiting += [_plain(re.match(r"[\w.-]+", need)[0]) for need in needs]  # type: ignore[index]
    return frozenset(found - {"ddplab"})


@functools.cache
def _packages() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@functools.cache
def _system() -> dict[str, str]:
    """The versions of the system's packages, where it is Debian's kind."""
    command = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return {}
    return dict(line.split() for line in told.splitlines() if len(line.split()) == 2)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
