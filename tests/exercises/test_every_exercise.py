"""What holds for every exercise: its solution passes, and its starter gets what to do first."""

import pytest
from graded import OUT_OF_STEP, first_failure, mentions, passes_all, text_of

from ddplab.grading.exercises import EXERCISES

STARTER = {
    "bucketed-overlap": "Nothing to grade yet: `assign` (mine.py:",
    "choose-buckets": "Nothing to grade yet: `choose_cap_mib` (mine.py:",
    "distributed-training-script": "Nothing to grade yet: `setup_ddp` (mine.py:",
    "make-resume-exact": "first after the stop at 6) was made with the samples|the first batch of this epoch",
    "make-save-atomic": "After steps 8, 9, 10 were saved `load_latest` returned the state of step 9. As text, 10 comes",
    "mend-accumulation": "rank 0 made 6. That is one per micro-batch",
    "mend-early-stop": OUT_OF_STEP,
    "mend-frozen-branch": "Expected to have finished reduction in the prior iteration|left a parameter out",
    "mend-hang-at-epoch-end": OUT_OF_STEP,
    "mend-nan": OUT_OF_STEP,
    "mend-resume": "nothing of the checkpoint was loaded into it|strict=False",
    "no-sync": "Nothing to grade yet: `no_sync` (mine.py:",
    "predict-u-curve": "Nothing to grade yet: `step_seconds` (mine.py:",
    "sync-gradients": "Nothing to grade yet: `sync_gradients` (mine.py:",
}
EACH = pytest.mark.parametrize("name", sorted(path.parent.name for path in EXERCISES.glob("*/starter.py")))


@EACH
def test_the_solution_passes_in_ranks_of_its_own(name):
    assert passes_all(name, EXERCISES / name / "solution.py")


@EACH
def test_the_starter_gets_what_to_do_first(name, tmp_path):
    mentions(first_failure(name, tmp_path, text_of(name, file="starter")), STARTER[name])
