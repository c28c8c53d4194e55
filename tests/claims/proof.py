"""What tests of claims share: the tie to the claim, and waiting side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

proves = pytest.mark.proves  # ``@proves("claim-id")`` ties a test to the ``{claim}`` of the book that it shows


def side_by_side(*calls: Callable[[], Any]) -> list[Any]:
    """What each of these calls returns; all run at once, so that those that wait do not wait one after the other."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: call(), calls))
