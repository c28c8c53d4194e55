"""A plugin of pytest: a lab is a test, ``pytest gallery/museum/plot_01_….py`` runs it; what is not shown here skips.

Of the labs only those that prove claims are collected.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..runtime.needs import NotShownHere
from .items import Item, lab_item
from .script import run


class LabFailedError(Exception):
    """A lab failed; the message is its traceback."""


class LabFile(pytest.File):
    """A lab's script."""

    def collect(self) -> Iterator[pytest.Item]:
        """The lab."""
        if (lab := lab_item(self.path)).claims:
            yield LabItem.from_parent(self, name="lab", lab=lab)


class LabItem(pytest.Item):
    """A lab, which passes if none of its blocks raises."""

    def __init__(self, *, lab: Item, **more: Any) -> None:
        super().__init__(**more)
        self.lab = lab
        for claim in lab.claims:
            self.add_marker(pytest.mark.proves(claim))

    def runtest(self) -> None:
        """Run it, without a window."""
        backend = os.environ.setdefault("MPLBACKEND", "agg")
        try:
            outcome = run(self.path, lambda figure, number: "")
        finally:
            if backend == "agg":
                del os.environ["MPLBACKEND"]
        if outcome.needs:
            raise NotShownHere(outcome.needs)
        if outcome.failed:
            raise LabFailedError(outcome.failed)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The lab's error, and its own traceback."""
        if not isinstance(excinfo.value, LabFailedError):
            return super().repr_failure(excinfo, style)
        said = str(excinfo.value)
        return f"{said.splitlines()[-1]}\n{said}"

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it stands."""
        return self.path, 0, self.path.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> LabFile | None:
    """A lab stands in a folder of the gallery."""
    if file_path.match("gallery/*/plot_*.py"):
        return LabFile.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """What needs more than is here is not shown here, which is not a failure."""
    try:
        return (yield)
    except NotShownHere as reason:
        item.user_properties.append(("why", str(reason)))
        pytest.skip(f"not shown here: {reason}")
