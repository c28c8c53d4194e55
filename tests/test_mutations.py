"""The tests of the tests: what breaks a claim turns its test red."""

import pytest

import mutations


def test_each_mutation_finds_its_claim_and_its_text():
    """At once, so that who changes a program learns here that a mutation of it must change, too."""
    assert mutations.read()


@pytest.mark.timeout(1200)  # a test of each file of claims, which wait more than they compute
def test_a_mutation_of_each_file_of_claims_is_caught():
    """The first of each test file, all in one pytest; `make mutations` runs all of them."""
    cheap = list({m.test_file: m for m in reversed(mutations.read()) if m.is_cheap}.values())
    survived = {m.claim: (outcome, why) for m, outcome, why in mutations.outcomes(cheap) if outcome != "caught"}
    assert cheap
    assert not survived
