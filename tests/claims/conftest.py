"""Ties tests to claims: each test here proves one, and no two prove the same."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stop with a clear message unless claims and tests pair up."""
    tests: dict[str, str] = {}  # claim -> the test function that proves it
    for item in (item for item in items if HERE in item.path.parents):
        name = item.nodeid.split("[")[0]
        claims = [mark.args[0] for mark in item.iter_markers("proves")]
        if not claims:
            raise pytest.UsageError(f'{name} proves nothing; put @proves("claim-id") above it, or move it')
        for claim in claims:
            if tests.setdefault(claim, name) != name:
                raise pytest.UsageError(f"{name} proves {claim!r}, and so does {tests[claim]}; keep one of them")
