"""Which process of xdist runs which tests: a file stays in one, but for its tests that stand ``apart``.

A file's fixtures are made once that way. xdist's own groups do nothing with pytest 9.2, which no longer lets a plugin
change the id of a test.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .passes import before

_APART = re.compile(r"^@pytest\.mark\.apart\n(?:[@ )].*\n)*def (\w+)", re.MULTILINE)
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
_ALL_APART = re.compile(r"^pytestmark = pytest\.mark\.apart$", re.MULTILINE)
_UNKNOWN_S = 1.0  # of a test that has not passed yet


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist=loadfile``."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        """Gives out files, and tests that stand apart."""

        def _split_scope(self, nodeid: str) -> str:
            return unit(config.rootpath, nodeid)

    config.option.loadscopereorder = False  # they are in order
    return Scheduler(config, log)


@pytest.hookimpl(trylast=True)  # those that were chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What took longest begins first, so that no process still runs when the others have ended."""
    if not hasattr(config, "workerinput"):
        return
    took: Counter[str] = Counter()
    units = {item: unit(config.rootpath, item.nodeid) for item in items}
    for item in items:
        took[units[item]] += _seconds(item.nodeid)
    items.sort(key=lambda item: -took[units[item]])


def unit(root: Path, test: str) -> str:
    """What stays together with a test: all of its file, or nothing else."""
    file, _, name = test.partition("::")
    return test if name.partition("[")[0] in _apart(root / file) else file


@functools.cache
def _apart(file: Path) -> frozenset[str]:
    text = file.read_text(encoding="utf-8")
    return frozenset((_TEST if _ALL_APART.search(text) else _APART).findall(text))


def _seconds(test: str) -> float:
    file, _, name = test.partition("::")
    known = before(file).tests.get(name) if file.startswith("tests/") else None
    return known.seconds if known else _UNKNOWN_S
