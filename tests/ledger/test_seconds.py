"""What tests take is bounded: who adds some makes others quicker."""

import pytest

from .passes import FOLDER, Passes

CORE_S, ALL_S = 200, 4000


@pytest.mark.core  # the ledger is no input of any test
def test_the_core_and_all_tests_together_stay_within_their_seconds():
    known = [one for path in FOLDER.rglob("test_*.json") for one in Passes.at(path).tests.values()]
    assert sum(one.seconds for one in known if one.core) <= CORE_S
    assert sum(one.seconds for one in known) <= ALL_S
