"""Machines to run the recipes on. A node costs a tenth of a second, Slurm a second."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ddplab.apparatus.machines import Machine, NamespaceError, Nodes, loopback
from slurm import TOOLS, Slurm, readers_folder
from tools import missing, need


@pytest.fixture(params=["namespaces", "loopback"])
def machines(request: pytest.FixtureRequest) -> Iterator[Sequence[Machine]]:
    """Two machines: nodes, and what is left of them without namespaces."""
    if request.param == "namespaces":
        yield request.getfixturevalue("nodes")
    else:
        with loopback(2) as machines:
            yield machines


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm on four nodes and a login node."""
    for tool, package in TOOLS.items():
        need(tool, package)
    try:
        with Nodes(4, ["login"]) as nodes, Slurm(nodes[4], nodes[:4], tmp_path_factory.mktemp("slurm")) as slurm:
            yield slurm
    except NamespaceError as reason:
        missing(f"no machines of our own: {reason}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder, as readers_folder says."""
    return readers_folder(tmp_path)
