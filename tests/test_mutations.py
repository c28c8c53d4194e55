"""The tests of the tests: what breaks a claim turns its test red."""

import pytest

import mutations


@pytest.mark.full
@pytest.mark.timeout(1200)  # dozens of tests of claims, which wait more than they compute
def test_every_cheap_mutation_is_caught():
    """Those of a claim's own test file, all in one pytest; `python tests/mutations.py` runs the others too."""
    cheap = [mutation for mutation in mutations.read() if mutation.is_cheap]
    survived = {m.claim: (outcome, why) for m, outcome, why in mutations.outcomes(cheap) if outcome != "caught"}
    assert cheap
    assert not survived
