"""All behaviours, and how to observe them: the address of the table for scripts and tests."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from ...runtime.launcher import launch
from ...runtime.needs import ON_CPU
from .observe import Seen, observe

# In the order of the table.
# isort: off
from .rows import accumulation as accumulation
from .rows import unused_parameters as unused_parameters
from .rows import parameters as parameters
from .rows import broadcast_buffers as broadcast_buffers
from .rows import call_order as call_order
from .rows import inputs as inputs
from .rows import hooks as hooks
from .rows import rank_counts as rank_counts

# isort: on
from .table import BEHAVIOURS as BEHAVIOURS


def observe_all(titles: Collection[str], *classes: type[nn.Module], ranks: int = 2) -> dict[str, list[list[Seen]]]:
    """Return, by title, what each rank saw of each class; the rows that ask for it have launches of their own.

    The ranks are on the CPU, with gloo, whatever the machine has: a rank whose peer has raised then gets an error.
    """

    def worker(titles: list[str], classes: Sequence[type[nn.Module]]) -> list[list[Seen]]:
        warnings.simplefilter("ignore")
        return [[observe(BEHAVIOURS[title], cls) for title in titles] for cls in classes]

    quietly: Any = {"env": ON_CPU, "quiet": True}
    together = [title for title in titles if not BEHAVIOURS[title].alone]
    by_rank = launch(worker, ranks, together, classes, timeout_s=60, **quietly)
    seen = {title: [[rank[c][t] for rank in by_rank] for c in range(len(classes))] for t, title in enumerate(together)}
    for title in titles:
        if title not in seen:
            launches = [launch(worker, ranks, [title], [cls], timeout_s=20, **quietly) for cls in classes]
            seen[title] = [[rank[0][0] for rank in by_rank] for by_rank in launches]
    return {title: seen[title] for title in titles}
