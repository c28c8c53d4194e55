"""The tests of the tests: what breaks a claim turns its test red."""

import pytest

import mutations


def test_each_mutation_finds_its_claim_and_its_text():
    """At once, so that who changes a program learns here that a mutation of it must change, too."""
    assert mutations.read()


@pytest.mark.timeout(1200)  # a test of each file of claims, which wait more than they compute
def test_a_mutation_of_each_file_of_claims_and_of_a_lab_of_each_folder_is_caught():
    """The first of each, all in one pytest; `make mutations` runs all of them."""
    cheap = [m for m in reversed(mutations.read()) if m.is_cheap]
    cheap = list({m.test_file.parent if m.test == "lab" else m.test_file: m for m in cheap}.values())
    survived = {m.claim: (outcome, why) for m, outcome, why in mutations.outcomes(cheap) if outcome != "caught"}
    assert cheap
    assert not survived


def test_a_mutation_of_a_lab_that_proves_a_claim_runs_the_lab():
    """Beside its neighbors, outside of the repository; one that changes nothing survives."""
    lab = mutations.ROOT / "gallery/internals/plot_17_real_gpu_streams.py"
    line = next(line for line in lab.read_text().splitlines() if line.startswith(("import ", "from ")))
    made = [
        mutations.Mutation("gpu-nccl-kernels-in-a-row", "lab", lab, lab.relative_to(mutations.ROOT), line, new, "")
        for new in (f"{line}\nassert False", f"{line}  # the same")
    ]
    assert [(outcome, why) for _, outcome, why in mutations.outcomes(made)] == [
        ("caught", "AssertionError"),
        ("survived", ""),
    ]
