"""The table of behaviours: what PyTorch's own tests make its DistributedDataParallel do, as short functions.

Any class that wraps a model can run them. :data:`BEHAVIOURS` has a row for each: the title says what is done, the rest
is described in :class:`ddplab.apparatus.parity.observe.Behaviour`. The tests named are in
torch/testing/_internal/distributed/distributed_test.py (torch 2.13) and in PyTorch's repository,
test/distributed/test_c10d_gloo.py, test_c10d_common.py and test_c10d_nccl.py. What they check is taken over, their code
is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .observe import Behaviour, Wrap

BEHAVIOURS: dict[str, Behaviour] = {}  # by title


class Topic:
    """Rows of one topic."""

    def __init__(self, name: str) -> None:
        self.name = name

    def row(
        self,
        title: str,
        tests: str = "",
        refused: str = "",
        differs: tuple[str, str] | None = None,
        alone: bool = False,
        since: str = "2.8",
    ) -> Callable[[Callable[[Wrap], Any]], None]:
        """Enter the function that follows into :data:`BEHAVIOURS`.

        An older torch than ``since`` does it differently, or cannot: there it is left out.
        """

        def enter(run: Callable[[Wrap], Any]) -> None:
            if torch.__version__ >= since:
                BEHAVIOURS[title] = Behaviour(self.name, run, tuple(tests.split()), refused, differs, alone)

        return enter
